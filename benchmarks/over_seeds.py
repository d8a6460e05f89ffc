"""Estimates of a student's measures with what chance adds: other prompts, and other trainings.

Shapes: s seeds, p prompts, i images of a prompt, r resamples.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from distillery.measures.intervals import FloatArray, draw_weights

NUM_RESAMPLES = 2000
TAILS = (2.5, 97.5)
STUDENT_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 8: 2.306, 10: 2.228}
"""The 97.5 % quantile of Student's distribution, by degrees of freedom."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its 95 % interval.

    The half-widths of two intervals are added in quadrature: over prompts, for which the mean over
    seeds is resampled, and over seeds, by Student's distribution. With one seed the latter is
    unknown, and left out.
    """

    mean: float
    low: float
    high: float
    of_seeds: tuple[float, ...] = ()

    @classmethod
    def of(cls, of_seeds: FloatArray, low: float, high: float, width: float) -> "Estimate":
        """From what each seed has (s,), the ends over prompts, and the half-width over seeds."""
        mean = float(np.mean(of_seeds))
        below, above = (math.hypot(max(it, 0.0), width) for it in (mean - low, high - mean))
        return cls(mean, mean - below, mean + above, tuple(map(float, of_seeds)))

    @property
    def as_json(self) -> dict[str, Any]:
        """With six significant digits."""
        names = ("mean", "low", "high")
        found: dict[str, Any] = {name: float(f"{getattr(self, name):.6g}") for name in names}
        return found | {"of_seeds": [float(f"{it:.6g}") for it in self.of_seeds]}


def half_width(*of_seeds: FloatArray) -> float:
    """Of the interval of a mean (or of the difference of two) over seeds; 0 with one seed each."""
    degrees = sum(len(values) - 1 for values in of_seeds)
    if not degrees:
        return 0.0
    quantile = STUDENT_T[max(it for it in STUDENT_T if it <= degrees)]
    squares = sum(float(np.var(it, ddof=1)) / len(it) for it in of_seeds if len(it) > 1)
    return quantile * math.sqrt(squares)


def over_prompts(statistic: Callable[[FloatArray], float], num_prompts: int) -> tuple[float, float]:
    """The ends of a statistic of prompts' weights (p,), resampled."""
    found = [statistic(weights) for weights in draw_weights(num_prompts, NUM_RESAMPLES)]
    low, high = np.percentile(found, TAILS)
    return float(low), float(high)


def ratio(own_sp: FloatArray, reference_p: FloatArray) -> Estimate:
    """The ratio of two means over prompts."""
    mean_p = own_sp.mean(0)
    low, high = over_prompts(lambda w: float(w @ mean_p / (w @ reference_p)), len(reference_p))
    of_seeds = own_sp.sum(1) / reference_p.sum()
    return Estimate.of(of_seeds, low, high, half_width(of_seeds))


def gain(own_sp: FloatArray, other_sp: FloatArray, reference_p: FloatArray) -> Estimate:
    """The difference of two students' ratios, of the same prompts and noises."""
    mean_p = own_sp.mean(0) - other_sp.mean(0)
    low, high = over_prompts(lambda w: float(w @ mean_p / (w @ reference_p)), len(reference_p))
    both = [it.sum(1) / reference_p.sum() for it in (own_sp, other_sp)]
    difference = np.array([both[0].mean() - both[1].mean()])
    return Estimate.of(difference, low, high, half_width(*both))


def median(values_spi: FloatArray) -> Estimate:
    """The median over images, averaged over seeds."""
    num_prompts = values_spi.shape[1]

    def resampled(weights_p: FloatArray) -> float:
        chosen = np.repeat(np.arange(num_prompts), weights_p.astype(int))
        return float(np.median(values_spi[:, chosen], axis=(1, 2)).mean())

    of_seeds = np.median(values_spi, axis=(1, 2))
    return Estimate.of(of_seeds, *over_prompts(resampled, num_prompts), half_width(of_seeds))


def of_intervals(intervals_s3: FloatArray) -> Estimate:
    """From each seed's mean, low and high over prompts; their mean stands for that of the mean."""
    means, lows, highs = intervals_s3.T
    return Estimate.of(means, float(lows.mean()), float(highs.mean()), half_width(means))
