"""The measures against formulas written out here, and intervals against known answers."""

import math
from functools import partial

import numpy as np
import pytest

from distillery.measures import intervals, of_judge, of_pairs
from distillery.measures.intervals import Groups
from distillery.measures.lists import BY_NAME


def test_psnr_of_a_known_error():
    """Every pixel off by 10: the mean squared error is 100."""
    reference = np.full((4, 5, 3), 100, dtype=np.uint8)
    image = reference + np.uint8(10)
    assert of_pairs.psnr_db(image, reference) == pytest.approx(10 * math.log10(255**2 / 100))


def test_psnr_of_a_clip_is_over_all_its_frames():
    """Errors of 10, 20 and 0 in three frames: not the mean of three decibels, one infinite."""
    reference = np.full((3, 4, 5, 3), 100, dtype=np.uint8)
    clip = reference + np.array([10, 20, 0], dtype=np.uint8)[:, None, None, None]
    error = (10**2 + 20**2) / 3
    assert of_pairs.psnr_db(clip, reference) == pytest.approx(10 * math.log10(255**2 / error))
    with pytest.raises(ValueError, match=r"\(2, 4, 5, 3\) and \(3, 4, 5, 3\)"):
        of_pairs.psnr_db(clip[:2], reference)


def test_psnr_does_not_wrap_around():
    """0 and 255 in uint8 differ by 255, not by 1."""
    black = np.zeros((2, 2, 3), dtype=np.uint8)
    white = np.full((2, 2, 3), 255, dtype=np.uint8)
    assert of_pairs.psnr_db(black, white) == pytest.approx(0.0)


def test_psnr_of_equal_images_is_the_ceiling():
    image = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    assert of_pairs.psnr_db(image, image) == of_pairs.IDENTICAL_PSNR_DB


