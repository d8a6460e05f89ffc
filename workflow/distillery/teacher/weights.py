"""The weights files of a pipeline's components: which there are, in which variants, how large."""

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open

from distillery.files import read_json

SUFFIX = ".safetensors"
SHARD = re.compile(r"-\d{5}-of-\d{5}")
INDEX = re.compile(r"^[^.]+\.safetensors\.index(?:\.(?P<variant>[^.]+))?\.json$")


@dataclass(frozen=True)
class Size:
    """How much a component's weights are.

    Attributes:
        num_parameters: all numbers.
        largest: numbers of its largest tensor.
        dtypes: of its tensors, as safetensors names them: "F32", "BF16".
    """

    num_parameters: int
    largest: int
    dtypes: frozenset[str] = frozenset()


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
    """The weights files and the index that are read from a component's folder."""
    chosen = choose_variant(component, wanted)
    return [path for path in weights_in(component) if variant_of(path.name) == chosen]


def missing_weights(component: Path, wanted: str | None) -> list[str]:
    """What a model's folder lacks of the set that is read, as paths from the pipeline's folder."""
    files = weights_of(component, wanted)
    indices = [path for path in files if path.suffix == ".json"]
    named = {file for index in indices for file in read_json(index)["weight_map"].values()}
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


def measure(folder: Path, variant: str | None) -> dict[str, Size]:
    """The size of each component's weights, read from the headers of the files that are loaded.

    Raises ValueError for a truncated file, or one that Git LFS has not fetched.
    """
    sizes = {}
    for component in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = [path for path in weights_of(component, variant) if path.suffix == SUFFIX]
        tensors = [tensor for path in files for tensor in _tensors(path)]
        if tensors:
            counts, dtypes = zip(*tensors, strict=True)
            sizes[component.name] = Size(sum(counts), max(counts), frozenset(dtypes))
    return sizes


def _tensors(path: Path) -> list[tuple[int, str]]:
    """How many numbers each tensor of a weights file has, and of which type, by its header."""
    try:
        with safe_open(path, framework="pt") as file:
            slices = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118
            return [(prod(part.get_shape()), part.get_dtype()) for part in slices]
    except SafetensorError as error:
        raise ValueError(
            f"{path} is damaged ({error}): copy or download it again; if it is tiny, fetch it with "
            "git lfs pull"
        ) from error
