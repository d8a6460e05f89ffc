"""Intervals of means, shares, medians and ratios over prompts: pure functions over arrays.

Shapes: b images, p distinct prompts, r bootstrap resamples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

CONFIDENCE = 0.95
NORMAL_QUANTILE = 1.959964
"""Of the standard normal distribution at (1 + CONFIDENCE) / 2."""
MIN_PROMPTS = 4
"""For the interval of a share or of a median, which resamples nothing."""
MIN_RESAMPLED = 8
"""Prompts for an interval by resampling. It covers for fewer, but with 4 one in twenty is 16 to 35
times as wide as Student's: some resamples have next to no spread, and deviations are divided by
it. With 8 it is 1.4 to 3.6 times as wide (docs/log.md)."""
ROUNDING = 1e-9
"""Relative: what is nearer to nothing than this is nothing."""
BOOTSTRAP_SEED = 0
SIGNIFICANT_DIGITS = 6
"""Of numbers in files: a sum's last bits depend on the number of threads, these digits do not."""


Ends = tuple[float, float]
"""The least and the largest value that a measure can have; no interval goes beyond them."""
NO_ENDS: Ends = (-math.inf, math.inf)


@dataclass(frozen=True)
class ConfidenceInterval:
    """A mean and its 95 % interval; None for a bound that so few prompts cannot give."""

    mean: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, mean: float, low: float | None, high: float | None) -> "ConfidenceInterval":
        """Rounded; without bounds where they are equal: no spread was found, which is not none."""
        bounds = [None if bound is None else round_significant(bound) for bound in (low, high)]
        if bounds[0] == bounds[1]:
            bounds = [None, None]
        return cls(round_significant(mean), *bounds)


@dataclass(frozen=True)
class Groups:
    """Which images belong together: bootstrap resamples prompts, not images.

    Two images of one prompt are not independent; prompts are what a user has more of.

    Attributes:
        of_image_b: index of each image's prompt, from 0 to num_groups - 1.
    """

    of_image_b: IntArray
    num_groups: int

    @classmethod
    def of(cls, ids: Sequence[str]) -> "Groups":
        """Group images by an id, in the order of first appearance."""
        numbers = {name: number for number, name in enumerate(dict.fromkeys(ids))}
        return cls(np.array([numbers[name] for name in ids], dtype=np.int64), len(numbers))

    def sums(self, values_b: FloatArray) -> FloatArray:
        """Sum of each group, shape (p,)."""
        sums_p: FloatArray = np.zeros(self.num_groups)
        np.add.at(sums_p, self.of_image_b, values_b)
        return sums_p

    def sizes(self) -> FloatArray:
        """Images of each group, shape (p,)."""
        return np.bincount(self.of_image_b, minlength=self.num_groups).astype(np.float64)


def draw_weights(num_groups: int, num_resamples: int) -> FloatArray:
    """How often each prompt is drawn in each resample (with replacement), shape (r, p).

    One draw serves every metric and model of a run, so that differences are paired.
    """
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    shares = np.full(num_groups, 1 / num_groups)
    return generator.multinomial(num_groups, shares, size=num_resamples).astype(np.float64)


def difference_ends(ends: Ends) -> Ends:
    """Of the difference of two values of a measure."""
    least, most = ends
    return least - most, most - least


def bootstrap_mean(
    values_b: FloatArray, groups: Groups, weights_rp: FloatArray, ends: Ends = NO_ENDS
) -> ConfidenceInterval:
    """Mean over images with its bootstrap-t interval over resampled prompts, within `ends`."""
    return _bootstrap_t(groups.sums(values_b), groups.sizes(), weights_rp, ends)


def bootstrap_ratio(
    values_b: FloatArray, others_b: FloatArray, groups: Groups, weights_rp: FloatArray
) -> ConfidenceInterval | None:
    """Ratio of two paired means; None where the lower mean is not positive in every resample.

    The ratio of the means, not the mean of ratios: a single image near zero would rule the latter.
    Where the upper mean is negative in no resample, the interval ends at 0.
    """
    above_p, below_p = groups.sums(values_b), groups.sums(others_b)
    if below_p.sum() <= 0 or np.any(weights_rp @ below_p <= 0):
        return None
    least = 0.0 if np.all(weights_rp @ above_p >= 0) else -math.inf
    return _bootstrap_t(above_p, below_p, weights_rp, (least, math.inf))


def wilson_share(hits_b: FloatArray, groups: Groups) -> ConfidenceInterval:
    """Share of hits, 1.0 or 0.0 an image, with the interval of Wilson 1927.

    It has a width at shares near 0 and 1, where resampling finds no spread: 4 hits of 4 have the
    interval 51 % to 100 %. Images of one prompt count as one, which is right where all of them hit
    or none does. Where they are independent, two of each prompt give a coverage of 96 to 99.6 %
    instead of 95, and a width √2 times too large. With 8 prompts a share of 0.98 is covered in
    85 % of cases, with 24 in 93 % (simulated, 2,000 draws of each).
    """
    share = float(np.mean(hits_b))
    if groups.num_groups < MIN_PROMPTS:
        return ConfidenceInterval.of(share, None, None)
    return ConfidenceInterval.of(share, *wilson(share, groups.num_groups))


