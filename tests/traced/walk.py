"""The classes of Diffusers that make images or videos of text alone, and what a trace says."""

import inspect
from dataclasses import dataclass
from functools import cache

import diffusers
import torch

from distillery.families.learning import learn_pipeline
from distillery.families.learnt import Learnt
from distillery.families.recording import UntraceableError
from traced import ROWS, few_spacings

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
        learnt: None if it cannot be.
        reason: why it is refused; "" if it passes.
    """

    learnt: Learnt | None
    reason: str


@cache
def verdict(name: str) -> Verdict:
    """Learn the tiny pipeline of a row."""
    row = ROWS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pipeline = row.make()
    assert type(pipeline).__name__ == name.split()[0]
    pipeline.set_progress_bar_config(disable=True)
    try:
        with few_spacings():
            return Verdict(learn_pipeline(pipeline, row.terms)[0], "")
    except UntraceableError as error:
        return Verdict(None, str(error))
