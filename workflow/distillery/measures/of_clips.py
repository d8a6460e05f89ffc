"""Measures that clips alone have: how much they move, how they flicker, how they begin.

Clips are (f, h, w, 3). Differences are of grey levels, 0 to 255, of the same pixel at other times.
"""

import numpy as np

from distillery.images import Pixels
from distillery.measures.measure import PIXELS, Column, Form, OfClip, OfPair, Watch
from distillery.measures.of_pairs import IDENTICAL_PSNR_DB, PEAK, check_shapes, psnr_db

ROUNDING_ENERGY = 6 / 12
"""Of a second difference (its weights 1, -2, 1 have squares of 6 in all), from rounding pixels."""


def motion(clip: Pixels) -> float:
    """Mean square of the differences of neighbouring frames, 0 of a still clip to 255².

    Whatever changes counts, noise and flicker too.
    """
    return difference_energy(clip, 1)


def flicker_ratio(clip: Pixels, reference: Pixels) -> float:
    """Mean square of the second differences in time over the reference's, above 0.

    Of as much `motion` a fade has nothing of it, a sharp edge that passes 2 times as much, noise 3
    times and what alternates 4 times. So a clip that moves more is above 1 too: read both.
    `ROUNDING_ENERGY` is added to both, so that still clips have a ratio.
    """
    check_shapes(clip, reference)
    energy, reference_energy = (
        difference_energy(it, 2) + ROUNDING_ENERGY for it in (clip, reference)
    )
    return energy / reference_energy


def first_frame_psnr_db(clip: Pixels, reference: Pixels) -> float:
    """PSNR of the first frames alone: frames of the same noise drift apart, these least."""
    check_shapes(clip, reference)
    return psnr_db(clip[0], reference[0])


def difference_energy(clip: Pixels, order: int) -> float:
    """Mean square of a clip's differences in time of an order, 1 or 2, over all pixels.

    A few frames at a time: numbers of double precision take 8 times the clip's bytes.

    Raises:
        ValueError: the clip has no more frames than the order.
    """
    if len(clip) <= order:
        raise ValueError(f"a clip of {len(clip)} frames has no difference of order {order}")
    neighbours = (clip[at : at + order + 1] for at in range(len(clip) - order))
    changes = (np.diff(frames.astype(np.float64), order, axis=0) for frames in neighbours)
    return float(np.mean([np.mean(change**2) for change in changes]))


OF_CLIPS = (
    # Below 1 alone is flagged: what moves more may flicker, which the next one tells.
    OfClip(
        name="motion",
        title="Motion",
        hint="change from frame to frame",
        full="motion, mean square change from frame to frame",
        form=Form(2),
        ends=(0.0, PEAK**2),
        of=motion,
        ratio=Column(title="÷ the reference's", hint="motion; below 1 less", form=Form(2)),
        watch=Watch("motion over {whose}", -1, "the clips move less"),
        sorts="motion",
    ),
    # The ratio of one clip can be very large: the median.
    OfPair(
        name="flicker",
        title="Flicker",
        hint="÷ the reference's; above 1 more",
        full="flicker ÷ its reference's, median",
        form=Form(3),
        reads=PIXELS,
        of=flicker_ratio,
        summary="median",
        min_frames=3,
        sorts="flicker",
    ),
    OfPair(
        name="first_frame_psnr_db",
        title="PSNR, first frame",
        hint="to the reference's",
        full="PSNR of the first frame to its reference's, dB",
        form=Form(2, " dB"),
        direction=+1,
        ends=(0.0, IDENTICAL_PSNR_DB),
        reads=PIXELS,
        of=first_frame_psnr_db,
        min_frames=2,
    ),
)
