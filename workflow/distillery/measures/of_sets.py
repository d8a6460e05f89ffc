"""Distances between two sets of images by their features: pure functions.

Shapes: n and m images of two sets, b images of one set, p prompts, d features. Rows of features
have length one (`of_judge.normalise`): CLIP and SigLIP are trained for the angle between features,
and the numbers are of the same size for every vision model.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from distillery.measures.intervals import NO_ENDS, ROUNDING, FloatArray, Groups
from distillery.measures.measure import PERCENT, Column, Form, Need, OfSet, Watch

NEIGHBOURS = 5
"""Of density and coverage; the value of Naeem et al. 2020, section 4.1."""


def frechet_distance(left_nd: FloatArray, right_md: FloatArray) -> float:
    """Squared Fréchet distance of two normal distributions with the sets' means and covariances.

    |mean - mean'|² + tr(C + C' - 2 (C C')^½), at least 0, in squared units of the features
    (Dowson & Landau 1982; Heusel et al. 2017, arXiv:1706.08500, eq. 6). The trace of the root is
    the sum of the singular values of X X'ᵀ for centred rows X and X' over √(n - 1) and √(m - 1)
    (Mathiasen & Hvilshøj 2020, arXiv:2009.14075), so no matrix root is taken.

    The estimate is too large: two sets of the same distribution have a positive distance, which
    falls as 1 / n (Chong & Forsyth 2020, arXiv:1911.07023). Compare only distances of equal n and
    m. With no more images than features the covariances have no full rank, and the number says
    more of n than of the images.
    """
    left, right = (_scaled_rows(features) for features in (left_nd, right_md))
    means = left_nd.mean(axis=0) - right_md.mean(axis=0)
    traces = np.sum(left**2) + np.sum(right**2)
    root = np.linalg.norm(_triangle(left) @ _triangle(right).T, "nuc")
    distance = float(means @ means + traces - 2 * root)
    return distance if distance > ROUNDING * traces else 0.0


def _scaled_rows(features_nd: FloatArray) -> FloatArray:
    """Centred rows over √(n - 1): their Gram matrix is the covariance."""
    scaled: FloatArray = (features_nd - features_nd.mean(axis=0)) / np.sqrt(len(features_nd) - 1)
    return scaled


def _triangle(rows_nd: FloatArray) -> FloatArray:
    """The triangular factor (d, d), which has the Gram matrix of the rows at a smaller size."""
    return np.asarray(np.linalg.qr(rows_nd, mode="r"), dtype=np.float64)


def squared_distances(left_nd: FloatArray, right_md: FloatArray) -> FloatArray:
    """Squared Euclidean distance of each row to each other's row, shape (n, m)."""
    lengths = (left_nd**2).sum(axis=1)[:, None] + (right_md**2).sum(axis=1)
    distances: FloatArray = np.maximum(lengths - 2 * left_nd @ right_md.T, 0.0)
    return distances


def density_and_coverage(
    images_md: FloatArray, reference_nd: FloatArray, neighbours: int = NEIGHBOURS
) -> tuple[float, float]:
    """Density and coverage of images against reference images (Naeem et al. 2020).

    Each reference image has a ball that reaches to its k-th nearest reference image. Density is the
    number of balls that an image lies in, over k and averaged over images: 0 and more, low for
    artefacts. Coverage is the share of balls that hold an image, 0 to 1, low where kinds of images
    are lost (arXiv:2002.09797, eqs. 3 and 4). One reference image that lies apart has a large ball,
    which spoils precision and recall (Kynkäänniemi et al. 2019) but neither of these.

    Raises:
        ValueError: the reference has no more than k images.
    """
    if len(reference_nd) <= neighbours:
        raise ValueError(
            f"{len(reference_nd)} reference images: balls of {neighbours} neighbours need "
            f"{neighbours + 1}"
        )
    among = squared_distances(reference_nd, reference_nd)
    np.fill_diagonal(among, 0.0)  # each image is its own nearest, also after rounding
    radii_n = np.partition(among, neighbours, axis=1)[:, neighbours]
    is_inside_nm = squared_distances(reference_nd, images_md) <= radii_n[:, None]
    density = is_inside_nm.sum() / (neighbours * len(images_md))
    return float(density), float(is_inside_nm.any(axis=1).mean())


def median_bandwidth(features_bd: FloatArray) -> float:
    """The median distance between two of a set's images, as the width of a Gaussian kernel.

    Gretton et al. 2012, section 8. Without it the width would have to be chosen for each vision
    model; CMMD's fixed 10 is far beyond the distances of rows of length one, where the kernel is
    flat and only the means count. Equal images, which have no distance but for rounding, give 1.
    """
    above = np.triu_indices(len(features_bd), k=1)
    squared = float(np.median(squared_distances(features_bd, features_bd)[above]))
    return float(np.sqrt(squared)) if squared > ROUNDING else 1.0


def mmd_terms(
    left_nd: FloatArray,
    left: Groups,
    right_md: FloatArray,
    right: Groups,
    bandwidth: float,
) -> FloatArray:
    """What each two prompts add to the maximum mean discrepancy of two sets, shape (p, p).

    h(p, q) = k(x, x') + k(y, y') - k(x, y') - k(x', y), averaged over the images x, y of prompt p
    and x', y' of prompt q, with the Gaussian kernel k = exp(-|.|² / 2 bandwidth²)
    (Gretton et al. 2012, lemma 6). Only images of different prompts are compared, hence of
    different noise: so the same noise in both sets cannot make them look alike, and one image of
    each prompt is enough. The diagonal, where they would be of the same prompt, is 0.

    Args:
        left_nd, right_md: features of the two sets, sorted by prompt.
        left, right: the prompts of their rows, the same ones in the same order.
        bandwidth: of the kernel, in units of the features.
    """
    within_left = _kernel_means(left_nd, left, left_nd, left, bandwidth)
    within_right = _kernel_means(right_md, right, right_md, right, bandwidth)
    across = _kernel_means(left_nd, left, right_md, right, bandwidth)
    terms: FloatArray = within_left + within_right - across - across.T
    np.fill_diagonal(terms, 0.0)
    return terms


def _kernel_means(
    left_nd: FloatArray, left: Groups, right_md: FloatArray, right: Groups, bandwidth: float
) -> FloatArray:
    """Mean kernel between the images of each two prompts, shape (p, p)."""
    kernel = np.exp(-squared_distances(left_nd, right_md) / (2 * bandwidth**2))
    rows, columns = (
        np.searchsorted(groups.of_image_b, np.arange(groups.num_groups)) for groups in (left, right)
    )
    sums = np.add.reduceat(np.add.reduceat(kernel, rows, axis=0), columns, axis=1)
    means: FloatArray = sums / np.outer(left.sizes(), right.sizes())
    return means


def mmd_squared(terms_pp: FloatArray) -> float:
    """Squared maximum mean discrepancy without bias, from `mmd_terms` of at least two prompts.

    The mean over pairs of different prompts (Gretton et al. 2012, eq. 4): 0 on average for sets of
    the same distribution at any number of images, so it can be a little below 0. CMMD (Jayasumana
    et al. 2024, arXiv:2401.09603) is the same with a fixed bandwidth and another scale.
    """
    num_prompts = len(terms_pp)
    return float(terms_pp.sum() / (num_prompts * (num_prompts - 1)))


def diversity_of_prompts(features_bd: FloatArray, groups: Groups) -> FloatArray:
    """Mean distance (1 - cosine) between two images of the same prompt, 0 to 2, shape (p,).

    0: every noise gives the same image. From the length of the sum of n unit rows, which is
    n + n (n - 1) times the mean cosine, squared.

    Raises:
        ValueError: a prompt has a single image.
    """
    sizes_p = groups.sizes()
    if np.any(sizes_p < 2):
        raise ValueError("a prompt has a single image: diversity needs two of each")
    sums_pd = np.zeros((groups.num_groups, features_bd.shape[1]))
    np.add.at(sums_pd, groups.of_image_b, features_bd)
    cosine_p = ((sums_pd**2).sum(axis=1) - sizes_p) / (sizes_p * (sizes_p - 1))
    distance_p: FloatArray = np.where(cosine_p < 1 - ROUNDING, 1 - cosine_p, 0.0)
    return distance_p


def _frechet(own_nd: FloatArray, reference_md: FloatArray) -> tuple[float]:
    return (frechet_distance(own_nd, reference_md),)


ACROSS_HALVES: Mapping[tuple[str, ...], Callable[[FloatArray, FloatArray], tuple[float, ...]]] = {
    ("frechet",): _frechet,
    ("density", "coverage"): density_and_coverage,
}
"""Measures that need two sets without a common noise: of a model's half (n, d) and of the other
half of the reference's images (m, d); several that one pass over the distances gives."""


def _of_rank(num_features: int) -> Need:
    """More images in each half than features: the covariance has full rank.

    Without a block of prompts it may just lack it, which is in the interval and not in the number.
    """
    return Need(2 * (num_features + 1))


def _of_balls(num_features: int) -> Need:
    """Twice as many in each half as a ball takes, also where a block is left out."""
    del num_features
    return Need(4 * (NEIGHBOURS + 1))


OF_SETS = (
    OfSet(
        name="frechet",
        words="Fréchet distance",
        title="Fréchet distance",
        hint="to the reference",
        form=Form(4),
        direction=-1,
        ends=(0.0, math.inf),
        needs=_of_rank,
        ratio=Column(
            title="÷ its floor", hint="1 is as near as can be", form=Form(2), direction=-1
        ),
        watch=Watch("Fréchet distance over its floor", +1, "the sets of images differ"),
        is_over_steps=True,
    ),
    OfSet(
        name="mmd",
        words="MMD",
        title="1,000 MMD²",
        hint="to the reference",
        form=Form(2, times=1000),
        direction=-1,
        ends=NO_ENDS,  # without bias it can be negative
        needs=lambda _: Need(2, per_prompt=1, prompts=2),
    ),
    OfSet(
        name="density",
        words="density",
        title="Density",
        hint="images like the reference's",
        form=Form(3),
        ends=(0.0, math.inf),
        needs=_of_balls,
    ),
    OfSet(
        name="coverage",
        words="coverage",
        title="Coverage",
        hint="of the reference's images",
        form=PERCENT,
        direction=+1,
        ends=(0.0, 1.0),
        is_share=True,
        needs=_of_balls,
    ),
    OfSet(
        name="diversity",
        words="diversity",
        title="Diversity",
        hint="of a prompt's images",
        form=Form(4),
        ends=(0.0, 2.0),  # a mean of 1 - cosine
        needs=lambda _: Need(2),
        ratio=Column(title="÷ the reference's", hint="below 1: less diverse", form=Form(2)),
        watch=Watch("diversity over {whose}", -1, "the images of a prompt are less varied"),
    ),
)
