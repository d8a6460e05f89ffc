"""Measures by the judge: of an image's embedding and those of the prompts.

Shapes: b images, p distinct prompts, d features of the judge.
"""

import numpy as np

from distillery.measures.intervals import FloatArray, IntArray
from distillery.measures.measure import PERCENT, Column, Form, OfJudge


def clip_score(images_bd: FloatArray, prompts_pd: FloatArray, own_b: IntArray) -> FloatArray:
    """Cosine of each image and its own prompt, shape (b,)."""
    return cosine_similarity(images_bd, prompts_pd[own_b])


def cosine_similarity(left_bd: FloatArray, right_bd: FloatArray) -> FloatArray:
    """Row by row cosine of the angle between two embeddings, shape (b,).

    With a CLIP judge's image and text embeddings this is the CLIP score of Hessel et al. 2021
    (arXiv:2104.08718, eq. 1) without its factor of 2.5, which changes no ratio, and without
    clipping at zero: a negative cosine should be seen.
    """
    cosine_b: FloatArray = (normalise(left_bd) * normalise(right_bd)).sum(axis=-1)
    return cosine_b


def normalise(embeddings_bd: FloatArray) -> FloatArray:
    """Rows scaled to length one; a zero row, which has no direction, raises ValueError."""
    lengths = np.linalg.norm(embeddings_bd, axis=-1, keepdims=True)
    if not np.all(lengths > 0):
        raise ValueError(
            "an embedding is zero or not finite: check the weights of evaluation.judge and "
            "evaluation.vision_models"
        )
    unit_bd: FloatArray = embeddings_bd / lengths
    return unit_bd


def pool_frames(frames_nd: FloatArray, num_frames: int) -> FloatArray:
    """Features of clips (b, d): the mean of the unit features of each one's frames, in order.

    Mean pooling, the similarity without parameters of CLIP4Clip (Luo et al. 2021, arXiv:2104.08860,
    section 3.3).
    """
    units = normalise(frames_nd)
    clips_bd: FloatArray = units.reshape(-1, num_frames, units.shape[1]).mean(axis=1)
    return clips_bd


def retrieval_ranks(
    images_bd: FloatArray, prompts_pd: FloatArray, own_b: IntArray, block: int = 1024
) -> IntArray:
    """Rank of each image's own prompt when all prompts are sorted by similarity; 1 is best.

    Ties count against the image: a judge that cannot tell prompts apart finds nothing.

    Args:
        own_b: row of `prompts_pd` that each image was made from.
        block: images in one matrix product, which bounds memory.
    """
    images, prompts = normalise(images_bd), normalise(prompts_pd)
    ranks = np.empty(len(images), dtype=np.int64)
    for start in range(0, len(images), block):
        part = slice(start, start + block)
        similarity = images[part] @ prompts.T
        own = np.take_along_axis(similarity, own_b[part, None], axis=1)
        ranks[part] = (similarity >= own).sum(axis=1)
    return ranks


CLIP_SCORE = OfJudge(
    name="clip_score",
    title="CLIP score",
    hint="of image and prompt",
    full="CLIP score",
    form=Form(4),
    direction=+1,
    ends=(-1.0, 1.0),
    of=clip_score,
    ratio=Column(title="of the reference", hint="CLIP score, paired", form=PERCENT, direction=+1),
    question="CLIP score above that of {other}",
    sorts="CLIP score",
    is_in_card=True,
    is_over_steps=True,
)
RETRIEVAL = OfJudge(
    name="retrieval_r1",
    title="R@1",
    hint="own prompt found first",
    full="R@1",
    form=PERCENT,
    direction=+1,
    ends=(0.0, 1.0),
    column="rank",
    of=retrieval_ranks,
    value=lambda rank_b: (rank_b == 1).astype(np.float64),
    summary="share",
    sorts="retrieval rank",
    is_in_card=True,
)
OF_JUDGE = (CLIP_SCORE, RETRIEVAL)
