"""Load the parts of a pipeline that a job needs, as the configuration asks."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import torch

from distillery.config.section import Dtype
from distillery.config.teacher import Teacher
from distillery.families import Family
from distillery.families.protocol import Denoiser, Pipeline
from distillery.model_folder import load_denoiser
from distillery.teacher.adapters import adapt, adapted_components, cast
from distillery.teacher.components import library_of, unusable
from distillery.teacher.decoding import guard_decoding
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.placement import check_devices, place, set_attention
from distillery.teacher.quantization import quantise
from distillery.teacher.rounding import keep_states_in_float32
from distillery.teacher.single_file import read_network
from distillery.teacher.skeleton import hollow
from distillery.teacher.solver import load_scheduler
from distillery.teacher.tokenizers import check_class


def torch_dtype(name: Dtype) -> torch.dtype:
    """The torch type of a configuration's `dtype`."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def load_encoders(teacher: Teacher, folder: PipelineFolder, device: torch.device) -> Pipeline:
    """Load all that encodes prompts and their images, in a pipeline whose calls can begin: its
    networks have their configuration, and empty weights.

    Args: as for `load_teacher`.
    """
    unpacked = teacher.model_copy(update={"quantization": None})
    return load_teacher(unpacked, folder, device, tuple(folder.denoisers), with_hollow=True)


def load_teacher(
    teacher: Teacher,
    folder: PipelineFolder,
    device: torch.device,
    leave_out: tuple[str, ...] = (),
    with_hollow: bool = False,
) -> Pipeline:
    """Load the teacher's stock pipeline as its configuration asks.

    What adapters change is loaded in float32 and cast when they are in: a DoRA in float16
    overflows, and a LoRA is often smaller than what bfloat16 can add.

    Args:
        teacher: the section of the configuration.
        device: where it goes, or where its parts go in turn.
        leave_out: names of components that this job does not need.
        with_hollow: put networks without weights in the place of those that are left out.

    Raises:
        ValueError: an adapter does not fit, or this machine or model lacks what is asked for.
    """
    check_devices(teacher, device)
    adapted = sorted(adapted_components(teacher, folder) - set(leave_out))
    dtypes = dict.fromkeys(adapted, torch.float32) | {
        "default": torch_dtype(teacher.dtype),
        "vae": torch_dtype(teacher.vae_dtype),
    }
    pipeline = _read_pipeline(folder, dtypes, leave_out)
    components = {name: getattr(pipeline, name) for name in adapted}
    adapt(components, teacher, folder, teacher.fuse_adapters)
    for component in components.values():
        cast(component, torch_dtype(teacher.dtype))
    if teacher.quantization is not None:
        for denoiser in denoisers_of(pipeline, folder.family).values():
            quantise(denoiser, teacher.quantization, torch_dtype(teacher.dtype), device)
    pipeline.scheduler = load_scheduler(folder, teacher)
    for name in leave_out if with_hollow else ():
        setattr(pipeline, name, hollow(folder, name, torch_dtype(teacher.dtype)))
    return _set_up(pipeline, teacher, folder.family, device)


def load_exact_teacher(
    teacher: Teacher, folder: PipelineFolder, device: torch.device, leave_out: tuple[str, ...] = ()
) -> Pipeline:
    """`load_teacher` for calls with float32 states, which become the student's targets.

    See `rounding.keep_states_in_float32`.
    """
    return _exact(load_teacher(teacher, folder, device, leave_out), teacher, folder.family)


def load_student(
    teacher: Teacher, folder: PipelineFolder, device: torch.device, leave_out: tuple[str, ...] = ()
) -> Pipeline:
    """Load the student's pipeline the way its teacher is loaded; its weights are its own.

    Args: as for `load_teacher`; `folder` is the student's pipeline.
    """
    check_devices(teacher, device)
    dtypes = {"default": torch_dtype(teacher.dtype), "vae": torch_dtype(teacher.vae_dtype)}
    pipeline = _read_pipeline(folder, dtypes, leave_out)
    return _set_up(pipeline, teacher, folder.family, device)


def load_exact_student(
    teacher: Teacher, folder: PipelineFolder, device: torch.device, leave_out: tuple[str, ...] = ()
) -> Pipeline:
    """`load_student` for calls with float32 states, which the teacher then walks on from.

    See `rounding.keep_states_in_float32`.
    """
    return _exact(load_student(teacher, folder, device, leave_out), teacher, folder.family)


def _exact(pipeline: Pipeline, teacher: Teacher, family: Family) -> Pipeline:
    for denoiser in denoisers_of(pipeline, family).values():
        keep_states_in_float32(denoiser, torch_dtype(teacher.dtype), family)
    return pipeline


