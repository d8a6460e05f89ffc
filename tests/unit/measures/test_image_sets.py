"""Sets of images at other noises: the split, what is left out, and intervals."""

import numpy as np
import pytest

from distillery.measures import image_sets, intervals, of_sets
from distillery.measures.image_sets import Estimate, find_left_out, split_halves
from distillery.measures.intervals import Groups
from distillery.measures.measure import Need
from distillery.measures.of_judge import normalise

RESAMPLES = 200


def prompts(number, per_prompt):
    return Groups.of([str(prompt) for prompt in range(number) for _ in range(per_prompt)])


def draw(generator, groups, num_features, spread=0.5):
    """Features of images: what a prompt decides, and what the noise adds."""
    subjects = generator.normal(size=(groups.num_groups, num_features))
    noise = generator.normal(size=(len(groups.of_image_b), num_features))
    return subjects[groups.of_image_b] + spread * noise


def summarise(features, groups, reference="teacher"):
    """As the evaluation does it."""
    num_features = features[reference].shape[1]
    left_out = find_left_out(num_features, groups.num_groups, int(groups.sizes().min()))
    weights = intervals.draw_weights(groups.num_groups, RESAMPLES)
    return image_sets.summarise_sets(features, reference, groups, left_out, weights)


@pytest.mark.parametrize("per_prompt", [2, 3, 4, 5])
@pytest.mark.parametrize("number", [6, 7])
def test_halves_use_every_image_and_have_every_prompt(number, per_prompt):
    groups = prompts(number, per_prompt)
    is_first = split_halves(groups)
    assert abs(int(is_first.sum()) - int((~is_first).sum())) <= 1
    for half in (is_first, ~is_first):
        assert set(groups.of_image_b[half]) == set(range(number))


def test_what_needs_more_images_is_left_out():
    """The least numbers, and one image less."""
    assert find_left_out(16, 17, 2) == {}
    assert find_left_out(16, 33, 1).keys() == {"frechet", "density", "coverage", "diversity"}
    assert find_left_out(16, 16, 2) == {"frechet": Need(34)}
    assert find_left_out(4, 11, 2).keys() == {"density", "coverage"}
    assert find_left_out(4, 1, 40).keys() == {"mmd"}
    too_wide = image_sets.MAX_IMAGES // 2
    assert find_left_out(too_wide, 10_000, 2).keys() == {"frechet"}


def test_one_image_of_a_prompt_leaves_the_measure_that_needs_no_second():
    generator = np.random.default_rng(0)
    groups = prompts(40, 1)
    features = {name: draw(generator, groups, 3) for name in ("teacher", "student")}
    found = summarise(features, groups)
    measured = {name: {key for key in found[name] if found[name][key]} for name in found}
    assert measured == {"teacher": set(), "student": {"mmd"}}


def test_the_reference_drawn_again_is_at_the_floor():
    """The same images of the same noise: no measure takes that for nearness."""
    generator = np.random.default_rng(1)
    groups = prompts(40, 2)
    teacher = draw(generator, groups, 3)
    found = summarise({"teacher": teacher, "student": teacher.copy()}, groups)
    floor = found["teacher"]
    for measure in ("frechet", "density", "coverage"):
        assert found["student"][measure] == floor[measure]
    assert floor["frechet"].mean > 0.001
    assert found["student"]["frechet_ratio"] == intervals.ConfidenceInterval(1.0, None, None)
    assert found["student"]["diversity_ratio"] == intervals.ConfidenceInterval(1.0, None, None)
    assert found["student"]["mmd"].mean == pytest.approx(0.0, abs=1e-12)
    assert floor["frechet_ratio"] is floor["diversity_ratio"] is None
    assert floor["mmd"].low < 0 < floor["mmd"].high


def test_each_measure_sees_what_it_is_for():
    """Other images, and images that all noises give alike."""
    generator = np.random.default_rng(2)
    groups = prompts(60, 4)
    teacher = draw(generator, groups, 3)
    first = split_halves(groups)  # the second of each two images is a copy of the first
    dull = teacher.copy()
    dull[~first] = teacher[first]
    features = {"teacher": teacher, "moved": teacher + np.array([2.0, 0.0, 0.0]), "dull": dull}
    found = summarise(features, groups)
    assert found["moved"]["frechet_ratio"].low > 2
    assert found["moved"]["mmd"].low > 0
    assert found["moved"]["coverage"].high < found["teacher"]["coverage"].low
    assert found["dull"]["diversity_ratio"].high < 0.9
    assert found["dull"]["diversity"].mean < found["teacher"]["diversity"].mean


