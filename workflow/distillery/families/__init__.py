"""One adapter file per model family, behind one protocol."""

from collections.abc import Mapping
from typing import Any

import torch

from distillery.families.any_flow import AnyFlow
from distillery.families.flux import Flux
from distillery.families.learnt import Learnt
from distillery.families.pixart import PixArt
from distillery.families.protocol import Conditioning, Family, Request, Setting
from distillery.families.qwen_image import QwenImage
from distillery.families.sana import Sana
from distillery.families.sd import Sd
from distillery.families.sd3 import Sd3
from distillery.families.sdxl import Sdxl
from distillery.families.size import Size
from distillery.families.traced import Traced
from distillery.families.wan import Wan
from distillery.schedule import Schedule
from distillery.schedulers import Scheduler, check_known, check_range, copy_of, schedule_of, told

__all__ = [
    "FLOW_MAPS",
    "Conditioning",
    "Family",
    "Request",
    "Setting",
    "Size",
    "family_named",
    "family_of",
    "flow_map_of",
    "grid_of",
    "student_family_of",
    "timed",
]

FAMILIES: tuple[Family, ...] = (Wan(), Sdxl(), Sd(), PixArt(), Sana(), Sd3(), Flux(), QwenImage())
FLOW_MAPS: Mapping[str, AnyFlow] = {Wan.name: AnyFlow()}
"""By the family of a teacher, the one of its students of any number of steps."""


def family_of(pipeline_class: str) -> Family:
    """The family that a pipeline class (`_class_name` in model_index.json) belongs to."""
    for family in FAMILIES:
        if pipeline_class in family.pipeline_classes:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.pipeline_classes)
    raise ValueError(
        f"no family for the pipeline class {pipeline_class!r}; known: {known}. Others are learnt "
        "from their calls: set teacher.trace, e.g. {unguided: {guidance_scale: 1.0}}, see "
        "docs/teachers.md"
    )


def flow_map_of(family: Family) -> AnyFlow:
    """The family of the any-step students of a teacher's family.

    Raises ValueError where Diffusers has no network for them.
    """
    found = FLOW_MAPS.get(family.name)
    if found is None:
        known = ", ".join(FLOW_MAPS)
        raise ValueError(
            "student.init is 'flow_map': such a student's network is told where its step ends, and "
            f"Diffusers has one for teachers of the family {known} alone, not for {family.name}; "
            "use init: teacher, and a run for each number of steps"
        )
    return found


def student_family_of(pipeline_class: str) -> Family:
    """The family of a student's pipeline, as `family_of` of a teacher's."""
    flow_maps = {name: each for each in FLOW_MAPS.values() for name in each.pipeline_classes}
    return flow_maps.get(pipeline_class) or family_of(pipeline_class)


def family_named(name: str, signature: Mapping[str, Any] | None = None) -> Family:
    """The family of a stored recipe.

    Args:
        signature: what was learnt of a traced pipeline, as JSON.
    """
    if signature is not None:
        return Traced(Learnt.from_json(signature["learnt"]))
    for family in FAMILIES:
        if family.name == name:
            return family
    raise ValueError(f"no family {name!r}; known: {', '.join(f.name for f in FAMILIES)}")


def grid_of(
    family: Family, scheduler: Scheduler, steps: int, latent_shape: tuple[int, ...]
) -> Schedule:
    """The grid of `steps` steps that the stock pipeline would walk; `scheduler` is not changed."""
    check_known(scheduler)
    return schedule_of(timed(family, scheduler, steps, latent_shape))


def timed(
    family: Family, scheduler: Scheduler, steps: int, latent_shape: tuple[int, ...]
) -> Scheduler:
    """A copy of a scheduler with the timesteps of the stock pipeline's call.

    Raises ValueError where the scheduler cannot make so many steps, the pipeline cannot ask for
    them, or they lead beyond the timesteps of a training.
    """
    name = type(scheduler).__name__
    with told(f"{name} cannot make {steps} steps of {family.name} with these settings"):
        copy = copy_of(scheduler)
        family.set_timesteps(copy, steps, latent_shape)
        levels = getattr(copy, "sigmas", None)
        if isinstance(levels, torch.Tensor) and not bool(levels.isfinite().all()):
            raise ValueError(f"its noise levels would be {levels.tolist()}")
    check_range(copy)
    return copy
