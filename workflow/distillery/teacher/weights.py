"""The weights files of a pipeline's components: which there are, in which variants, how large."""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from distillery.files import read_json
from distillery.model_folder import LINKED_BYTES

SUFFIX = ".safetensors"
DIFFUSERS = f"diffusion_pytorch_model{SUFFIX}"
WHOLE = (DIFFUSERS, f"model{SUFFIX}")
"""Names of the one file that Diffusers and Transformers read where there is no index."""
SHARD = re.compile(r"-\d{5}-of-\d{5}")
INDEX = re.compile(r"^[^.]+\.safetensors\.index(?:\.(?P<variant>[^.]+))?\.json$")


CONFIG = "config.json"
INTEGERS = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64")


COUNTS = re.compile(r"num_(\w+_)?(layers|blocks)|(\w+_)?layers_per_block|depth")
"""Keys of configurations that say how many layers there are."""


class Tensor(NamedTuple):
    """One tensor of a weights file; its type as safetensors names it: "F32", "BF16"."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Size:
    """How much a component's weights are.

    Attributes:
        num_parameters: all numbers.
        largest: numbers of its largest tensor.
        dtypes: of its tensors, as safetensors names them: "F32", "BF16".
        packable: of all numbers, those in matrices of numbered blocks.
    """

    num_parameters: int
    largest: int
    dtypes: frozenset[str] = frozenset()
    packable: int = 0


def variant_of(file: str) -> str | None:
    """The variant that a weights file or an index belongs to, None for the plain set.

    As Diffusers and Transformers name them: `model.safetensors`, `model.fp16.safetensors`,
    `model.fp16-00001-of-00002.safetensors`, `model.safetensors.index.fp16.json`.
    """
    index = INDEX.match(file)
    if index:
        return index["variant"]
    _, _, variant = SHARD.sub("", file.removesuffix(SUFFIX)).partition(".")
    return variant or None


def plain_name(file: str) -> str:
    """The name of a weights file or an index once it is the only set: without its variant.

    Shards keep theirs, since an index may name its shards as it likes.
    """
    variant = variant_of(file)
    return file if variant is None or SHARD.search(file) else file.replace(f".{variant}", "", 1)


def weights_in(component: Path) -> list[Path]:
    """Every weights file and index of a component's folder, of all variants."""
    return sorted([*component.glob(f"*{SUFFIX}"), *component.glob(f"*{SUFFIX}.index*.json")])


def variants_in(component: Path) -> set[str | None]:
    """The sets of weights that a component has; None is the plain one."""
    return {variant_of(path.name) for path in weights_in(component)}


def choose_variant(component: Path, wanted: str | None) -> str | None:
    """The set that is read: the wanted one where there is one, else the plain, as in Diffusers."""
    return wanted if wanted in variants_in(component) else None


def weights_of(component: Path, wanted: str | None) -> list[Path]:
    """The weights files and the index that are read from a component's folder.

    Folders that were saved into twice have others too. Diffusers looks for an index first,
    Transformers for the one whole file.
    """
    chosen = choose_variant(component, wanted)
    files = [path for path in weights_in(component) if variant_of(path.name) == chosen]
    whole = [path for path in files if plain_name(path.name) in WHOLE]
    for index in (path for path in files if path.suffix == ".json"):
        single = index.name.partition(SUFFIX)[0] + SUFFIX
        if single == DIFFUSERS or not any(plain_name(path.name) == single for path in whole):
            named = named_by(index)
            return [path for path in weights_in(component) if path == index or path.name in named]
    return whole or files


def link_network(component: Path, target: Path, variant: str | None = None) -> None:
    """Make a folder of what is read of a network's; its weights lose their variant's name."""
    target.mkdir(parents=True, exist_ok=True)
    link_or_copy(component / CONFIG, target / CONFIG)
    for path in weights_of(component, variant):
        link_or_copy(path, target / plain_name(path.name))


def link_or_copy(path: Path, copy: Path) -> None:
    """Copy a small file, and link a large one, which takes no space, where that is possible: hard
    links do not cross file systems, and some have none."""
    path = path.resolve()
    if path.stat().st_size >= LINKED_BYTES:
        try:
            os.link(path, copy)
        except OSError:
            pass
        else:
            return
    shutil.copyfile(path, copy)


def named_by(index: Path) -> set[str]:
    """The names of the files that an index of shards lists.

    Raises ValueError for an index that lists none, or files outside of its folder.
    """
    listed = read_json(index).get("weight_map")
    names = set(map(str, listed.values())) if isinstance(listed, dict) else set()
    if not names or any(Path(name).name != name for name in names):
        raise ValueError(
            f"{index} is damaged: its weight_map must give each tensor the name of a file beside "
            "it; copy or download it again"
        )
    return names


def missing_weights(component: Path, wanted: str | None) -> list[str]:
    """What a model's folder lacks of the set that is read, as paths from the pipeline's folder."""
    files = weights_of(component, wanted)
    named = {file for path in files if path.suffix == ".json" for file in named_by(path)}
    if not named and not files:
        others = sorted(variant for variant in variants_in(component) if variant)
        there = f" (there is teacher.variant {', '.join(others)})" if others else ""
        if any(component.glob("*.bin")):
            there += " (there is a .bin, which could run code and is not read: docs/teachers.md)"
        return [f"{component.name}/*{SUFFIX}{there}"]
    return [
        f"{component.name}/{file}" for file in sorted(named) if not (component / file).is_file()
    ]


