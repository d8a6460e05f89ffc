"""How near is a model's set of images to the reference's, at other noises? Measures and intervals.

Measures of pairs (`of_pairs`) compare images of the same noise. A student may draw another, equally
good image from it, and loses nothing if it does; so these measures compare sets.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from distillery.measures import intervals
from distillery.measures.intervals import ConfidenceInterval, FloatArray, Groups
from distillery.measures.measure import Need
from distillery.measures.of_judge import normalise
from distillery.measures.of_sets import (
    ACROSS_HALVES,
    OF_SETS,
    diversity_of_prompts,
    median_bandwidth,
    mmd_squared,
    mmd_terms,
)

BoolArray = npt.NDArray[np.bool_]
Vector = tuple[float, ...]
Intervals = dict[str, ConfidenceInterval | None]

NUM_BLOCKS = 20
"""Blocks of prompts that are left out in turn for an interval."""
MAX_IMAGES = 4096
"""Of each model, in whole prompts, for all but diversity. Time and memory grow as the square: with
four models and 1,024 features 3 minutes of one thread, 1.06 GiB."""
OF_SET = {measure.name: measure for measure in OF_SETS}
DIVERSITY = "diversity"
"""Of all images, by prompt; every other measure is of `MAX_IMAGES`, and compares."""


def count_prompts(num_prompts: int, per_prompt: int) -> int:
    """How many of the prompts are in the sets: the first ones, up to `MAX_IMAGES` images."""
    return min(num_prompts, max(MAX_IMAGES // per_prompt, 1))


def find_left_out(num_features: int, num_prompts: int, per_prompt: int) -> dict[str, Need]:
    """The measures that a run has too few images for, and what they would take."""
    num_prompts = count_prompts(num_prompts, per_prompt)
    num_images = num_prompts * per_prompt
    needs = {measure.name: measure.needs(num_features) for measure in OF_SETS}
    return {
        measure: need
        for measure, need in needs.items()
        if num_images < need.images or per_prompt < need.per_prompt or num_prompts < need.prompts
    }


def describe_left_out(left_out: Mapping[str, Need], noun: str = "image") -> str:
    """Which measures lack images, or clips, and how many they take; empty if none does."""
    by_need: dict[Need, list[str]] = {}
    for measure, need in left_out.items():
        by_need.setdefault(need, []).append(OF_SET[measure].words)
    return "; ".join(
        f"{', '.join(measures)}: at least {need.images} {noun}s of each model, {need.per_prompt} "
        f"of each prompt{f', of {need.prompts} prompts' if need.prompts > 1 else ''}"
        for need, measures in by_need.items()
    )


def split_halves(groups: Groups) -> BoolArray:
    """Which images are in the first half, shape (b,): two sets without a common noise.

    Each prompt's images go to the halves in turn, and prompts begin with one half in turn. So both
    halves have all prompts, which are the larger part of what sets differ by, every image is used,
    and the halves differ by one image at the most, for odd numbers too. A model's first half is
    then compared with the reference's second, and its second with the first: each image of the
    model once, each of the reference once.
    """
    number_b = pd.Series(groups.of_image_b).groupby(groups.of_image_b).cumcount().to_numpy()
    is_first: BoolArray = (number_b + groups.of_image_b) % 2 == 0
    return is_first


@dataclass(frozen=True)
class Estimate:
    """A number of two sets, and the same without each block of prompts, shape (k,)."""

    value: float
    without_k: FloatArray

    def ratio_to(self, other: "Estimate", num_resamples: int) -> ConfidenceInterval | None:
        """The ratio of two numbers of the same prompts; None where one of them is not positive.

        Its interval is that of its logarithm: a ratio to a small number has a long upper tail.
        """
        both = (self, other)
        if min(it.value for it in both) <= 0 or any(np.any(it.without_k <= 0) for it in both):
            return None
        logarithm = Estimate(
            math.log(self.value / other.value), np.log(self.without_k / other.without_k)
        )
        found = logarithm.interval(num_resamples)
        low, high = (
            None if bound is None else math.exp(bound) for bound in (found.low, found.high)
        )
        return ConfidenceInterval.of(self.value / other.value, low, high)

    def interval(
        self, num_resamples: int, ends: intervals.Ends = intervals.NO_ENDS
    ) -> ConfidenceInterval:
        """The number with a 95 % interval: bootstrap-t over the jackknife's pseudo-values.

        It ends where the number itself does.

        Blocks of prompts are left out in turn (delete-a-group jackknife; Efron & Tibshirani 1993,
        section 11.5), since resampled prompts would put images into a set twice, which makes sets
        nearer to each other. Pseudo-values are shifted to the number itself: the jackknife would
        correct a part of its bias, and a ratio to a floor of the same bias needs none.
        """
        k = len(self.without_k)
        if k == 0:
            return ConfidenceInterval.of(self.value, None, None)
        values_k = self.value + (k - 1) * (self.without_k.mean() - self.without_k)
        blocks = Groups(np.arange(k), k)
        weights_rk = intervals.draw_weights(k, num_resamples)
        return intervals.bootstrap_mean(values_k, blocks, weights_rk, ends)


def measure_sets(
    own_bd: FloatArray,
    reference_bd: FloatArray,
    groups: Groups,
    width: float,
    left_out: Collection[str],
) -> dict[str, Estimate]:
    """A model's distances to the reference at other noises, but for those that are left out.

    Args:
        own_bd, reference_bd: features of the same samples, rows of length one, sorted by prompt.
        left_out: measures of `OF_SETS` that the images do not suffice for.
    """
    found = {}
    if "mmd" not in left_out:
        found["mmd"] = _measure_mmd((own_bd, groups), (reference_bd, groups), width)
    return found | _measure_halves(own_bd, reference_bd, groups, left_out)


def measure_floor(
    reference_bd: FloatArray, groups: Groups, width: float, left_out: Collection[str]
) -> dict[str, Estimate]:
    """The reference's distances to itself at other noises: one half against the other.

    Its sets have the size of a model's, and so the distances have the same bias. See
    `measure_sets`.
    """
    found = {}
    if "mmd" not in left_out and "diversity" not in left_out:
        is_first_b = split_halves(groups)
        first, second = (
            (reference_bd[chosen_b], Groups(groups.of_image_b[chosen_b], groups.num_groups))
            for chosen_b in (is_first_b, ~is_first_b)
        )
        found["mmd"] = _measure_mmd(first, second, width)
    return found | _measure_halves(reference_bd, reference_bd, groups, left_out)


def _measure_halves(
    own_bd: FloatArray, reference_bd: FloatArray, groups: Groups, left_out: Collection[str]
) -> dict[str, Estimate]:
    """The measures that need sets without a common noise."""
    found: dict[str, Estimate] = {}
    for names, measure in ACROSS_HALVES.items():
        if not set(names) & set(left_out):
            found |= _across_halves(names, measure, own_bd, reference_bd, groups)
    return found


def _across_halves(
    names: Sequence[str],
    measure: Callable[[FloatArray, FloatArray], Vector],
    own_bd: FloatArray,
    reference_bd: FloatArray,
    groups: Groups,
) -> dict[str, Estimate]:
    """A measure of a model's half against the reference's other half, averaged over both halves."""
    is_first_b = split_halves(groups)

    def measure_both(keep_p: BoolArray) -> Vector:
        keep_b = keep_p[groups.of_image_b]
        halves = (keep_b & is_first_b, keep_b & ~is_first_b)
        both = [measure(own_bd[one], reference_bd[two]) for one, two in (halves, halves[::-1])]
        return tuple(np.mean(both, axis=0))

    return dict(zip(names, _jackknife(measure_both, groups.num_groups), strict=True))


def _measure_mmd(
    own: tuple[FloatArray, Groups], other: tuple[FloatArray, Groups], width: float
) -> Estimate:
    """The squared MMD of two sets, each with its prompts.

    It compares different prompts only, so that all images serve at once, in both sets.
    """
    terms_pp = mmd_terms(*own, *other, width)

    def measure(keep_p: BoolArray) -> Vector:
        return (mmd_squared(terms_pp[np.ix_(keep_p, keep_p)]),)

    return _jackknife(measure, len(terms_pp))[0]


def _jackknife(measure: Callable[[BoolArray], Vector], num_prompts: int) -> list[Estimate]:
    """Each number that `measure` gives for all prompts, and without each block of them.

    Args:
        measure: takes which prompts to keep, shape (p,).
        num_prompts: of the sets; fewer than `NUM_BLOCKS` are blocks of one.
    """
    block_p = np.arange(num_prompts) % NUM_BLOCKS
    values = measure(np.ones(num_prompts, dtype=bool))
    # Fewer give no interval, and of two prompts one cannot be left out.
    blocks = range(block_p.max() + 1) if num_prompts >= intervals.MIN_RESAMPLED else ()
    without = [measure(block_p != block) for block in blocks]
    return [
        Estimate(value, np.array([numbers[number] for numbers in without]))
        for number, value in enumerate(values)
    ]


def summarise_sets(
    features: Mapping[str, FloatArray],
    reference: str,
    groups: Groups,
    left_out: Collection[str],
    weights_rp: FloatArray,
) -> dict[str, Intervals]:
    """Every measure of every model, with intervals; None for what is left out.

    Args:
        features: of each model's images (b, d), not normalised, of the same samples.
        reference: the model that the others are compared with.
        groups: the prompts of the rows, which are sorted by prompt.
        left_out: see `measure_sets`.
        weights_rp: resampled prompts, see `intervals.draw_weights`.

    Returns:
        Of each model: each of `OF_SETS` (of the reference itself: the floor, but of diversity),
        and its ratio to the reference's where it has one.
    """
    units = {name: normalise(rows) for name, rows in features.items()}
    num_kept = count_prompts(groups.num_groups, int(groups.sizes().max()))
    is_kept_b = groups.of_image_b < num_kept
    sets = Groups(groups.of_image_b[is_kept_b], num_kept)
    cut = {name: rows[is_kept_b] for name, rows in units.items()}
    width = 1.0 if "mmd" in left_out else median_bandwidth(cut[reference])
    floor = measure_floor(cut[reference], sets, width, left_out)
    estimates = {
        name: floor
        if name == reference
        else measure_sets(rows, cut[reference], sets, width, left_out)
        for name, rows in cut.items()
    }
    prompts = Groups(np.arange(groups.num_groups), groups.num_groups)
    diversity = {}
    if "diversity" not in left_out:
        diversity = {name: diversity_of_prompts(rows, groups) for name, rows in units.items()}
    return {
        name: _intervals(found, floor, num_kept, len(weights_rp))
        | _diversity(diversity.get(name), diversity.get(reference), prompts, weights_rp)
        for name, found in estimates.items()
    }


def _intervals(
    found: Mapping[str, Estimate],
    floor: Mapping[str, Estimate],
    num_prompts: int,
    num_resamples: int,
) -> Intervals:
    """Of a model's distances, and of some as a multiple of their floor."""
    cells: Intervals = {}
    for name, measure in OF_SET.items():
        if name == DIVERSITY:
            continue
        own = found.get(name)
        interval = own.interval(num_resamples, measure.ends) if own else None
        if own and measure.is_share:
            interval = _of_share(own, num_prompts, interval)
        cells[name] = interval
        if measure.ratio:
            above = own if found is not floor else None
            cells[measure.ratio_key] = above.ratio_to(floor[name], num_resamples) if above else None
    return cells


def _of_share(
    estimate: Estimate, num_prompts: int, found: ConfidenceInterval | None
) -> ConfidenceInterval | None:
    """Wilson's interval where leaving blocks out finds no spread, as at 100 %."""
    is_level = len(estimate.without_k) > 0 and bool(np.all(estimate.without_k == estimate.value))
    if not is_level:
        return found
    return ConfidenceInterval.of(estimate.value, *intervals.wilson(estimate.value, num_prompts))


def _diversity(
    own_p: FloatArray | None,
    reference_p: FloatArray | None,
    prompts: Groups,
    weights_rp: FloatArray,
) -> Intervals:
    """Of a model's prompts, and over the reference's."""
    measure = OF_SET[DIVERSITY]
    own: ConfidenceInterval | None = None
    ratio: ConfidenceInterval | None = None
    if own_p is not None and reference_p is not None:
        own = intervals.bootstrap_mean(own_p, prompts, weights_rp, measure.ends)
        if own_p is not reference_p:
            ratio = intervals.bootstrap_ratio(own_p, reference_p, prompts, weights_rp)
    return {measure.name: own, measure.ratio_key: ratio}
