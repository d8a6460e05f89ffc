"""Images that a trace cannot store are refused with the reason."""

from typing import Any

import diffusers
import pytest

from distillery.families import Size
from distillery.families.learning import Terms, learn_pipeline
from distillery.families.recording import UntraceableError
from traced.pictured import KONTEXT_CALL, SIDE, flux_kontext

TERMS = Terms(
    steps=4,
    size=Size(SIDE, SIDE),
    guidance_scale=3.0,
    unguided={},
    always=KONTEXT_CALL,
    max_sequence_length=16,
    decode=False,
    image="image",
)


class Blind(diffusers.FluxKontextPipeline):
    """Gives nothing the image."""

    def __call__(self, image: Any = None, prompt: Any = None, **rest: Any) -> Any:
        return super().__call__(prompt=prompt, **rest)


class Reading(diffusers.FluxKontextPipeline):
    """Encodes prompts with their image."""

    def __call__(self, image: Any = None, prompt: Any = None, **rest: Any) -> Any:
        self.seen = image.getpixel((0, 0))[0] / 255
        return super().__call__(image=image, prompt=prompt, **rest)

    def encode_prompt(self, *args: Any, **kwargs: Any) -> Any:
        embeddings, pooled, ids = super().encode_prompt(*args, **kwargs)
        return embeddings + self.seen, pooled, ids


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Blind, "nothing that its network is given follows the image"),
        (Reading, "its encode_prompt reads the image"),
    ],
)
def test_what_cannot_be_stored_of_an_image_is_refused(kind: Any, reason: str) -> None:
    signature = diffusers.FluxKontextPipeline.__call__
    kind.__call__.__wrapped__ = signature  # whose arguments it takes
    pipeline = kind(**{name: it for name, it in flux_kontext().components.items() if it})
    pipeline.set_progress_bar_config(disable=True)
    with pytest.raises(UntraceableError, match=reason):
        learn_pipeline(pipeline, TERMS)
