"""Files of LoRA and DoRA adapters: find them, read and check them, and say which they are.

fusing.py puts them into models.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from distillery.config.teacher import Adapter, Teacher
from distillery.families import Family
from distillery.files import could_be_hub_id, hash_json, read_json
from distillery.hash_cache import hash_large_files
from distillery.hub import explain_hub
from distillery.teacher.find import INDEX, denoiser_config, denoisers_in, family_in, fingerprint

HUB_NAME = "pytorch_lora_weights.safetensors"
"""The file name that Diffusers gives adapters."""
TEXT_KEYS = ("text_encoder", "lora_te")
"""How names of a text encoder's tensors begin, in Diffusers' format and in kohya's."""
MAX_NAMED = 3


@dataclass(frozen=True)
class Weights:
    """What an adapter's file holds, in Diffusers' names.

    Attributes:
        tensors: float32, by names that begin with their component's.
        alphas: the scales of formats that keep them apart, else None.
        metadata: the configuration of PEFT that newer files carry, else None.
    """

    tensors: Mapping[str, torch.Tensor]
    alphas: Mapping[str, float] | None
    metadata: Mapping[str, Any] | None


def find_adapter(adapter: Adapter) -> Path:
    """The adapter's file, downloaded if `path` is a hub id.

    Raises FileNotFoundError that says what is there instead.
    """
    path = Path(adapter.path)
    if path.is_file():
        if path.suffix != ".safetensors":
            raise FileNotFoundError(
                f"teacher.adapters: {path} is no safetensors file; others may run code when they "
                "are loaded and are not read: convert it"
            )
        return path
    if path.is_dir():
        return _in_folder(path, adapter.weight_name)
    if not could_be_hub_id(adapter.path):
        raise FileNotFoundError(
            f"teacher.adapters: path is {adapter.path!r}: there is no such file or folder; give a "
            "safetensors file, a folder with one, or the id of a hub repository, owner/name"
        )
    from huggingface_hub import hf_hub_download

    name = adapter.weight_name or HUB_NAME
    try:
        return Path(hf_hub_download(adapter.path, name))
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"teacher.adapters: path is {adapter.path!r}: it is no file here, and {name} could not "
            f"be had from the hub: {explain_hub(adapter.path, error)}; weight_name names another "
            "file of the repository"
        ) from error


def _in_folder(folder: Path, weight_name: str | None) -> Path:
    """The one adapter of a folder, or the one that is named."""
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    name = weight_name or (found[0] if len(found) == 1 else None)
    if name is None or not (folder / name).is_file():
        raise FileNotFoundError(
            f"teacher.adapters: weight_name is {weight_name!r} in {folder}, which has "
            f"{', '.join(found) or 'no safetensors files'}: name one of them"
        )
    return folder / name


def teacher_hash(teacher: Teacher, folder: Path) -> str:
    """A hash of what the teacher's networks compute.

    That is: its files, their variant, its adapters and how they are put in, its attention kernels.
    """
    return _hash(teacher, folder, _find_all(teacher), teacher.attention)


def text_hash(teacher: Teacher, folder: Path) -> str:
    """As `teacher_hash`, for the text encoders: what leaves them alone does not count."""
    files = [(adapter, path) for adapter, path in _find_all(teacher) if has_text(path)]
    return _hash(teacher, folder, files, attention=None)


def _find_all(teacher: Teacher) -> list[tuple[Adapter, Path]]:
    """The teacher's adapters with their files."""
    return [(adapter, find_adapter(adapter)) for adapter in teacher.adapters]


def _hash(
    teacher: Teacher,
    folder: Path,
    adapters: Iterable[tuple[Adapter, Path]],
    attention: str | None,
) -> str:
    """The folder's fingerprint alone where nothing is added to it."""
    adapters = list(adapters)
    hashes = hash_large_files(path for _, path in adapters)
    named = [
        {"hash": hashes[path], "scale": adapter.scale, "expert": adapter.expert}
        for adapter, path in adapters
    ]
    added = {
        "variant": teacher.variant,
        "adapters": named or None,
        "fused": teacher.fuse_adapters if named else None,
        "attention": attention,
    }
    found = fingerprint(folder, teacher.variant)
    return hash_json({"folder": found, **added}) if any(added.values()) else found