def list_variants(folder: Path) -> list[str]:
    """The variants of a pipeline's folder that have a name."""
    variants = {name for path in folder.iterdir() if path.is_dir() for name in variants_in(path)}
    return sorted(name for name in variants if name)


def read_headers(folder: Path, variant: str | None) -> dict[str, dict[str, Tensor]]:
    """The tensors of each component's weights, from the headers of the files that are loaded.

    Raises ValueError for a truncated file, or one that Git LFS has not fetched.
    """
    components = sorted(path for path in folder.iterdir() if path.is_dir())
    files = {component.name: weights_of(component, variant) for component in components}
    found = {
        name: {
            key: tensor
            for path in paths
            if path.suffix == SUFFIX
            for key, tensor in read_header(path)
        }
        for name, paths in files.items()
    }
    return {name: tensors for name, tensors in found.items() if tensors}


def read_header(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a weights file, by its header."""
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder, a file of weights is needed: copy or download it again"
        )
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                yield name, Tensor(tuple(part.get_shape()), part.get_dtype())
    except SafetensorError as error:
        raise ValueError(
            f"{path} is damaged ({error}): copy or download it again; if it is tiny, fetch it with "
            "git lfs pull"
        ) from error


def measure(tensors: Mapping[str, Tensor]) -> Size:
    """The size of a component's weights."""
    counts = {name: prod(one.shape) for name, one in tensors.items()}
    packable = [
        count
        for name, count in counts.items()
        if is_of_block(name) and name.endswith(".weight") and len(tensors[name].shape) == 2
    ]
    dtypes = frozenset(one.dtype for one in tensors.values())
    return Size(sum(counts.values()), max(counts.values()), dtypes, sum(packable))


def is_of_block(name: str) -> bool:
    """Whether a module or tensor is in one of a network's numbered blocks."""
    return any(part.isdigit() for part in name.split("."))


def check_counts(path: Path, tensors: Mapping[str, Tensor] | None) -> None:
    """Raise ValueError for a config.json of more layers than its weights have tensors.

    A network of so many would take minutes to be made, and no memory holds it.
    """
    if tensors is None:
        return
    for key, count in _counts(read_json(path)):
        if count > len(tensors):
            raise ValueError(
                f"{path}: {key} is {count}, and the weights beside it are {len(tensors)} tensors: "
                "copy or download it again"
            )


def _counts(value: object, key: str = "") -> Iterator[tuple[str, int]]:
    """The numbers of layers that a configuration has at any depth, by their keys."""
    if isinstance(value, dict):
        yield from (found for name in value for found in _counts(value[name], str(name)))
    elif isinstance(value, list):
        yield from (found for one in value for found in _counts(one, key))
    elif isinstance(value, int) and COUNTS.fullmatch(key):
        yield key, value


def check_fit(component: Path, network: torch.nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError for weights of other shapes than a network's, or for fewer of them.

    Names are compared only where both have them: libraries rename some while they load.
    """
    own = network.state_dict()
    for name, value in own.items():
        stored = tensors.get(name)
        if stored is not None and stored.shape != tuple(value.shape):
            raise ValueError(
                f"{component} is damaged: {name} is {list(stored.shape)} in its weights and "
                f"{list(value.shape)} by its {CONFIG}; copy or download it again"
            )
        if stored is not None and value.is_floating_point() and stored.dtype in INTEGERS:
            raise ValueError(
                f"{component} is damaged: {name} holds whole numbers ({stored.dtype}), floating "
                "ones are needed; copy or download it again"
            )
    needed = sum(parameter.numel() for parameter in network.parameters())  # tied ones once
    if needed > sum(prod(tensor.shape) for tensor in tensors.values()):
        lacking = [name for name in own if name not in tensors]
        raise ValueError(
            f"{component} is damaged: its weights lack {len(lacking)} tensors that its {CONFIG} "
            f"asks for, such as {', '.join(lacking[:3])}; copy or download it again"
        )


def check_layers(component: Path, names: Iterable[str], tensors: Iterable[str]) -> None:
    """Raise ValueError for weights with numbered layers that a network, by its tensors' names, does
    not have.

    Diffusers would leave them out.
    """
    own = {layer for name in names for layer in _layers(name)}
    surplus = sorted({layer for name in tensors for layer in _layers(name)} - own)
    if surplus:
        raise ValueError(
            f"{component} is damaged: its weights have {', '.join(surplus[:3])}, which the network "
            f"of its {CONFIG} does not; copy or download it again"
        )


def _layers(name: str) -> Iterator[str]:
    """The numbered layers that a tensor is in: "blocks.3" of "blocks.3.norm.weight"."""
    parts = name.split(".")
    yield from (".".join(parts[: end + 1]) for end, part in enumerate(parts) if part.isdigit())
