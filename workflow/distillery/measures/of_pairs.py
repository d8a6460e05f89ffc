"""Measures of an image against the reference model's image of the same prompt and noise."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from distillery.images import Pixels, frames_of
from distillery.measures.measure import LATENTS, PIXELS, Form, OfPair

PEAK = 255.0
"""Largest value of a pixel."""
IDENTICAL_PSNR_DB = 100.0
"""Ceiling of a PSNR: two equal images have an infinite one, which no mean survives."""
ROUNDING_ENERGY = 20 / 12
"""Of a Laplacian (its weights have squares of 20 in all), from rounding pixels to whole numbers."""


def psnr_db(image: Pixels, reference: Pixels) -> float:
    """Peak signal-to-noise ratio in decibels, 10 log10(255² / MSE), over all pixels and channels.

    Of clips (f, h, w, 3) over all their frames. Equal images get `IDENTICAL_PSNR_DB`, which is also
    the ceiling.
    """
    check_shapes(image, reference)
    error = mean_over_frames(_square_error, image, reference)
    if error == 0:
        return IDENTICAL_PSNR_DB
    return min(float(10 * np.log10(PEAK**2 / error)), IDENTICAL_PSNR_DB)


def mean_over_frames(measure: Callable[..., float], *samples: Pixels) -> float:
    """The mean of a measure of the samples' frames, one by one: floats are 8 times their bytes."""
    return float(np.mean([measure(*each) for each in zip(*map(frames_of, samples), strict=True)]))


def _square_error(image: Pixels, reference: Pixels) -> float:
    """Mean over pixels and channels, (h, w, 3)."""
    return float(np.mean((image.astype(np.float64) - reference.astype(np.float64)) ** 2))


def check_shapes(image: Pixels, reference: Pixels) -> None:
    """Raise ValueError for two of different sizes, or lengths."""
    if image.shape != reference.shape:
        raise ValueError(f"images of {image.shape} and {reference.shape} cannot be compared")


def latents_mse(latents: npt.NDArray[np.float32], reference: npt.NDArray[np.float32]) -> float:
    """Mean over all elements of the squared difference of two final latents (c, f, h, w)."""
    if latents.shape != reference.shape:
        raise ValueError(f"latents of {latents.shape} and {reference.shape} cannot be compared")
    return float(np.mean((latents.astype(np.float64) - reference.astype(np.float64)) ** 2))


def high_frequency_ratio(image: Pixels, reference: Pixels) -> float:
    """Energy of the Laplacian of an image over the reference's, above 0; each (h, w, 3).

    Of a clip (f, h, w, 3) it is the mean of its frames' energies.

    Below 1 the image is blurred, above 1 it has artefacts or more detail. `ROUNDING_ENERGY` is
    added to both, so that flat images, which have none, have a ratio.
    """
    check_shapes(image, reference)
    energy, reference_energy = (
        mean_over_frames(laplacian_energy, it) + ROUNDING_ENERGY for it in (image, reference)
    )
    return energy / reference_energy


def laplacian_energy(image: Pixels) -> float:
    """Mean square of the discrete Laplacian (four neighbours less four times the pixel) inside.

    The smallest spacing of pixels counts most: it grows as the fourth power of the frequency.
    """
    pixels = image.astype(np.float64)
    down, across = np.diff(pixels, 2, axis=0), np.diff(pixels, 2, axis=1)
    return float(np.mean((down[:, 1:-1] + across[1:-1]) ** 2))


OF_PAIRS = (
    # A mean of squares depends on the few prompts whose image changes as a whole: its interval
    # says little of all others, so nothing is asked of it. Decibels are a mean of logarithms.
    OfPair(
        name="latents_mse",
        title="Latents MSE",
        hint="to the reference",
        full="latents' mean square error to its reference",
        form=Form(4),
        direction=-1,
        ends=(0.0, math.inf),
        reads=LATENTS,
        of=latents_mse,
    ),
    OfPair(
        name="psnr_db",
        title="PSNR",
        hint="to the reference",
        full="PSNR to its reference, dB",
        form=Form(2, " dB"),
        direction=+1,
        ends=(0.0, IDENTICAL_PSNR_DB),
        reads=PIXELS,
        of=psnr_db,
        question="Closer to {reference} than {other} is, in pixels",
        sorts="PSNR",
    ),
    # The ratio of one image can be very large: the median.
    OfPair(
        name="high_frequency",
        title="High frequencies",
        hint="÷ the reference's; below 1 blur",
        full="high frequencies ÷ its reference's, median",
        form=Form(3),
        reads=PIXELS,
        of=high_frequency_ratio,
        summary="median",
    ),
)
