"""LoRA and DoRA adapters: find their files, say which they are, put them into models.

Diffusers only warns when names in a file match nothing in the model, and leaves what it did not
find at random values. Here both are errors. Its `load_lora_weights` needs every component of a
pipeline; `adapt` calls what it calls, one component at a time, since no job loads them all.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from distillery.config.teacher import Adapter, Teacher
from distillery.files import could_be_hub_id, hash_json
from distillery.hash_cache import hash_large_files
from distillery.hub import download_file, explain_hub
from distillery.notes import Note, noting, refuse
from distillery.teacher.adapter_files import Weights, read_weights
from distillery.teacher.adapter_fit import (
    TRAINED_ON_IT,
    check_all_loaded,
    check_fit,
    config_of,
    in_peft_names,
    name_some,
    shorten,
)
from distillery.teacher.adapter_pairs import has_one_scale, has_text
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.quantization import how_quantised

HUB_NAME = "pytorch_lora_weights.safetensors"
"""The file name that Diffusers gives adapters."""


def find_adapter(adapter: Adapter) -> Path:
    """The adapter's file, downloaded if `path` is a hub id.

    Raises FileNotFoundError that says what is there instead, ValueError for a file that has a
    `weight_name` beside it.
    """
    path = Path(adapter.path)
    if path.is_file():
        if path.suffix != ".safetensors":
            raise FileNotFoundError(
                f"teacher.adapters: {path} is no safetensors file; others may run code when they "
                "are loaded and are not read: convert it"
            )
        if adapter.weight_name is not None:
            raise ValueError(
                f"teacher.adapters: path is the file {path}, and weight_name is "
                f"{adapter.weight_name!r}, which names a file of a folder or repository: remove "
                "weight_name, or give the folder as path"
            )
        return path
    if path.is_dir():
        return _in_folder(path, adapter.weight_name)
    if not could_be_hub_id(adapter.path):
        tilde = " (~ is not expanded here)" if adapter.path.startswith("~") else ""
        raise FileNotFoundError(
            f"teacher.adapters: path is {adapter.path!r}: there is no such file or folder{tilde}; "
            "give a safetensors file, a folder with one, or the id of a hub repository, owner/name "
            "(weight_name names a file of it)"
        )
    name = adapter.weight_name or HUB_NAME
    try:
        return download_file(adapter.path, name)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"teacher.adapters: path is {adapter.path!r}: it is no file here, and {name} could not "
            f"be had from the hub: {explain_hub(adapter.path, error)}; weight_name names another "
            "file of the repository"
        ) from error


def _in_folder(folder: Path, weight_name: str | None) -> Path:
    """The one adapter of a folder, or the one that is named."""
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    if not names:
        raise FileNotFoundError(
            f"teacher.adapters: the folder {folder} has no LoRA: no .safetensors file is in it; "
            "give the file itself, or the folder that it is in"
        )
    name = weight_name or (names[0] if len(names) == 1 else None)
    if name is None or not (folder / name).is_file():
        given = "null" if weight_name is None else repr(weight_name)
        raise FileNotFoundError(
            f"teacher.adapters: weight_name is {given} in {folder}, which has {', '.join(names)}: "
            "name one of them"
        )
    return folder / name


def teacher_hash(teacher: Teacher, folder: PipelineFolder) -> str:
    """A hash of what the teacher's networks compute.

    That is: its files, their variant, its adapters and how they are put in, its attention kernels,
    and how its weights are packed.
    """
    packing = how_quantised(teacher)
    own = {"attention": teacher.attention} | ({"quantization": packing} if packing else {})
    return _hash(teacher, folder, _find_all(teacher), own)


def text_hash(teacher: Teacher, folder: PipelineFolder) -> str:
    """As `teacher_hash`, for the text encoders: without adapters that do not change them."""
    files = [(adapter, path) for adapter, path in _find_all(teacher) if has_text(path)]
    return _hash(teacher, folder, files, {})


def denoiser_hash(teacher: Teacher, folder: PipelineFolder) -> str:
    """As `teacher_hash`, for the weights that a student is made from."""
    return _hash(teacher, folder, _find_all(teacher), {}, folder.denoisers)


def _find_all(teacher: Teacher) -> list[tuple[Adapter, Path]]:
    """The teacher's adapters with their files."""
    return [(adapter, find_adapter(adapter)) for adapter in teacher.adapters]