def test_other_size_is_refused():
    with pytest.raises(ValueError, match=r"\(2, 2, 3\) and \(4, 4, 3\)"):
        of_pairs.psnr_db(np.zeros((2, 2, 3), np.uint8), np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(ValueError, match="latents of"):
        of_pairs.latents_mse(np.zeros((1, 1, 2, 2), np.float32), np.zeros((1, 1, 2, 1), np.float32))


def test_latents_mse_is_the_mean_over_all_elements():
    latents = np.zeros((2, 1, 2, 2), np.float32)
    other = latents.copy()
    other[0, 0, 0, 0] = 4.0
    assert of_pairs.latents_mse(latents, other) == pytest.approx(16 / 8)


def test_cosine_keeps_its_sign_and_ignores_length():
    left = np.array([[1.0, 0.0], [3.0, 4.0], [0.0, -2.0]])
    right = np.array([[5.0, 0.0], [4.0, 3.0], [0.0, 7.0]])
    assert of_judge.cosine_similarity(left, right) == pytest.approx([1.0, 24 / 25, -1.0])


def test_zero_embedding_is_refused():
    with pytest.raises(ValueError, match="zero or not finite"):
        of_judge.normalise(np.zeros((1, 3)))


def test_ranks_counted_by_hand():
    """Prompts at 0, 90 and 45 degrees; images at 10, 50 and 80 degrees."""

    def unit(degrees):
        angle = np.radians(degrees)
        return np.stack([np.cos(angle), np.sin(angle)], axis=-1)

    prompts = unit(np.array([0.0, 90.0, 45.0]))
    images = unit(np.array([10.0, 50.0, 80.0]))
    # From 10: 0 (10 away), 45 (35), 90 (80). From 50: 45 (5), 90 (40), 0 (50). From 80: 90, 45, 0.
    own = np.array([0, 0, 2])
    assert of_judge.retrieval_ranks(images, prompts, own).tolist() == [1, 3, 2]
    assert of_judge.retrieval_ranks(images, prompts, own, block=1).tolist() == [1, 3, 2]


def test_ties_count_against_the_image():
    prompts = np.ones((4, 2))
    assert of_judge.retrieval_ranks(np.ones((1, 2)), prompts, np.array([2])).tolist() == [4]


@pytest.mark.parametrize("num_prompts", [8, 16, 50])
@pytest.mark.parametrize("shape", ["normal", "exponential"])
def test_intervals_cover_for_few_and_for_skewed_values(shape, num_prompts):
    """Of 95 % intervals about 95 % cover the truth."""
    generator = np.random.default_rng(1)
    draw = {"normal": partial(generator.normal, 1.0), "exponential": generator.exponential}[shape]
    groups = Groups.of([str(number) for number in range(num_prompts)])
    weights = intervals.draw_weights(num_prompts, 500)
    found = [intervals.bootstrap_mean(draw(1.0, num_prompts), groups, weights) for _ in range(400)]
    covered = sum(it.low <= 1.0 <= it.high for it in found) / 400
    assert 0.91 <= covered <= 0.99


def test_intervals_of_a_ratio_cover():
    """0.9 of a skewed partner, with noise, for 8 prompts."""
    generator = np.random.default_rng(1)
    groups, weights = Groups.of(list("abcdefgh")), intervals.draw_weights(8, 500)
    covered = 0
    for _ in range(400):
        others = generator.exponential(1.0, 8) + 0.1
        own = 0.9 * others + generator.normal(0.0, 0.2, 8)
        interval = intervals.bootstrap_ratio(own, others, groups, weights)
        covered += interval.low <= 0.9 <= interval.high
    assert 0.91 <= covered / 400 <= 0.99


@pytest.mark.parametrize("num_prompts", [8, 32, 128])
@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_intervals_of_a_share_cover(share, num_prompts):
    generator = np.random.default_rng(2)
    groups = Groups.of([str(number) for number in range(num_prompts)])
    hits = (generator.random((2000, num_prompts)) < share).astype(float)
    found = [intervals.wilson_share(row, groups) for row in hits]
    assert sum(it.low <= share <= it.high for it in found) / 2000 >= 0.92


def test_a_share_of_all_or_none_is_not_certain():
    """Wilson 1927 by hand: of n hits of n the lower end is n / (n + z²)."""
    groups = Groups.of(list("abcd"))
    interval = intervals.wilson_share(np.ones(4), groups)
    assert (interval.mean, interval.high) == (1.0, 1.0)
    assert interval.low == pytest.approx(4 / (4 + 1.959964**2), rel=1e-5)
    assert intervals.wilson_share(np.zeros(4), groups).high == pytest.approx(1 - interval.low)


@pytest.mark.parametrize("images", [1, 2, 5])
def test_shares_count_prompts_whatever_their_images(images):
    """Both by hand, of 12 prompts: Wilson 1927 for 9 hits, Bonett and Price 2012 for 3 that gain
    and 1 that loses."""
    groups = Groups.of([name for name in "abcdefghijkl" for _ in range(images)])
    share, number, z = 9 / 12, 12, 1.959964
    interval = intervals.wilson_share(np.repeat([1.0] * 9 + [0.0] * 3, images), groups)
    centre = (share + z**2 / (2 * number)) / (1 + z**2 / number)
    reach = math.sqrt(share * (1 - share) / number + z**2 / (4 * number**2))
    reach *= z / (1 + z**2 / number)
    assert interval.mean == share
    assert interval.low == pytest.approx(centre - reach, rel=1e-5)
    assert interval.high == pytest.approx(centre + reach, rel=1e-5)
    changes = np.repeat([1.0] * 3 + [-1.0] + [0.0] * 8, images)
    difference = intervals.share_difference(changes, groups)
    gained, lost = 4 / 14, 2 / 14
    reach = z * math.sqrt((gained + lost - (gained - lost) ** 2) / 14)
    assert difference.low == pytest.approx(gained - lost - reach, rel=1e-5)
    assert difference.high == pytest.approx(gained - lost + reach, rel=1e-5)


def test_the_interval_is_the_bootstrap_t_of_the_books():
    """Written out for each resample, by the textbook's standard error of a mean."""
    values = np.array([0.3, 1.1, 2.7, 0.4, 9.0, 1.9, 0.7, 3.1])
    weights = intervals.draw_weights(8, 300)
    mean, error = values.mean(), values.std(ddof=1) / math.sqrt(8)
    deviations = []
    for counts in weights.astype(int):
        drawn = np.repeat(values, counts)
        spread = drawn.std(ddof=1) / math.sqrt(8)
        deviations.append((drawn.mean() - mean) / spread if spread > 1e-12 else math.inf)
    lowest, highest = np.quantile(deviations, [0.025, 0.975], method="nearest")
    interval = intervals.bootstrap_mean(values, Groups.of(list("abcdefgh")), weights)
    assert interval.low == pytest.approx(mean - highest * error, rel=1e-4)
    assert interval.high == pytest.approx(mean - lowest * error, rel=1e-4)


def test_values_without_spread_leave_a_bound_open():
    """In a third of the resamples all values are equal: nobody knows how far up it goes."""
    groups, weights = Groups.of(list("abcdefgh")), intervals.draw_weights(8, 500)
    values = np.array([*[0.3] * 7, 0.5])
    interval = intervals.bootstrap_mean(values, groups, weights)
    assert interval.high is None
    assert interval.low < 0.35
    assert intervals.bootstrap_mean(values, groups, weights, (-1.0, 1.0)).high == 1.0, "its end"
    same = intervals.bootstrap_mean(np.full(8, 0.1), groups, weights)
    assert same == intervals.ConfidenceInterval(0.1, None, None)


def test_images_of_one_prompt_are_not_independent():
    """Four copies of each prompt's value leave the interval as it was, not half as wide."""
    values = np.random.default_rng(2).normal(size=40)
    names = [str(number) for number in range(40)]
    weights = intervals.draw_weights(40, 1000)
    once = intervals.bootstrap_mean(values, Groups.of(names), weights)
    four_times = intervals.bootstrap_mean(
        np.repeat(values, 4), Groups.of(np.repeat(names, 4)), weights
    )
    assert four_times == once


@pytest.mark.parametrize("num_prompts", [1, 3, 4, 7])
def test_too_few_prompts_give_no_interval(num_prompts):
    """Four are enough for a share, but not to be resampled."""
    groups = Groups.of(list("abcdefg")[:num_prompts] * 2)
    weights = intervals.draw_weights(num_prompts, 100)
    values = np.repeat([0.0, 1.0], num_prompts)
    expected = intervals.ConfidenceInterval(0.5, None, None)
    assert intervals.bootstrap_mean(values, groups, weights) == expected
    assert intervals.bootstrap_ratio(values, 1 + 0 * values, groups, weights) == expected
    assert intervals.median_difference(0 * values, values, groups, weights) == expected
    assert (intervals.wilson_share(values, groups) == expected) == (num_prompts < 4)


def test_intervals_end_where_the_measure_does():
    """Two images equal to the reference's lead the interval beyond 100 dB."""
    groups, weights = Groups.of(list("abcdefgh")), intervals.draw_weights(8, 2000)
    values = np.array([80.0, 80.5, 81.0, 80.2, 80.7, 81.2, 100.0, 100.0])
    free = intervals.bootstrap_mean(values, groups, weights)
    within = intervals.bootstrap_mean(values, groups, weights, BY_NAME["psnr_db"].ends)
    assert free.high > 100.0
    assert within == intervals.ConfidenceInterval(free.mean, free.low, 100.0)
    assert intervals.difference_ends((0.0, 100.0)) == (-100.0, 100.0)
    assert intervals.difference_ends((0.0, math.inf)) == intervals.NO_ENDS


def test_a_ratio_of_what_is_never_negative_ends_at_zero():
    """Most prompts as the others', two without any: resamples without the two are sure."""
    groups, weights = Groups.of(list("abcdefgh")), intervals.draw_weights(8, 2000)
    others = np.ones(8)
    own = np.array([4.0, 4.1, 3.9, 4.05, 4.2, 3.95, 1e-3, 2e-3])
    assert intervals.bootstrap_ratio(own, others, groups, weights).low == 0.0
    assert intervals.bootstrap_ratio(own - 2.0, others, groups, weights).low < 0.0


def test_ratio_of_a_constant_factor_has_no_interval():
    """Paired: if each value is 0.9 of its partner, so is every resample's: no spread was found."""
    others = np.random.default_rng(4).uniform(0.2, 0.8, size=25)
    groups = Groups.of([str(number) for number in range(25)])
    ratio = intervals.bootstrap_ratio(0.9 * others, others, groups, intervals.draw_weights(25, 300))
    assert ratio == intervals.ConfidenceInterval(0.9, None, None)


def test_ratio_is_undefined_where_the_lower_mean_can_be_negative():
    groups = Groups.of(["a", "b", "c"])
    weights = intervals.draw_weights(3, 300)
    own = np.ones(3)
    assert intervals.bootstrap_ratio(own, np.array([-1.0, 0.2, 0.9]), groups, weights) is None


def test_unequal_numbers_of_images_are_weighted_by_image():
    groups = Groups.of(["a", "b", "b", "b"])
    weights = np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0]])
    interval = intervals.bootstrap_mean(np.array([0.0, 4.0, 4.0, 4.0]), groups, weights)
    assert interval.mean == pytest.approx(3.0)


