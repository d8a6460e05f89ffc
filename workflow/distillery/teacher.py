"""Find a teacher, check that it is whole, and say which it is."""

import hashlib
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from distillery.config import Teacher
from distillery.families import Family, family_of
from distillery.files import could_be_hub_id, hash_json, read_json

INDEX = "model_index.json"
MODEL_CONFIG = "config.json"
CONFIGS = {
    "Scheduler": "scheduler_config.json",
    "Tokenizer": "tokenizer_config.json",
    "Processor": "preprocessor_config.json",
    "FeatureExtractor": "preprocessor_config.json",
}
"""Part of a component's class name to the file that describes it; a model has `MODEL_CONFIG`."""
HASHED_BYTES = 1 << 20
"""Of each end of a weights file. Hashing all of a 60 GB teacher would take minutes in each job."""


def find_teacher(teacher: Teacher) -> Path:
    """The folder of the teacher, downloaded if `path` is a hub id, checked for completeness.

    Raises:
        FileNotFoundError: no such folder, or one of its files is missing.
        ValueError: the folder is not a Diffusers pipeline of a known family.
    """
    folder = Path(teacher.path)
    if not folder.is_dir():
        if not could_be_hub_id(teacher.path):
            raise FileNotFoundError(
                f"teacher.path is {teacher.path!r}: there is no such folder; give a Diffusers "
                "folder (with a model_index.json) or the id of a hub repository, owner/name"
            )
        from diffusers import DiffusionPipeline

        try:
            folder = Path(DiffusionPipeline.download(teacher.path, revision=teacher.revision))
        except OSError as error:
            raise FileNotFoundError(
                f"teacher.path is {teacher.path!r}: it is no folder here and could not be had from "
                f"the hub ({error})"
            ) from error
    check_complete(folder)
    return folder


def check_complete(folder: Path) -> None:
    """Raise unless every component that model_index.json names is there with all its weights."""
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(
            f"{folder} has no {INDEX}: teacher.path must be a folder in Diffusers format "
            "(what `pipeline.save_pretrained` writes)"
        )
    index = read_json(folder / INDEX)
    family_of(index.get("_class_name", ""))
    missing = [
        file
        for name, value in index.items()
        if is_component(value)
        for file in _missing(folder / name, class_name=value[1])
    ]
    if missing:
        raise FileNotFoundError(
            f"the teacher in {folder} is incomplete, missing: {', '.join(missing)}; copy or "
            "download it again"
        )


def is_component(value: Any) -> bool:
    """Whether an entry of model_index.json is a component, [library, class], that is present."""
    return isinstance(value, list) and len(value) == 2 and None not in value


def _missing(component: Path, class_name: str) -> list[str]:
    """What a component's folder lacks, as paths relative to the pipeline's folder."""
    if not component.is_dir():
        return [component.name]
    config = next((CONFIGS[kind] for kind in CONFIGS if kind in class_name), MODEL_CONFIG)
    if not (component / config).is_file():
        return [f"{component.name}/{config}"]
    indices = sorted(component.glob("*.safetensors.index.json"))
    named = {file for index in indices for file in read_json(index)["weight_map"].values()}
    lacking = [
        f"{component.name}/{file}" for file in sorted(named) if not (component / file).is_file()
    ]
    if config == MODEL_CONFIG and not named and not any(component.glob("*.safetensors")):
        lacking.append(f"{component.name}/*.safetensors")
    return lacking


def fingerprint(folder: Path) -> str:
    """A hash that tells two pipelines apart, without reading all of their weights.

    Covers every JSON and tokenizer file whole, and of each weights file its size and its first and
    last MiB. Where the folder lies does not matter.
    """
    entries = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        # Downloads leave folders such as .cache/huggingface, with times in them.
        is_hidden = any(part.startswith(".") for part in name.parts)
        if not path.is_file() or is_hidden or path.suffix == ".md":
            continue
        size = path.stat().st_size
        digest = hashlib.sha256()
        with path.open("rb") as file:
            digest.update(file.read(HASHED_BYTES))
            if size > HASHED_BYTES:
                file.seek(max(HASHED_BYTES, size - HASHED_BYTES))
                digest.update(file.read())
        entries[name.as_posix()] = f"{size}:{digest.hexdigest()}"
    return hash_json(entries)


def family_in(folder: Path) -> Family:
    """The family of the pipeline in a folder."""
    return family_of(read_json(folder / INDEX)["_class_name"])


def denoisers_in(folder: Path) -> list[str]:
    """Names of the denoisers that a pipeline's folder has."""
    index = read_json(folder / INDEX)
    return [name for name in family_in(folder).denoisers if is_component(index.get(name))]


def count_parameters(folder: Path) -> dict[str, int]:
    """Parameters of each component, read from the headers of its weight files.

    Raises ValueError for a truncated file, or one that Git LFS has not fetched.
    """
    counts = {}
    for component in sorted(path for path in folder.iterdir() if path.is_dir()):
        count = 0
        for path in component.glob("*.safetensors"):
            try:
                count += _count(path)
            except SafetensorError as error:
                raise ValueError(
                    f"{path} is damaged ({error}): copy or download it again; if it is tiny, fetch "
                    "it with git lfs pull"
                ) from error
        if count:
            counts[component.name] = count
    return counts


def _count(path: Path) -> int:
    """Numbers in a weights file, by its header."""
    with safe_open(path, framework="pt") as file:
        return sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
