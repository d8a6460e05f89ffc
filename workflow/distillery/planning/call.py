"""The plan of what the stock call takes: `teacher.call`, and frames."""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import JsonValue, TypeAdapter
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import ValidationError

from distillery.config.run import RunConfig
from distillery.config.sampling import teachers_calls
from distillery.config.teacher import FPS, Teacher
from distillery.families.traced import frames_argument
from distillery.notes import Note, error
from distillery.teacher.folder import PipelineFolder
from distillery.words import listed

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
OF_GUIDANCE = re.compile(r"guidance_rescale$|negative_|skip_(guidance_layers|layer_guidance_)")
"""Arguments that a call with an adapter reads only where it guides."""
LISTS = ", which is a list here"
NEEDS = {
    "skip_layer_guidance_": ("skip_guidance_layers",),
    "negative_": ("negative_original_size", "negative_target_size"),
}
"""By the beginnings of arguments, others without which the call does not look at them."""


def on_call(teacher: Teacher, folder: PipelineFolder) -> Iterator[Note]:
    """Arguments that the stock call does not know, or that are none of this key's."""
    for name, value in (teacher.call or {}).items():
        where = f"teacher.call.{name} is {value!r}"
        cause = _why_not(name, folder)
        if cause:
            cure = f"remove it; this call takes {', '.join(arguments_of(folder)) or 'none'}"
            near = get_close_matches(name, arguments_of(folder), n=1)
            yield error(where, f": {cause}", f"did you mean {near[0]}?" if near else cure)
            continue
        wanted = _wanted(name, value, folder)
        if wanted:
            yield error(where, f": the call of {folder.class_name} takes {wanted}")


def on_effect(config: RunConfig, folder: PipelineFolder) -> Iterator[Note]:
    """Arguments that change nothing, as far as that can be known."""
    given = config.teacher.call or {}
    for name in (it for it in given if it in arguments_of(folder)):
        cause = _why_idle(name, given, config, folder)
        if cause:
            yield error(
                f"teacher.call.{name} is {given[name]!r}", f" has no effect: {cause}", "remove it"
            )


def _why_idle(
    name: str, given: Mapping[str, JsonValue], config: RunConfig, folder: PipelineFolder
) -> str:
    default = _parameter(name, folder).default
    if given[name] == (list(default) if isinstance(default, tuple) else default):
        return "it is the call's default"
    if folder.is_traced:  # how its class reads them is not known
        return ""
    is_guided = any(scale > 1.0 for _, scale in teachers_calls(config).values())
    if OF_GUIDANCE.match(name) and not is_guided:
        return "the teacher draws nothing with guidance"
    needed = next((them for start, them in NEEDS.items() if name.startswith(start)), ())
    lacking = [other for other in needed if other not in given]
    return f"the call looks at it only with {listed(lacking)}" if lacking else ""


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


def _parameter(name: str, folder: PipelineFolder) -> inspect.Parameter:
    call = folder.pipeline_class.__call__
    try:  # some modules' annotations are texts
        return inspect.signature(call, eval_str=True).parameters[name]
    except NameError:
        return inspect.signature(call).parameters[name]


def _wanted(name: str, value: JsonValue, folder: PipelineFolder) -> str:
    """The type that the call takes for an argument, in words, where a value is of another one; ""
    where the signature does not tell."""
    parameter = _parameter(name, folder)
    kind: Any = parameter.annotation
    if kind is parameter.empty:
        kind = type(parameter.default)
        if kind not in (bool, int, float, str):
            return ""
    try:
        # Some annotations are wrong, as tuple[int] for any number of them: the default tells.
        is_known = parameter.default in (None, parameter.empty) or _is_of(parameter.default, kind)
        if not is_known or _is_of(value, kind) or (value is None and parameter.default is None):
            return ""
    except (PydanticUserError, PydanticUndefinedAnnotation):
        return ""  # tensors and images, of which there are none in a configuration
    return f"{inspect.formatannotation(kind)}{LISTS * ('tuple' in str(kind))}"


def _is_of(value: object, kind: Any) -> bool:
    """Whether a value is of a type; as in JSON, a list is a tuple too and an integer a number."""
    try:
        TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError:
        return False
    return True


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
