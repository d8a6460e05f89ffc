"""Distances between sets of images, against loops, closed forms and hand-computed values."""

import itertools
import math

import numpy as np
import pytest

from distillery.measures import of_sets
from distillery.measures.intervals import Groups
from distillery.measures.of_judge import normalise


def prompts(number, per_prompt=1):
    return Groups.of([str(prompt) for prompt in range(number) for _ in range(per_prompt)])


def root(matrix):
    """The symmetric root of a positive matrix by its eigenvectors."""
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ np.diag(np.sqrt(np.clip(values, 0, None))) @ vectors.T


def test_frechet_is_the_formula_with_matrix_roots():
    generator = np.random.default_rng(0)
    left = generator.normal(size=(30, 6)) @ generator.normal(size=(6, 6)) + 1.0
    right = generator.normal(size=(20, 6)) @ generator.normal(size=(6, 6))
    first, second = np.cov(left.T), np.cov(right.T)
    half = root(first)
    means = left.mean(axis=0) - right.mean(axis=0)
    expected = means @ means + np.trace(first + second - 2 * root(half @ second @ half))
    assert of_sets.frechet_distance(left, right) == pytest.approx(expected)
    assert of_sets.frechet_distance(right, left) == pytest.approx(expected)


def test_frechet_of_numbers_by_hand():
    """Means 0 and 5, standard deviations 1 and 3: 5² + (3 - 1)²."""
    left, right = np.array([[-1.0], [0.0], [1.0]]), np.array([[2.0], [5.0], [8.0]])
    assert of_sets.frechet_distance(left, right) == pytest.approx(25 + 4)


def test_equal_images_have_no_distance_at_all():
    """Rounding leaves nothing that a ratio could blow up."""
    generator = np.random.default_rng(6)
    for _ in range(20):
        images = normalise(generator.normal(size=(30, 7)))
        assert of_sets.frechet_distance(images, images) == 0.0
        copies = np.repeat(images, 3, axis=0)
        assert not of_sets.diversity_of_prompts(copies, prompts(30, 3)).any()


def test_frechet_of_few_images_is_too_large_and_falls_with_their_number():
    """What its docstring says of the bias: four times as many images leave about a quarter."""
    generator = np.random.default_rng(1)

    def mean_of(number):
        pairs = [generator.normal(size=(2, number, 4)) for _ in range(200)]
        return np.mean([of_sets.frechet_distance(*pair) for pair in pairs])

    assert 3 < mean_of(20) / mean_of(80) < 6


def test_density_and_coverage_by_hand():
    """Balls of the nearest neighbour: 0 ± 1, 1 ± 1, 3 ± 2. The image 2 is in two, 9 in none."""
    reference, images = np.array([[0.0], [1.0], [3.0]]), np.array([[2.0], [9.0]])
    found = of_sets.density_and_coverage(images, reference, neighbours=1)
    assert found == (pytest.approx(2 / (1 * 2)), pytest.approx(2 / 3))


def test_coverage_of_equal_distributions_is_the_papers():
    """Naeem et al. 2020, lemma 2, whatever the distribution; density is 1 on average."""
    number, k = 20, 5
    expected = 1 - math.prod((number - i) / (2 * number - i) for i in range(1, k + 1))
    generator = np.random.default_rng(2)
    found = [
        of_sets.density_and_coverage(*generator.exponential(size=(2, number, 3)))
        for _ in range(400)
    ]
    density, coverage = np.mean(found, axis=0)
    assert coverage == pytest.approx(expected, abs=0.01)
    assert density == pytest.approx(1.0, abs=0.05)


def test_mmd_is_the_mean_over_pairs_of_different_prompts():
    generator = np.random.default_rng(3)
    left, right = generator.normal(size=(6, 3)), generator.normal(size=(9, 3)) + 0.5
    of_left, of_right = prompts(3, 2), prompts(3, 3)

    def kernel(one, two):
        return math.exp(-float(((one - two) ** 2).sum()) / (2 * 1.5**2))

    def mean(one, of_one, two, of_two, p, q):
        rows, others = one[of_one.of_image_b == p], two[of_two.of_image_b == q]
        return np.mean([kernel(row, other) for row in rows for other in others])

    expected = [
        mean(left, of_left, left, of_left, p, q)
        + mean(right, of_right, right, of_right, p, q)
        - mean(left, of_left, right, of_right, p, q)
        - mean(right, of_right, left, of_left, p, q)
        for p, q in itertools.permutations(range(3), 2)
    ]
    terms = of_sets.mmd_terms(left, of_left, right, of_right, 1.5)
    assert np.diag(terms).tolist() == [0, 0, 0]
    assert of_sets.mmd_squared(terms) == pytest.approx(np.mean(expected))


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_mmd_of_few_images_has_no_bias(shift):
    """Of normal numbers, a kernel of width s: 2 s / √(s² + 2) (1 - exp(-shift² / 2 (s² + 2)))."""
    width, generator, groups = 1.3, np.random.default_rng(4), prompts(5)
    scale = width**2 + 2
    expected = 2 * width / math.sqrt(scale) * (1 - math.exp(-(shift**2) / (2 * scale)))
    found = []
    for _ in range(4000):
        shared, own, other = generator.normal(size=(3, 5, 1))
        # The images of a prompt have something in common in both sets, as those of one noise do.
        left, right = (shared + own) / math.sqrt(2), (shared + other) / math.sqrt(2) + shift
        found.append(of_sets.mmd_squared(of_sets.mmd_terms(left, groups, right, groups, width)))
    error = np.std(found) / math.sqrt(len(found))
    assert np.mean(found) == pytest.approx(expected, abs=3 * error)
    assert error < 0.01


def test_the_bandwidth_is_the_median_distance():
    """Of 0, 1 and 4: distances 1, 3 and 4."""
    assert of_sets.median_bandwidth(np.array([[0.0], [1.0], [4.0]])) == pytest.approx(3.0)
    assert of_sets.median_bandwidth(np.ones((3, 2))) == 1.0


def test_equal_images_have_no_distance_whatever_the_rounding():
    """Rows of length one, of which a third differ in their last bit as a device's batches do."""
    generator = np.random.default_rng(6)
    for _ in range(50):
        row = normalise(generator.normal(size=(1, 24)).astype(np.float32).astype(np.float64))
        same = np.repeat(row, 12, axis=0)
        assert of_sets.median_bandwidth(same) == 1.0
        same[::3] *= 1 + 2e-7
        assert of_sets.median_bandwidth(same) == 1.0


def test_diversity_is_the_mean_over_pairs():
    generator = np.random.default_rng(5)
    features = normalise(generator.normal(size=(7, 4)))
    groups = Groups.of(list("aaabbbb"))
    expected = [
        np.mean([1 - one @ two for one, two in itertools.combinations(features[rows], 2)])
        for rows in (slice(0, 3), slice(3, 7))
    ]
    assert of_sets.diversity_of_prompts(features, groups) == pytest.approx(expected)
    same = np.repeat(features[:1], 3, axis=0)
    assert of_sets.diversity_of_prompts(same, Groups.of(list("aaa"))) == pytest.approx([0.0])
    with pytest.raises(ValueError, match="a single image"):
        of_sets.diversity_of_prompts(features, Groups.of(list("aaabbbc")))
