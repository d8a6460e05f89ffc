"""The classes of Diffusers that make images or videos of text alone, and what a trace says."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import diffusers
import torch

from distillery.families.proofs import NEEDED, Proof, Subject, prove
from distillery.families.tracing import Call, Signature, UntraceableError, learn
from families.calls import generators
from traced import ROWS

PROMPTS = ("a red dog", "a blue cat on the hill", "the bird")
INPUTS = (
    *("2Img", "Inpaint", "Control", "Adapter", "ImageToVideo", "Image2Video", "VideoToVideo"),
    *("VideoToWorld", "Edit", "Upscale", "Refiner", "Pix2Pix", "SuperResolution", "Kontext"),
    *("Fill", "Transfer"),
)
"""Parts of the names of classes that need an image or a video, whatever is optional."""


def text_classes() -> set[str]:
    """Names of the classes that make images or videos of text alone, without sound."""
    names = (name for name in dir(diffusers) if name.endswith("Pipeline"))
    return {
        name for name in names if not any(part in name for part in INPUTS) and _takes_text(name)
    }


def _takes_text(name: str) -> bool:
    kind = getattr(diffusers, name)
    if not issubclass(kind, diffusers.DiffusionPipeline) or ".deprecated." in kind.__module__:
        return False
    arguments = inspect.signature(kind.__call__).parameters
    required = {it.name for it in arguments.values() if it.default is it.empty}
    return (
        {"prompt", "num_inference_steps"} <= arguments.keys()
        and required <= {"self", "prompt", "kwargs"}
        and not any("audio" in argument for argument in arguments)
    )


@dataclass(frozen=True)
class Verdict:
    """What a trace says of a class.

    Attributes:
        signature: what is learnt; None if it cannot be.
        reason: why it is refused; "" if it passes.
        broken: claims that do not hold.
    """

    signature: Signature | None
    reason: str
    broken: tuple[Proof, ...] = ()


@cache
def verdict(name: str) -> Verdict:
    """Trace the tiny pipeline of a row."""
    row = ROWS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pipeline = row.make()
    assert type(pipeline).__name__ == name.split()[0]
    pipeline.set_progress_bar_config(disable=True)
    off, guided = _call(row.base, row.off), _call(row.base, row.guided)
    try:
        signature, steps = learn(pipeline, off, PROMPTS)
    except UntraceableError as error:
        return Verdict(None, str(error))
    proofs = prove(Subject(pipeline, signature, steps, off, guided, PROMPTS))
    broken = tuple(proof for proof in proofs if not proof.holds)
    needed = [f"{it.claim}: {it.error or it.distance}" for it in broken if it.claim in NEEDED]
    return Verdict(signature, needed[0] if needed else "", broken)


def _call(base: Mapping[str, Any], guidance: Mapping[str, Any]) -> Call:
    """The arguments of a call of four steps."""

    def arguments(prompts: Sequence[str]) -> dict[str, Any]:
        seeds = [PROMPTS.index(prompt) for prompt in prompts]
        stock = {"num_inference_steps": 4, "output_type": "latent"}
        return stock | base | guidance | {"prompt": list(prompts), "generator": generators(seeds)}

    return arguments