def _set_up(pipeline: Pipeline, teacher: Teacher, family: Family, device: torch.device) -> Pipeline:
    """Set up a loaded pipeline as the configuration asks: attention, decoding, placement."""
    for denoiser in denoisers_of(pipeline, family).values():
        if teacher.attention is not None:
            set_attention(denoiser, teacher.attention, teacher.dtype)
    guard_decoding(pipeline, teacher.vae_tiling)
    return place(pipeline, teacher, device)


def _read_pipeline(
    folder: PipelineFolder, dtypes: Mapping[str, torch.dtype], leave_out: tuple[str, ...]
) -> Pipeline:
    """Read a stock pipeline to the CPU; `dtypes` are by component, and `default`.

    By its own class: `DiffusionPipeline.from_pretrained` loads components that a class calls
    optional, such as Wan's transformer, though they are to be left out. A few ask a component while
    they are made, as Bria its VAE: they are read with all of them, and left without then.
    """
    from diffusers.utils.logging import disable_progress_bar

    disable_progress_bar()
    read = partial(
        folder.pipeline_class.from_pretrained,
        folder.path,
        dtype=dict(dtypes),
        variant=folder.variant,
        local_files_only=True,
    )
    never: dict[str, Any] = dict.fromkeys(folder.components_left_out)
    absent = never | dict.fromkeys(leave_out)
    try:
        pipeline = read(**(absent | read_files(folder, dtypes, leave_out)))
    except AttributeError:
        if absent == never:
            raise
        pipeline = read(**(never | read_files(folder, dtypes)))
        pipeline.register_modules(**absent)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def read_files(
    folder: PipelineFolder, dtypes: Mapping[str, torch.dtype], leave_out: Collection[str] = ()
) -> dict[str, Any]:
    """The networks whose weights are in files of their own, by component; `dtypes` as above."""
    return {
        name: load_network(folder, name, dtypes.get(name, dtypes["default"]))
        for name in folder.files
        if name not in leave_out
    }


def load_network(folder: PipelineFolder, name: str, dtype: torch.dtype) -> torch.nn.Module:
    """One of a pipeline's networks, a text encoder or another, on the CPU."""
    component = folder.path / name
    if name in folder.files:
        return read_network(folder.files[name], folder.index[name], component, dtype)
    variant = folder.chosen_variant(name)
    if name not in folder.family.text_components:
        return load_denoiser(component, dtype, variant)
    model = getattr(library_of(folder.index[name]), folder.components[name])
    encoder: torch.nn.Module = model.from_pretrained(component, dtype=dtype, variant=variant)
    return encoder


def load_adapted(teacher: Teacher, folder: PipelineFolder, name: str) -> torch.nn.Module:
    """One of the teacher's networks in float32 with its adapters fused, as where a student starts.

    Raises ValueError: an adapter does not fit.
    """
    network = load_network(folder, name, torch.float32)
    adapt({name: network}, teacher, folder, fuse=True)
    return network


def is_in_folder(teacher: Teacher, folder: PipelineFolder, name: str) -> bool:
    """Whether `load_adapted` surely gives the numbers of the network's own folder."""
    return not teacher.adapters and name not in folder.files


def unpacked_of(teacher: Teacher, folder: PipelineFolder) -> Callable[[str], Denoiser] | None:
    """What loads one of the teacher's networks, by component, before its weights are packed, on the
    CPU; None where they are not packed."""

    def load(name: str) -> Denoiser:
        if not teacher.adapters:
            return load_network(folder, name, torch_dtype(teacher.dtype))
        network = load_adapted(teacher, folder, name)
        cast(network, torch_dtype(teacher.dtype))
        return network

    return None if teacher.quantization is None else load


def load_changed(teacher: Teacher, folder: PipelineFolder) -> dict[str, Any]:
    """The networks beside the denoisers that are not as in the teacher's folder: text encoders that
    its adapters change, and what a file of its own replaces; as they compute, by component."""
    changed = (adapted_components(teacher, folder) | set(folder.files)) - set(folder.denoisers)
    networks = {}
    for name in sorted(changed):
        networks[name] = load_adapted(teacher, folder, name)
        cast(networks[name], torch_dtype(teacher.vae_dtype if name == "vae" else teacher.dtype))
    return networks


def denoisers_of(pipeline: Pipeline, family: Family) -> dict[str, Denoiser]:
    """The denoisers that a pipeline has, by their component's name."""
    components = {name: getattr(pipeline, name, None) for name in family.denoisers}
    return {name: denoiser for name, denoiser in components.items() if denoiser is not None}


def load_tokenizers(folder: PipelineFolder) -> Pipeline:
    """The pipeline with its tokenizers and without any model: all that a prompt's length needs.

    Raises ValueError for files that a tokenizer cannot be made of.
    """
    tokenizers = [name for name, kind in folder.components.items() if "Tokenizer" in kind]
    models = folder.components.keys() - {*tokenizers, "scheduler"}
    with unusable(folder.path / " or ".join(tokenizers)):
        for name in tokenizers:
            check_class(folder, name)
        return _read_pipeline(folder, {}, tuple(models))