def has_text(path: Path) -> bool:
    """Whether an adapter's file changes a text encoder."""
    try:
        with safe_open(path, framework="pt") as file:
            return any(name.startswith(TEXT_KEYS) for name in file.keys())  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"teacher.adapters: {path} is damaged ({error}): copy or download it again; if it is "
            "tiny, fetch it with git lfs pull"
        ) from error


def read_weights(path: Path, folder: Path) -> Weights:
    """Read an adapter's file through the teacher's pipeline class, and check its numbers.

    Args:
        path: of the adapter.
        folder: of the teacher.

    Raises:
        ValueError: the pipeline takes no adapters, the file is none, or it is not finite.
    """
    import diffusers
    from diffusers.configuration_utils import FrozenDict

    has_text(path)
    name = read_json(folder / INDEX)["_class_name"]
    pipeline = getattr(diffusers, name)
    if not hasattr(pipeline, "lora_state_dict"):
        raise ValueError(f"teacher.adapters: Diffusers loads none into a {name}; leave them out")
    with safe_open(path, framework="pt") as file:
        dora = [key for key in file.keys() if "dora_scale" in key]  # noqa: SIM118
    if dora:
        raise ValueError(
            f"teacher.adapters: {path} has DoRA scales as {dora[0]}, which Diffusers drops: "
            "convert it to PEFT's format (lora_magnitude_vector)"
        )
    config = denoiser_config(folder)
    tensors, *alphas, metadata = pipeline.lora_state_dict(
        str(path.parent),
        weight_name=path.name,
        use_safetensors=True,
        local_files_only=True,
        unet_config=FrozenDict(config),
        return_alphas=True,
        return_lora_metadata=True,
    )
    _check_numbers(path, tensors)
    floats = {key: value.float() for key, value in tensors.items()}
    return Weights(floats, alphas[0] if alphas else None, metadata)


def _check_numbers(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise ValueError for tensors that belong to no adapter, or are not finite."""
    foreign = [key for key in tensors if "lora" not in key]
    if foreign or not tensors:
        raise ValueError(
            f"teacher.adapters: {path} is no LoRA or DoRA: it holds "
            f"{name_some(foreign) or 'nothing'}"
        )
    bad = [key for key, value in tensors.items() if not value.isfinite().all()]
    if bad:
        raise ValueError(
            f"teacher.adapters: {path} is not finite in {name_some(bad)}: it was spoiled when it "
            "was trained or converted; use another one"
        )


def name_some(keys: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    names = sorted(keys)
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def choose_components(
    adapter: Adapter, weights: Weights, folder: Path, family: Family
) -> dict[str, str]:
    """The components that an adapter changes, each with the beginning of its tensors' names.

    Raises ValueError for a component that the teacher does not have.
    """
    import diffusers

    present = denoisers_in(folder)
    expert = adapter.expert or present[0]
    if expert not in present:
        raise ValueError(
            f"teacher.adapters: expert is {expert!r} for {adapter.path}: the teacher has the "
            f"networks {', '.join(present)}"
        )
    index = read_json(folder / INDEX)
    takes_text = hasattr(getattr(diffusers, index["_class_name"]), "load_lora_into_text_encoder")
    texts = [name for name in family.text_components if index.get(name)] if takes_text else []
    known = {family.denoisers[0]: expert} | dict(zip(texts, texts, strict=True))
    prefixes = {key.partition(".")[0] for key in weights.tensors}
    unknown = [key for key in weights.tensors if key.partition(".")[0] not in known]
    if unknown:
        raise ValueError(
            f"teacher.adapters: {adapter.path} was made for another model: the teacher has nothing "
            f"named {name_some(unknown)}; what it can change begins with {', '.join(known)}"
        )
    return {known[prefix]: prefix for prefix in prefixes}


def adapted_components(teacher: Teacher, folder: Path) -> frozenset[str]:
    """Names of the components that the teacher's adapters change."""
    family = family_in(folder)
    return frozenset(
        name
        for adapter in teacher.adapters
        for name in choose_components(
            adapter, read_weights(find_adapter(adapter), folder), folder, family
        )
    )
