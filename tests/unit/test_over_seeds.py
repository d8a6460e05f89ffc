"""Intervals of the lab hold what other prompts and other trainings would have given."""

import numpy as np
import pytest
from over_seeds import gain, half_width, median, ratio


def test_an_interval_covers_what_other_prompts_and_seeds_give():
    generator, hits = np.random.default_rng(0), 0
    for _ in range(200):
        prompts, seeds = generator.normal(0, 0.2, 40), generator.normal(0, 0.02, (3, 1))
        found = ratio(0.9 + 0.5 * prompts + seeds, 1 + 0.5 * prompts)
        hits += found.low <= 0.9 <= found.high
    assert hits / 200 > 0.9, "of 95 % intervals"


def test_seeds_widen_an_interval_by_students_distribution():
    seeds = np.array([0.90, 0.92, 0.94])
    assert half_width(seeds) == pytest.approx(4.303 * 0.02 / 3**0.5)
    assert half_width(seeds[:1]) == 0, "one seed says nothing of others"
    both = np.tile(seeds[:, None], 30)
    found = ratio(both, np.ones(30))
    assert (found.mean, found.high) == pytest.approx((0.92, 0.92 + half_width(seeds)))


def test_a_gain_is_paired_by_prompts():
    generator = np.random.default_rng(0)
    prompts = generator.normal(1, 0.5, 50)
    found = gain(np.stack([prompts + 0.01] * 2), np.stack([prompts] * 2), np.ones(50))
    assert found.mean == pytest.approx(0.01)
    assert found.high - found.low < 1e-9, "prompts differ fifty times as much as the students"


def test_a_median_is_of_all_images():
    values = np.array([[[1.0, 2.0], [3.0, 100.0]]] * 2)
    assert median(values).mean == 2.5