def test_each_half_is_compared_with_the_others_other_half():
    generator = np.random.default_rng(3)
    groups = prompts(30, 2)
    own, teacher = (normalise(draw(generator, groups, 3)) for _ in range(2))
    first = split_halves(groups)
    both = [
        of_sets.frechet_distance(own[first], teacher[~first]),
        of_sets.frechet_distance(own[~first], teacher[first]),
    ]
    found = summarise({"teacher": teacher, "own": own}, groups)
    assert found["own"]["frechet"].mean == pytest.approx(np.mean(both), rel=1e-5)
    floor = of_sets.frechet_distance(teacher[first], teacher[~first])
    assert found["teacher"]["frechet"].mean == pytest.approx(floor, rel=1e-5)
    ratio = np.mean(both) / floor
    assert found["own"]["frechet_ratio"].mean == pytest.approx(ratio, rel=1e-5)


def test_the_jackknife_of_a_mean_is_the_means_own_interval():
    values = np.random.default_rng(4).exponential(size=12)
    without = np.array([np.delete(values, number).mean() for number in range(12)])
    weights = intervals.draw_weights(12, RESAMPLES)
    expected = intervals.bootstrap_mean(values, Groups(np.arange(12), 12), weights)
    found = Estimate(values.mean(), without).interval(RESAMPLES)
    assert (found.mean, found.low, found.high) == pytest.approx(
        (expected.mean, expected.low, expected.high), rel=1e-4
    )


@pytest.mark.parametrize("number", [3, 7])
def test_too_few_prompts_give_numbers_without_an_interval(number):
    generator = np.random.default_rng(5)
    groups = prompts(number, 10)
    features = {name: draw(generator, groups, 3) for name in ("teacher", "student")}
    found = summarise(features, groups)["student"]
    assert all(found[key].mean is not None for key in found)
    assert {(it.low, it.high) for it in found.values()} == {(None, None)}


def test_a_single_image_is_left_out_without_a_warning():
    features = {"teacher": np.ones((1, 3)), "student": np.ones((1, 3))}
    assert not any(summarise(features, prompts(1, 1))["student"].values())


def test_a_floor_of_nothing_has_no_multiple():
    """A reference whose noises all give the same image."""
    generator = np.random.default_rng(6)
    groups = prompts(30, 2)
    teacher = draw(generator, groups, 3, spread=0.0)
    found = summarise({"teacher": teacher, "student": draw(generator, groups, 3)}, groups)
    assert found["student"]["frechet"].mean > 0
    assert found["student"]["frechet_ratio"] is None
    assert found["student"]["diversity_ratio"] is None


@pytest.mark.parametrize("measure", ["frechet", "frechet_ratio", "mmd", "density", "coverage"])
def test_intervals_hold_what_other_prompts_give(measure, drawn_runs):
    """About 95 % of the intervals hold the median of all runs of the same size."""
    intervals = [run[measure] for run in drawn_runs]
    middle = np.median([interval.mean for interval in intervals])
    ends = [(-np.inf if it.low is None else it.low, it.high) for it in intervals]
    covered = np.mean([low <= middle <= high for low, high in ends])
    assert 0.88 <= covered <= 1.0


@pytest.fixture(scope="module")
def drawn_runs():
    """What 50 runs of other prompts find of the same student, which is a little off."""
    generator, groups = np.random.default_rng(7), prompts(60, 2)
    runs = []
    for _ in range(50):
        teacher = draw(generator, groups, 4)
        shift = np.array([0.4, 0.0, 0.0, 0.0])
        student = teacher + shift + 0.3 * generator.normal(size=teacher.shape)
        runs.append(summarise({"teacher": teacher, "student": student}, groups)["student"])
    return runs


def test_a_large_run_is_cut_to_whole_prompts(monkeypatch):
    generator = np.random.default_rng(8)
    groups = prompts(50, 2)
    features = {name: draw(generator, groups, 3) for name in ("teacher", "student")}
    fewer = summarise({name: rows[:60] for name, rows in features.items()}, prompts(30, 2))
    monkeypatch.setattr(image_sets, "MAX_IMAGES", 61)
    found = summarise(features, groups)
    assert found["student"]["frechet"] == fewer["student"]["frechet"]
    assert found["student"]["mmd"] == fewer["student"]["mmd"]
    assert found["student"]["diversity"] != fewer["student"]["diversity"]
