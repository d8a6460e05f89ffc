"""Load the parts of a pipeline that a job needs, as the configuration asks."""

from pathlib import Path
from typing import Any

import torch

from distillery.config import Dtype, Teacher
from distillery.families import Family
from distillery.families.protocol import Denoiser, Pipeline
from distillery.files import read_json
from distillery.schedulers import Scheduler, check_settings, make_scheduler
from distillery.teacher import INDEX, family_in, is_component


def load_scheduler(folder: Path, teacher: Teacher | None = None) -> Scheduler:
    """The pipeline's scheduler alone, or the one a teacher's configuration puts in its place.

    Milliseconds, no weights.
    """
    name = read_json(folder / INDEX)["scheduler"][1]
    config = read_json(folder / "scheduler" / "scheduler_config.json")
    if teacher is not None and teacher.scheduler is not None:
        changes = dict(teacher.scheduler)
        name = str(changes.pop("class", name))
        check_settings(name, changes)
        config = config | changes
    return make_scheduler(name, config)


def torch_dtype(name: Dtype) -> torch.dtype:
    """The torch type of a configuration's `dtype`."""
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def load_teacher(
    teacher: Teacher, folder: Path, device: torch.device, leave_out: tuple[str, ...] = ()
) -> Pipeline:
    """Load the teacher's stock pipeline as its configuration asks.

    Args:
        teacher: the section of the configuration.
        folder: where `find_teacher` found it.
        device: where it goes.
        leave_out: names of components that this job does not need.
    """
    pipeline = load_pipeline(folder, teacher.dtype, device, leave_out)
    pipeline.scheduler = load_scheduler(folder, teacher)
    return pipeline


def load_pipeline(
    folder: Path, dtype: Dtype, device: torch.device, leave_out: tuple[str, ...] = ()
) -> Pipeline:
    """Load a stock pipeline on one device.

    Args:
        folder: in Diffusers format.
        dtype: of all weights but the VAE's, which stays float32 (bf16 decoding shifts colours).
        device: where it goes.
        leave_out: names of components that this job does not need.
    """
    from diffusers import DiffusionPipeline
    from diffusers.utils.logging import disable_progress_bar

    disable_progress_bar()
    absent: dict[str, None] = dict.fromkeys(leave_out)
    pipeline = DiffusionPipeline.from_pretrained(
        folder,
        dtype={"default": torch_dtype(dtype), "vae": torch.float32},
        local_files_only=True,
        **absent,
    )
    pipeline.set_progress_bar_config(disable=True)
    for denoiser in denoisers_of(pipeline, family_in(folder)).values():
        keep_states_in_float32(denoiser, torch_dtype(dtype))
    return pipeline.to(device)


def denoisers_of(pipeline: Pipeline, family: Family) -> dict[str, Denoiser]:
    """The denoisers that a pipeline has, by their component's name."""
    found = {name: getattr(pipeline, name, None) for name in family.denoisers}
    return {name: denoiser for name, denoiser in found.items() if denoiser is not None}


def keep_states_in_float32(denoiser: Denoiser, dtype: torch.dtype) -> None:
    """Let a network of low precision take and return float32, so that a sampler never rounds.

    Stock pipelines hold the states in the network's type. With bfloat16 every step then rounds to
    three digits, and guidance multiplies the rounding. Casting at the network's door instead keeps
    states, guidance and scheduler in float32 at no cost. Timesteps, of one dimension or none, are
    left alone: bfloat16 knows no odd number above 256.
    """
    if dtype == torch.float32:
        return

    def enter(
        _module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return _cast_states(args, dtype), _cast_states(kwargs, dtype)

    def leave(_module: torch.nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        return _cast_states(output, torch.float32)

    denoiser.register_forward_pre_hook(enter, with_kwargs=True)
    denoiser.register_forward_hook(leave)


def _cast_states(value: Any, dtype: torch.dtype) -> Any:
    """Cast floating tensors of two or more dimensions, in tuples and mappings too."""
    if isinstance(value, torch.Tensor):
        is_state = value.is_floating_point() and value.ndim > 1
        return value.to(dtype) if is_state else value
    if isinstance(value, tuple):
        return tuple(_cast_states(item, dtype) for item in value)
    if isinstance(value, dict):
        return {name: _cast_states(item, dtype) for name, item in value.items()}
    return value


def load_skeleton(folder: Path, family: Family) -> Pipeline:
    """The pipeline with its shapes but without weights: denoisers and VAE on the meta device."""
    import diffusers

    index = read_json(folder / INDEX)
    parts: dict[str, Any] = {
        name: None if isinstance(value, list) else value
        for name, value in index.items()
        if not name.startswith("_")
    }
    parts["scheduler"] = load_scheduler(folder)
    with torch.device("meta"):
        for name in (*family.denoisers, "vae"):
            if is_component(index.get(name)):
                component = getattr(diffusers, index[name][1])
                parts[name] = component.from_config(component.load_config(folder / name))
    return getattr(diffusers, index["_class_name"])(**parts)