def _hash(
    teacher: Teacher,
    folder: PipelineFolder,
    adapters: Iterable[tuple[Adapter, Path]],
    own: Mapping[str, Any],
    components: Collection[str] = (),
) -> str:
    """A hash of the folder and of what is added to it; without that, the folder's fingerprint.

    With names of components it is of these of its folder. `own` has what else counts.

    Earlier releases gave some layers of a file of several scales a wrong one, which made another
    teacher; so where a file has several, it is named that each layer has its own.
    """
    adapters = list(adapters)
    hashes = hash_large_files(path for _, path in adapters)
    named = [
        {"hash": hashes[path], "scale": adapter.scale, "expert": adapter.expert}
        | ({} if has_one_scale(path) else {"alphas": "of each layer"})
        for adapter, path in adapters
    ]
    added = {
        "variant": folder.variant,
        "adapters": named or None,
        "fused": teacher.fuse_adapters if named else None,
        "attention": None,
        **own,
    }
    fingerprint = folder.fingerprint(components)
    return hash_json({"folder": fingerprint, **added}) if any(added.values()) else fingerprint


def choose_components(adapter: Adapter, weights: Weights, folder: PipelineFolder) -> dict[str, str]:
    """The components that an adapter changes, each with the beginning of its tensors' names.

    Raises ValueError for a component that the teacher does not have.
    """
    present, family = folder.denoisers, folder.family
    expert = adapter.expert or present[0]
    if expert not in present:
        raise ValueError(
            f"teacher.adapters: expert is {expert!r} for {adapter.path}: the teacher has the "
            f"networks {', '.join(present)}"
        )
    takes_text = hasattr(folder.pipeline_class, "load_lora_into_text_encoder")
    candidates = family.text_components if takes_text else ()
    texts = [name for name in candidates if folder.index.get(name)]
    known = {family.denoisers[0]: expert} | dict(zip(texts, texts, strict=True))
    prefixes = {key.partition(".")[0] for key in weights.tensors}
    unknown = [key for key in weights.tensors if key.partition(".")[0] not in known]
    if unknown:
        raise ValueError(
            f"teacher.adapters: {adapter.path} ({weights.dialect}) was made for another model: "
            f"the teacher has nothing named {name_some(unknown)}; what it can "
            f"change begins with {', '.join(known)}"
        )
    return {known[prefix]: prefix for prefix in prefixes}


def adapted_components(teacher: Teacher, folder: PipelineFolder) -> frozenset[str]:
    """Names of the components that the teacher's adapters change."""
    return frozenset(
        name
        for adapter in teacher.adapters
        for name in choose_components(adapter, read_weights(find_adapter(adapter), folder), folder)
    )


def adapt(
    components: Mapping[str, torch.nn.Module], teacher: Teacher, folder: PipelineFolder, fuse: bool
) -> None:
    """Load the teacher's adapters into some of its components, in place.

    Args:
        components: by name, in float32; others that an adapter changes are skipped. The meta
            device is enough to check that everything fits.
        fuse: add them to the weights; otherwise they stay beside them, active.

    Raises:
        ValueError: an adapter does not match, or the sum is not finite.
    """
    loaded: dict[str, dict[str, float]] = {name: {} for name in components}
    for number, adapter in enumerate(teacher.adapters):
        weights = read_weights(find_adapter(adapter), folder)
        for name, prefix in choose_components(adapter, weights, folder).items():
            if name in components:
                _load(components[name], f"adapter_{number}", prefix, weights, adapter)
                loaded[name][f"adapter_{number}"] = adapter.scale
    for name, scales in loaded.items():
        if scales:
            _activate(components[name], scales, fuse)