def test_laplacian_energy_by_hand():
    """One pixel of 10 on 0 gives -40 there and 10 at its four neighbours; 3 × 3 are inside."""
    image = np.zeros((5, 5, 3), dtype=np.uint8)
    image[2, 2] = 10
    assert of_pairs.laplacian_energy(image) == pytest.approx((40**2 + 4 * 10**2) / 9)
    ramp = np.repeat(np.arange(0, 50, 10, dtype=np.uint8)[:, None, None], 5, axis=1)
    assert of_pairs.laplacian_energy(np.repeat(ramp, 3, axis=2)) == 0.0


def test_high_frequencies_tell_blur_from_artefacts():
    generator = np.random.default_rng(5)
    reference = generator.integers(0, 256, size=(16, 16, 3), dtype=np.uint8)
    blurred = (reference // 4 + 96).astype(np.uint8)  # a sixteenth of the energy
    assert of_pairs.high_frequency_ratio(blurred, reference) == pytest.approx(1 / 16, rel=0.05)
    assert of_pairs.high_frequency_ratio(reference, blurred) == pytest.approx(16, rel=0.05)
    assert of_pairs.high_frequency_ratio(reference, reference) == 1.0
    flat = np.zeros_like(reference)
    assert of_pairs.high_frequency_ratio(flat, flat) == 1.0
    assert math.isfinite(of_pairs.high_frequency_ratio(reference, flat))
    with pytest.raises(ValueError, match="cannot be compared"):
        of_pairs.high_frequency_ratio(reference, reference[:8])


def test_high_frequencies_of_a_clip_are_those_of_its_frames():
    """What changes in time alone has none, however much it flickers."""
    image = np.random.default_rng(5).integers(0, 256, size=(16, 16, 3), dtype=np.uint8)
    flat = np.full_like(image, 128)
    flickering, still = np.stack([flat, flat + 90, flat]), np.stack([flat, flat, flat])
    assert of_pairs.high_frequency_ratio(flickering, still) == 1.0
    clip, rounding = np.stack([image, flat, flat]), of_pairs.ROUNDING_ENERGY
    expected = (of_pairs.laplacian_energy(image) / 3 + rounding) / rounding
    assert of_pairs.high_frequency_ratio(clip, still) == pytest.approx(expected)


def test_the_rounding_energy_is_that_of_rounding():
    pixels = np.random.default_rng(6).uniform(0, 255, size=(400, 400, 1))
    errors = np.rint(pixels) - pixels
    assert of_pairs.laplacian_energy(errors) == pytest.approx(of_pairs.ROUNDING_ENERGY, rel=0.02)


@pytest.mark.parametrize("num_prompts", [8, 32, 128])
def test_intervals_of_a_median_cover(num_prompts):
    generator = np.random.default_rng(8)
    groups = Groups.of([str(number) for number in range(num_prompts)])
    found = [
        intervals.median_interval(generator.exponential(size=num_prompts), groups)
        for _ in range(1000)
    ]
    assert 0.92 <= np.mean([it.low <= math.log(2) <= it.high for it in found]) <= 0.99


def test_a_median_is_not_moved_by_one_image_and_needs_prompts_for_its_interval():
    interval = intervals.median_interval(np.array([1.0, 2.0, 1e9]), Groups.of(list("abc")))
    assert interval == intervals.ConfidenceInterval(2.0, None, None)


@pytest.mark.parametrize("num_prompts", [8, 24, 80])
@pytest.mark.parametrize(("gained", "lost"), [(0.05, 0.01), (0.05, 0.05), (0.3, 0.1), (0.0, 0.0)])
def test_intervals_of_a_difference_of_shares_cover(gained, lost, num_prompts):
    generator = np.random.default_rng(3)
    groups = Groups.of([str(number) for number in range(num_prompts)])
    chances = [lost, 1 - gained - lost, gained]
    changes = generator.choice([-1.0, 0.0, 1.0], size=(2000, num_prompts), p=chances)
    found = [intervals.share_difference(row, groups) for row in changes]
    assert np.mean([it.low <= gained - lost <= it.high for it in found]) >= 0.93


def test_a_difference_of_shares_has_both_bounds_where_one_image_changes():
    """One of 24 gains, by hand: (2 - 1) / 26 and z times the root of (3 / 26 - 1 / 26²) / 26."""
    groups = Groups.of([str(number) for number in range(24)])
    interval = intervals.share_difference(np.eye(24)[0], groups)
    reach = 1.959964 * math.sqrt((3 / 26 - 1 / 26**2) / 26)
    assert interval.mean == pytest.approx(1 / 24, rel=1e-5)
    assert interval.low == pytest.approx(1 / 26 - reach, rel=1e-5)
    assert interval.high == pytest.approx(1 / 26 + reach, rel=1e-5)
    assert intervals.share_difference(np.ones(4), Groups.of(list("abcd"))).high == 1.0
    assert intervals.share_difference(-np.ones(4), Groups.of(list("abcd"))).low == -1.0
    few = intervals.share_difference(np.array([0.0, 1.0]), Groups.of(list("ab")))
    assert few == intervals.ConfidenceInterval(0.5, None, None)


def test_a_difference_of_shares_where_some_gain_and_some_lose():
    """Of 21, one gains and seven lose: (2 - 8) / 23 and z times the root of
    (10 / 23 - 6² / 23²) / 23, which is 0.2475."""
    groups = Groups.of([str(number) for number in range(21)])
    changes = np.array([1.0] + [-1.0] * 7 + [0.0] * 13)
    interval = intervals.share_difference(changes, groups)
    assert interval.mean == pytest.approx(-6 / 21, rel=1e-5)
    assert interval.low == pytest.approx(-0.508359, abs=1e-5)
    assert interval.high == pytest.approx(-0.013380, abs=1e-5)


def test_a_difference_of_medians_is_that_of_the_medians():
    """Two of three values rise a little, and the median falls."""
    before, after = np.array([1.0, 2.0, 9.0]), np.array([1.1, 1.5, 9.1])
    weights = intervals.draw_weights(3, 50)
    found = intervals.median_difference(before, after, Groups.of(list("abc")), weights)
    assert found == intervals.ConfidenceInterval(-0.5, None, None)


def test_intervals_of_a_difference_of_medians_cover():
    generator = np.random.default_rng(4)
    groups, weights = Groups.of([str(n) for n in range(30)]), intervals.draw_weights(30, 300)
    covered = 0
    for _ in range(60):
        before = generator.exponential(size=30)
        after = before * 1.5 + generator.normal(0.0, 0.05, 30)
        found = intervals.median_difference(before, after, groups, weights)
        covered += found.low <= 0.5 * math.log(2) <= found.high
    assert covered / 60 >= 0.91
