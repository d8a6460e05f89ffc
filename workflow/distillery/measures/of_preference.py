"""Measures by a model of preference: a CLIP that has learned which of two images people choose.

Its score of an image and a prompt is the logit of a CLIPModel, exp(logit_scale) times the cosine,
as PickScore is defined (Kirstain et al. 2023, arXiv:2305.01569, section 4).
"""

import numpy as np

from distillery.measures.intervals import FloatArray, IntArray
from distillery.measures.measure import PERCENT, Form, OfPreference
from distillery.measures.of_judge import cosine_similarity


def own_logits(
    images_bd: FloatArray, prompts_pd: FloatArray, own_b: IntArray, scale: float
) -> FloatArray:
    """The model's score of each image and its own prompt, shape (b,).

    Args:
        scale: exp(logit_scale).
    """
    return scale * cosine_similarity(images_bd, prompts_pd[own_b])


def preferred(scores_b: FloatArray, references_b: FloatArray) -> FloatArray:
    """The model's probability that each image is chosen over the reference's, shape (b,).

    The softmax of the two scores, by which such a model learns from choices of people.
    """
    above_b: FloatArray = np.exp(-np.logaddexp(0.0, references_b - scores_b))
    return above_b


PREFERENCE = OfPreference(
    name="preference",
    title="Preference",
    hint="of image and prompt",
    full="preference score",
    form=Form(2),
    direction=+1,
    of=lambda scores_b, references_b: scores_b,
    sorts="preference",
    is_in_card=True,
    is_over_steps=True,
)
PREFERRED = OfPreference(
    name="preferred",
    title="Preferred",
    hint="to the reference's, by the model",
    full="probability of being preferred to its reference's",
    form=PERCENT,
    direction=+1,
    ends=(0.0, 1.0),
    of=preferred,
    is_of_pairs=True,
    is_in_card=True,
)
OF_PREFERENCE = (PREFERENCE, PREFERRED)
