"""Load the parts of a pipeline that a job needs, as the configuration asks."""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from distillery.config.section import Dtype
from distillery.config.teacher import Teacher
from distillery.families import Family
from distillery.families.protocol import Denoiser, Pipeline
from distillery.files import read_json
from distillery.model_folder import load_denoiser
from distillery.notes import Note, error, noting, refuse
from distillery.teacher.adapters import adapt, adapted_components, cast, check_adapters
from distillery.teacher.components import INDEX, check_classes, library_of, unusable
from distillery.teacher.decoding import guard_decoding
from distillery.teacher.folder import PipelineFolder, check_texts_present
from distillery.teacher.placement import check_attention, check_devices, place, set_attention
from distillery.teacher.quantization import quantise
from distillery.teacher.single_file import on_file, read_network
from distillery.teacher.solver import load_scheduler
from distillery.teacher.tokenizers import check_class
from distillery.teacher.unread import Read, on_read, read_by_diffusers, read_by_transformers
from distillery.teacher.weights import CONFIG, check_counts, check_fit, check_layers

TIMESTEP = "timestep"
"""The argument of all denoisers."""
LOW_PRECISION = (torch.bfloat16, torch.float16)


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
        folder: as `find_teacher` found it.
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
        setattr(pipeline, name, _hollow(folder, name, torch_dtype(teacher.dtype)))
    return _set_up(pipeline, teacher, folder.family, device)


def load_exact_teacher(
    teacher: Teacher, folder: PipelineFolder, device: torch.device, leave_out: tuple[str, ...] = ()
) -> Pipeline:
    """`load_teacher` for calls with float32 states, which become the student's targets.

    See `keep_states_in_float32`.
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

    See `keep_states_in_float32`.
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


def keep_states_in_float32(denoiser: Denoiser, dtype: torch.dtype, family: Family) -> None:
    """Let a network that computes in `dtype` take and return float32, so that no sampler rounds.

    Stock pipelines hold the states in the network's type. With bfloat16 every step then rounds to
    three digits, and guidance multiplies the rounding. Hooks that cast the network's inputs and
    outputs keep states, guidance and scheduler in float32 at no cost. Not cast are timesteps, be
    they one or one of each token, since bfloat16 has no odd number above 256, but where the stock
    call rounds them; and what else is float32 in the stock call, such as tables of positions.
    """
    names = _names_of(denoiser)
    kept = family.in_float32 | {(TIMESTEP,)}

    def enter(
        _module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = cast_timestep(denoiser, args, kwargs, dtype, family)
        given = tuple(
            _cast_states(value, dtype, kept, names[place : place + 1])
            for place, value in enumerate(args)
        )
        return given, _cast_states(kwargs, dtype, kept)

    def leave(_module: torch.nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        return _cast_states(output, torch.float32)

    if dtype != torch.float32:
        denoiser.register_forward_pre_hook(enter, with_kwargs=True)
        denoiser.register_forward_hook(leave)


def cast_timestep(
    denoiser: Denoiser,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dtype: torch.dtype,
    family: Family,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give a network's arguments from a stock call with float32 states the timestep of a call in
    `dtype`, whether the call names it or not."""
    place = _place_of_timestep(denoiser)
    is_named = not 0 <= place < len(args)
    timestep = kwargs.get(TIMESTEP) if is_named else args[place]
    is_float32 = isinstance(timestep, torch.Tensor) and timestep.dtype == torch.float32
    if dtype == torch.float32 or timestep is None or not is_float32:
        return args, kwargs
    as_stock = family.stock_timestep(timestep, dtype)
    if is_named:
        return args, kwargs | {TIMESTEP: as_stock}
    return (*args[:place], as_stock, *args[place + 1 :]), kwargs


def _place_of_timestep(denoiser: Denoiser) -> int:
    """Where a network takes the timestep; -1: nowhere."""
    names = _names_of(denoiser)
    return names.index(TIMESTEP) if TIMESTEP in names else -1


def _names_of(denoiser: Denoiser) -> tuple[str, ...]:
    """Names of the arguments of a network, or of the one in a wrapper's `module`."""
    network = getattr(denoiser, "module", denoiser)
    return tuple(inspect.signature(network.forward).parameters)


def can_be_in_float32(denoiser: Denoiser) -> bool:
    """Whether `in_float32` is possible and of use: weights of lower precision, on one device."""
    is_low = any(parameter.dtype in LOW_PRECISION for parameter in denoiser.parameters())
    return is_low and not hasattr(denoiser, "_hf_hook")


@contextmanager
def in_float32(denoiser: Denoiser) -> Iterator[None]:
    """Let a network compute in float32 for a while; its weights come back bit for bit.

    Takes twice their memory meanwhile.
    """
    tensors = [*denoiser.parameters(), *denoiser.buffers()]
    before = [(tensor, tensor.dtype) for tensor in tensors if tensor.dtype in LOW_PRECISION]
    try:
        for tensor, _ in before:
            tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, dtype in before:
            tensor.data = tensor.data.to(dtype)


def _cast_states(
    value: Any,
    dtype: torch.dtype,
    kept: Collection[tuple[str | int, ...]] = (),
    place: tuple[str | int, ...] = (),
) -> Any:
    """Cast floating tensors of two or more dimensions, in tuples and mappings too, but for those at
    some places."""
    if isinstance(value, torch.Tensor):
        is_state = value.is_floating_point() and value.ndim > 1 and place not in kept
        return value.to(dtype) if is_state else value
    if isinstance(value, tuple):
        items = enumerate(value)
        return tuple(_cast_states(item, dtype, kept, (*place, at)) for at, item in items)
    if isinstance(value, dict):
        return {
            name: _cast_states(item, dtype, kept, (*place, name)) for name, item in value.items()
        }
    return value


