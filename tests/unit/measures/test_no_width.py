"""No measure has an interval without a width: a share at its edge, equal images, a constant."""

import math

import numpy as np
import pandas as pd
import pytest

from distillery.measures import image_sets, intervals
from distillery.measures import score as evaluation
from distillery.measures.intervals import Groups

NUM_FEATURES = 3
KINDS = ("equal images", "all found", "none found", "one differs", "drawn")


def features(kind, groups, of_reference):
    generator = np.random.default_rng(3)
    base = generator.normal(size=(len(groups.of_image_b), NUM_FEATURES))
    if of_reference or kind == "equal images":
        return base
    if kind == "one differs":
        return np.concatenate([base[:-1], -base[-1:]])
    return base + 0.5 * generator.normal(size=base.shape) + (5 if kind == "none found" else 0)


def scores(kind, groups, of_reference):
    number = len(groups.of_image_b)
    draw = np.random.default_rng(4).uniform(0.2, 0.8, size=number)
    level = np.full(number, 0.5)
    is_level = of_reference or kind != "drawn"
    values = level if is_level else draw
    if kind == "one differs" and not of_reference:
        values = np.concatenate([level[:-1], [0.7]])
    rank = {"none found": 2}.get(kind, 1)
    nothing = math.nan if of_reference else 1.0
    return pd.DataFrame(
        {"clip_score": values, "rank": rank, "latents_mse": nothing * (values - 0.5) ** 2,
         "psnr_db": nothing * (100.0 if is_level else 40 * values),
         "high_frequency": nothing * (1.0 if is_level else values)}
    )  # fmt: skip


def in_tree(found, path=""):
    """Every interval in a tree, by its path."""
    if isinstance(found, intervals.ConfidenceInterval):
        yield path, found.low, found.high
    elif isinstance(found, dict) and found.keys() == {"mean", "low", "high"}:
        yield path, found["low"], found["high"]
    elif isinstance(found, dict):
        for name, value in found.items():
            yield from in_tree(value, f"{path}/{name}")


@pytest.mark.parametrize("num_prompts", [4, 8, 24])
@pytest.mark.parametrize("kind", KINDS)
def test_every_interval_has_a_width_or_there_is_none(kind, num_prompts):
    groups = Groups.of([str(number // 2) for number in range(2 * num_prompts)])
    weights = intervals.draw_weights(num_prompts, 200)
    own, reference = (scores(kind, groups, it) for it in (False, True))
    of_both = {name: features(kind, groups, name == "teacher") for name in ("teacher", "student")}
    left_out = image_sets.find_left_out(NUM_FEATURES, num_prompts, 2)
    found = {
        "means": evaluation._means(own, groups, weights),
        "reference": evaluation._means(reference, groups, weights),
        "paired": evaluation._paired(own, reference, groups, weights),
        "self": evaluation._paired(own, own, groups, weights),
        "sets": image_sets.summarise_sets(of_both, "teacher", groups, left_out, weights),
    }
    every = [*in_tree(found)]
    assert {path.split("/")[1] for path, *_ in every} == {*found}
    flat = [path for path, low, high in every if low is not None and low == high]
    assert flat == []


def test_a_coverage_of_all_has_wilsons_interval():
    """Of 24 prompts as R@1 has it: 86 % to 100 %."""
    estimate = image_sets.Estimate(1.0, np.ones(20))
    level = image_sets._of_share(estimate, 24, estimate.interval(200, (0.0, 1.0)))
    assert (level.low, level.high) == pytest.approx((0.862, 1.0), abs=1e-3)
    spread = image_sets.Estimate(0.9, np.linspace(0.88, 0.92, 20))
    kept = spread.interval(200, (0.0, 1.0))
    assert image_sets._of_share(spread, 24, kept) is kept