def share_difference(changes_b: FloatArray, groups: Groups) -> ConfidenceInterval:
    """Mean of changes of hits, each -1, 0 or 1, with an adjusted Wald interval of paired shares.

    A pair is added to those that gain and to those that lose, so that the interval has a width
    where few or none change; resampling often draws none of few, and then finds no bound. It lies
    in [-1, 1]. Images of one prompt count as one, as in `wilson_share`.

    Bonett and Price 2012, Journal of Educational and Behavioral Statistics 37(4), 479-488.
    """
    change = float(np.mean(changes_b))
    if groups.num_groups < MIN_PROMPTS:
        return ConfidenceInterval.of(change, None, None)
    number = groups.num_groups + 2
    gained, lost = (
        (float(np.mean(sign * changes_b > 0)) * groups.num_groups + 1) / number for sign in (1, -1)
    )
    centre = gained - lost
    reach = NORMAL_QUANTILE * math.sqrt((gained + lost - centre**2) / number)
    low, high = max(centre - reach, -1.0), min(centre + reach, 1.0)
    return ConfidenceInterval.of(change, low, high)


def median_interval(values_b: FloatArray, groups: Groups) -> ConfidenceInterval:
    """Median over images; its interval is the quantiles at Wilson's interval of a share of a half.

    Woodruff 1952: a median lies below a value as surely as half of all values do. The ends are
    values themselves; those of 4 prompts are the least and the largest, between which the median
    lies in 7 cases of 8.
    """
    median = float(np.median(values_b))
    if groups.num_groups < MIN_PROMPTS:
        return ConfidenceInterval.of(median, None, None)
    below, above = wilson(0.5, groups.num_groups)
    low = float(np.quantile(values_b, below, method="lower"))
    high = float(np.quantile(values_b, above, method="higher"))
    return ConfidenceInterval.of(median, low, high)


def median_difference(
    before_b: FloatArray, after_b: FloatArray, groups: Groups, weights_rp: FloatArray
) -> ConfidenceInterval:
    """Median after less median before, of pairs, with percentiles over resampled prompts.

    Not the median of the differences: that may rise where the median falls.
    """
    difference = float(np.median(after_b) - np.median(before_b))
    if groups.num_groups < MIN_RESAMPLED:
        return ConfidenceInterval.of(difference, None, None)
    found_r = []
    for weights_p in weights_rp:
        drawn = np.repeat(np.arange(len(before_b)), weights_p[groups.of_image_b].astype(int))
        found_r.append(np.median(after_b[drawn]) - np.median(before_b[drawn]))
    tail = (1 - CONFIDENCE) / 2
    low, high = (float(bound) for bound in np.quantile(found_r, [tail, 1 - tail]))
    return ConfidenceInterval.of(difference, low, high)


def wilson(share: float, number: int) -> tuple[float, float]:
    """Wilson's interval of a share of so many prompts; it has a width at 0 and at 1 too."""
    penalty = NORMAL_QUANTILE**2 / number
    centre = (share + penalty / 2) / (1 + penalty)
    variance = share * (1 - share) / number + penalty / (4 * number)
    reach = NORMAL_QUANTILE * math.sqrt(variance) / (1 + penalty)
    return max(centre - reach, 0.0), min(centre + reach, 1.0)


def _bootstrap_t(
    above_p: FloatArray, below_p: FloatArray, weights_rp: FloatArray, ends: Ends
) -> ConfidenceInterval:
    """Ratio of two sums over prompts with the bootstrap-t interval, cut at the measure's ends.

    Each resample's deviation is divided by its own standard error (Efron & Tibshirani 1993,
    section 12.5), which covers for few and for skewed values, where percentiles do not. A bound
    is the measure's end, or None, where too many resamples have no spread at all.
    """
    (ratio,), (error,) = _ratios(above_p, below_p, np.ones((1, len(above_p))))
    if len(above_p) < MIN_RESAMPLED:
        return ConfidenceInterval.of(float(ratio), None, None)
    ratio_r, error_r = _ratios(above_p, below_p, weights_rp)
    error_r[error_r <= ROUNDING * error] = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        t_r = (ratio_r - ratio) / error_r
    t_r[np.isclose(ratio_r, ratio, rtol=ROUNDING, atol=0.0)] = 0.0
    tail = (1 - CONFIDENCE) / 2
    # "nearest" never averages with a deviation that is infinite.
    lowest, highest = np.quantile(t_r, [tail, 1 - tail], method="nearest")
    bounds = max(ratio - highest * error, ends[0]), min(ratio - lowest * error, ends[1])
    low, high = (float(bound) if np.isfinite(bound) else None for bound in bounds)
    return ConfidenceInterval.of(float(ratio), low, high)


def _ratios(
    above_p: FloatArray, below_p: FloatArray, weights_rp: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Ratio of two weighted sums and its standard error (Cochran 1977, eq. 6.13), each (r,).

    The error's factor of p / (p - 1) is left out: it is the same in every resample and cancels.
    """
    total_r = weights_rp @ below_p
    ratio_r: FloatArray = (weights_rp @ above_p) / total_r
    residuals_rp = above_p - ratio_r[:, None] * below_p
    error_r: FloatArray = np.sqrt((weights_rp * residuals_rp**2).sum(axis=1)) / total_r
    return ratio_r, error_r


def round_significant(value: float) -> float:
    """Round to `SIGNIFICANT_DIGITS`."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