def load_skeleton(folder: PipelineFolder) -> Pipeline:
    """The pipeline with its shapes but without weights: denoisers and VAE on the meta device.

    Callers share it, and change nothing in it: a large one takes seconds.

    Raises ValueError that names the component which cannot be made of its files.
    """
    files = sorted((folder.path / INDEX, *folder.path.glob("*/*.json")))
    return _load_skeleton(folder, tuple((path, path.stat().st_mtime_ns) for path in files))


@lru_cache(maxsize=1)
def _load_skeleton(folder: PipelineFolder, _dates: tuple[tuple[Path, int], ...]) -> Pipeline:
    components, settings = folder.pipeline_class._get_signature_keys(folder.pipeline_class)
    parts: dict[str, Any] = dict.fromkeys(components)
    # Diffusers ignores settings that its class does not know.
    parts |= {name: folder.index[name] for name in settings if name in folder.index}
    with unusable(folder.path / "scheduler"):
        parts["scheduler"] = load_scheduler(folder)
    for name in (*folder.family.denoisers, "vae"):
        if name in folder.components:
            parts[name] = _skeleton(folder, name)
    with unusable(folder.path / INDEX):
        return folder.pipeline_class(**parts)


def _skeleton(folder: PipelineFolder, name: str) -> torch.nn.Module:
    """A network of Diffusers, or a text encoder of Transformers, on the meta device."""
    path, tensors = folder.path / name, folder.tensors.get(name)
    with unusable(path / CONFIG), torch.device("meta"):
        check_counts(path / CONFIG, tensors)
        model = getattr(library_of(folder.index[name]), folder.components[name])
        skeleton: torch.nn.Module
        if hasattr(model, "load_config"):
            skeleton = model.from_config(model.load_config(path))
        else:
            skeleton = model(model.config_class.from_pretrained(path))
            skeleton.tie_weights()  # type: ignore[operator]
    return skeleton


def _hollow(folder: PipelineFolder, name: str, dtype: torch.dtype) -> Denoiser:
    """A network with its configuration and empty weights, for calls that end before it."""
    network = _skeleton(folder, name)
    for module in network.modules():
        held: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for tensors in held:
            for key, tensor in [*tensors.items()]:
                if tensor is not None:
                    own = dtype if tensor.is_floating_point() else tensor.dtype
                    empty = torch.empty(0, dtype=own)
                    is_weight = isinstance(tensor, torch.nn.Parameter)
                    tensors[key] = torch.nn.Parameter(empty, False) if is_weight else empty
    return network


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


def check_options(teacher: Teacher, folder: PipelineFolder) -> None:
    """Raise ValueError if adapters, attention or tiling do not fit the teacher; reads no weights of
    it."""
    if teacher.vae_tiling and not hasattr(_skeleton(folder, "vae"), "use_tiling"):
        raise ValueError("teacher.vae_tiling is true: this VAE cannot decode in tiles; remove it")
    if not teacher.adapters and teacher.attention is None:
        return
    denoisers: dict[str, Denoiser] = {name: _skeleton(folder, name) for name in folder.denoisers}
    notes: list[Note] = []
    with noting(notes):
        for denoiser in denoisers.values():
            if teacher.attention is not None:
                check_attention(denoiser, teacher.attention, teacher.dtype)
    with noting(notes):
        check_adapters(denoisers, partial(_skeleton, folder), teacher, folder)
    refuse(notes)


def on_networks(folder: PipelineFolder) -> Iterator[Note]:
    """Weights that are not those of the network that config.json describes, and tensors that no
    network knows; reads headers alone. Raises ValueError for what no network can be made of."""
    family = folder.family
    check_texts_present(folder)
    needed = {*family.denoisers, "vae", "scheduler", *family.text_components}
    loaded = needed & folder.components.keys() - set(family.may_lack)
    check_classes(folder.path / INDEX, folder.index, folder.pipeline_class, loaded)
    there = needed & folder.components.keys()
    packed = list(on_packed(folder, there - folder.files.keys()))
    if packed:  # their tensors are not those of a network
        yield from packed
        return
    pipeline = load_skeleton(folder)
    networks = {**denoisers_of(pipeline, folder.family), "vae": pipeline.vae}
    for name in networks.keys() - folder.files.keys():
        check_layers(folder.path / name, networks[name].state_dict(), folder.tensors[name])
    for name in folder.family.text_components:
        if "text_encoder" in name and name in folder.components:
            networks[name] = _skeleton(folder, name)
    for name, network in networks.items():
        if name in folder.files:
            tensors = folder.tensors[name]
            yield from on_file(folder.files[name], folder.path / name, network, tensors)
        else:
            check_fit(folder.path / name, network, folder.tensors[name])
            yield from on_read(folder.path / name, _read(folder, name, network))


def on_packed(folder: PipelineFolder, components: Iterable[str]) -> Iterator[Note]:
    """Components of a folder that were saved with quantised weights."""
    for name in sorted(components):
        path = folder.path / name / CONFIG
        packing = read_json(path).get("quantization_config") if path.is_file() else None
        if packing:
            method = packing.get("quant_method", "no method named")
            yield error(
                f"{folder.path / name} holds quantised weights ({method})",
                ": the student starts from the teacher's numbers, and adapters change them",
                "use the model as it was released; teacher.quantization packs it where it runs",
            )


def _read(folder: PipelineFolder, name: str, network: torch.nn.Module) -> Read:
    """How the library of a component reads its weights."""
    tensors = folder.tensors[name]
    if name not in folder.family.text_components:
        return read_by_diffusers(network, tensors)
    return read_by_transformers(type(network), folder.path / name, tensors)
