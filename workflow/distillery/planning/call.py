"""The plan of what the stock call takes: `teacher.call`, and frames."""

import inspect
import re
from collections.abc import Iterator
from difflib import get_close_matches

from distillery.config.teacher import FPS, Teacher
from distillery.families.traced import frames_argument
from distillery.notes import Note, error
from distillery.teacher.folder import PipelineFolder

GIVEN = re.compile(
    r"(negative_)?(prompt|image|ip_adapter|pooled)|.*(embeds|mask)(_|$)|num_|frames$|"
    r"(height|width|latents|"
    r"generator|output_type|return_dict|max_sequence_length|callback)|"
    r"guidance_scale(_2)?$|true_cfg_scale$"
)
"""Arguments that are given anyway, or that would make other images than those of the prompts."""
GRID = re.compile(r"(timesteps|sigmas|mu|eta|strength|denoising_(start|end))$")
"""Arguments that change the states which a scheduler visits, or add noise to them."""
TEXT = re.compile(
    r"(clip_skip|clean_caption|complex_human_instruction|system_prompt|use_resolution_binning)$"
)
"""Arguments that a call reads only where it encodes prompts itself, or chooses its size."""


ADAPTERS = re.compile(r"(cross_|joint_)?attention_kwargs$")


def on_call(teacher: Teacher, folder: PipelineFolder) -> Iterator[Note]:
    """Arguments that the stock call does not know, or that are none of this key's."""
    for name, value in (teacher.call or {}).items():
        where = f"teacher.call.{name} is {value!r}"
        cause = _why_not(name, folder)
        if cause:
            cure = f"remove it; this call takes {', '.join(arguments_of(folder)) or 'none'}"
            near = get_close_matches(name, arguments_of(folder), n=1)
            yield error(where, f": {cause}", f"did you mean {near[0]}?" if near else cure)


def on_frames(teacher: Teacher, folder: PipelineFolder) -> Iterator[Note]:
    """A clip of a class that makes images, and a speed where nothing is played."""
    if teacher.num_frames > 1 and not frames_argument(folder.pipeline_class):
        yield error(
            f"teacher.num_frames is {teacher.num_frames}",
            f": {folder.class_name} makes single images",
            "remove it",
        )
    if teacher.num_frames == 1 and teacher.fps != FPS:
        yield error(
            f"teacher.fps is {teacher.fps}",
            ", and a sample is a single image, which is not played",
            "remove it, or set teacher.num_frames",
        )


def arguments_of(folder: PipelineFolder) -> list[str]:
    """The arguments of a pipeline's call that `teacher.call` may hold."""
    return [name for name in known_arguments(folder) if not _why_not(name, folder)]


def known_arguments(folder: PipelineFolder) -> list[str]:
    """The names in the call's signature; what `**kwargs` would take is without effect."""
    parameters = list(inspect.signature(folder.pipeline_class.__call__).parameters.values())[1:]
    return [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]


def _why_not(name: str, folder: PipelineFolder) -> str:
    if name not in known_arguments(folder):
        return f"the call of {folder.class_name} has no such argument"
    if GRID.match(name):
        return "it would change the steps that are stored, see teacher.scheduler and targets.steps"
    if TEXT.match(name):
        return "it would have no effect, since prompts are encoded apart and the size is given"
    if ADAPTERS.match(name):
        return "it scales adapters, which teacher.adapters says, and does nothing without them"
    if GIVEN.match(name):
        return "other keys of the configuration, or the stage itself, give this argument"
    return ""