def check_adapters(
    denoisers: Mapping[str, torch.nn.Module],
    text_encoder: Callable[[str], torch.nn.Module],
    teacher: Teacher,
    folder: PipelineFolder,
) -> None:
    """Check that the teacher's adapters fit its networks, by their shapes alone.

    Transformers leaves out what does not fit, and says nothing; so of text encoders the shapes are
    compared, and denoisers, on the meta device too, take the adapters in.

    Args:
        denoisers: those that the teacher has, by component.
        text_encoder: gives one of the teacher's text encoders, by component.

    Raises:
        ValueError: some do not.
    """
    notes: list[Note] = []
    for number, adapter in enumerate(teacher.adapters):
        with noting(notes):
            weights = read_weights(find_adapter(adapter), folder)
            for name, prefix in choose_components(adapter, weights, folder).items():
                if name in denoisers:
                    _load(denoisers[name], f"adapter_{number}", prefix, weights, adapter)
                else:
                    encoder = text_encoder(name)
                    named = in_peft_names(weights.tensors, prefix, encoder)
                    check_fit(_misfit(adapter, weights, prefix), encoder, named)
    refuse(notes)


def _misfit(adapter: Adapter, weights: Weights, prefix: str) -> str:
    """How the messages begin that say what does not fit."""
    given = f"{adapter.path} ({weights.dialect})"
    return f"teacher.adapters: {given} does not fit the teacher's {prefix}"


def _load(
    model: torch.nn.Module,
    name: str,
    prefix: str,
    weights: Weights,
    adapter: Adapter,
) -> None:
    """Load one adapter into one component under a name, and check that all of it fits."""
    setting = _misfit(adapter, weights, prefix)
    named = in_peft_names(weights.tensors, prefix, model)
    check_fit(setting, model, named)
    try:
        if hasattr(model, "load_lora_adapter"):
            model.load_lora_adapter(  # type: ignore[operator]
                dict(weights.tensors),
                prefix=prefix,
                network_alphas=None,
                metadata=weights.metadata,
                adapter_name=name,
                low_cpu_mem_usage=True,
            )
        else:
            _load_text(model, name, prefix, named, weights.metadata)
    except Exception as error:
        what = f"{type(error).__name__} " * isinstance(error, LookupError | AttributeError)
        raise ValueError(f"{setting}: {what}{shorten(error)}; {TRAINED_ON_IT}") from error
    check_all_loaded(setting, model, name, named)


def _load_text(
    model: torch.nn.Module,
    name: str,
    prefix: str,
    named: dict[str, torch.Tensor],
    metadata: Mapping[str, Any] | None,
) -> None:
    """Load one adapter into a text encoder, any layer of it; Diffusers knows some of CLIP's."""
    from peft import LoraConfig

    start = f"{prefix}."
    given = {
        key.removeprefix(start): value
        for key, value in (metadata or {}).items()
        if key.startswith(start)
    }
    model.load_adapter(  # type: ignore[operator]
        adapter_name=name,
        adapter_state_dict=named,
        peft_config=LoraConfig(**(given if metadata is not None else config_of(named))),
    )


def _activate(model: torch.nn.Module, scales: Mapping[str, float], fuse: bool) -> None:
    """Switch a component's adapters on with their scales; fused ones become part of its weights."""
    from diffusers.loaders.lora_base import fuse_text_encoder_lora, set_adapters_for_text_encoder
    from diffusers.utils import recurse_remove_peft_layers

    set_adapters_for_text_encoder(list(scales), model, list(scales.values()))
    if not fuse:
        return
    try:
        fuse_text_encoder_lora(model, safe_fusing=True, adapter_names=list(scales))
    except ValueError as error:
        raise ValueError(
            f"teacher.adapters: with scales {list(scales.values())} the weights of "
            f"{type(model).__name__} are not finite ({error}): lower them, or leave an adapter out"
        ) from error
    recurse_remove_peft_layers(model)
    # A model that seems to have an adapter would save only that.
    del model.peft_config
    model._hf_peft_config_loaded = False  # type: ignore[assignment]


def cast(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast a float32 model in place as Diffusers would have loaded it in another type.

    What the model's class keeps in float32 stays so, and adapters beside the weights too: a DoRA
    divides by norms that overflow in float16, and the image is black.
    """
    kept = set(getattr(model, "_keep_in_fp32_modules", None) or ())
    stored = model.state_dict(keep_vars=True)
    tensors = dict(stored) if kept else {**stored, **dict(model.named_buffers())}
    for name, tensor in tensors.items():
        stays = "lora_" in name or kept & set(name.split("."))
        if tensor.is_floating_point() and not stays:
            tensor.data = tensor.data.to(dtype)
