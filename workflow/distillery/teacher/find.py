"""Find a teacher, check that it is whole, and say which it is."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from distillery.config.teacher import Teacher
from distillery.families import Family, family_of
from distillery.files import could_be_hub_id, hash_json, read_json
from distillery.hash_cache import hash_large_files
from distillery.hub import explain_hub
from distillery.teacher.classes import check_classes
from distillery.teacher.single_file import (
    explain_single_file,
    is_single_file,
    single_file_in,
)
from distillery.teacher.weights import (
    list_variants,
    measure,
    missing_weights,
    weights_in,
    weights_of,
)

INDEX = "model_index.json"
MODEL_CONFIG = "config.json"
NO_INDEX = (
    "teacher.path must be a folder in Diffusers format (what `pipeline.save_pretrained` writes)"
)
CONFIGS = {
    "Scheduler": "scheduler_config.json",
    "Tokenizer": "tokenizer_config.json",
    "Processor": "preprocessor_config.json",
    "FeatureExtractor": "preprocessor_config.json",
}
"""Part of a component's class name to the file that describes it; a model has `MODEL_CONFIG`."""


def find_teacher(teacher: Teacher) -> Path:
    """The folder of the teacher, downloaded if `path` is a hub id, checked for completeness.

    Raises:
        FileNotFoundError: no such folder, or one of its files is missing.
        ValueError: the folder is not a Diffusers pipeline of a known family, or needs its own code.
    """
    folder = Path(teacher.path)
    if not folder.is_dir():
        folder = _download(teacher)
    check_complete(folder, teacher.variant)
    return folder


def _download(teacher: Teacher) -> Path:
    """The folder in the hub's cache, filled if need be.

    Raises FileNotFoundError for what is no hub id, and for one that cannot be had.
    """
    given = f"teacher.path is {teacher.path!r}"
    if is_single_file(teacher.path):
        raise FileNotFoundError(f"{given}: {explain_single_file(teacher.path)}")
    if not could_be_hub_id(teacher.path):
        raise FileNotFoundError(
            f"{given}: there is no such folder; give a Diffusers folder (with a model_index.json) "
            "or the id of a hub repository, owner/name"
        )
    from diffusers import DiffusionPipeline
    from diffusers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # its warnings tell of causes that the error names
    try:
        found = DiffusionPipeline.download(
            teacher.path, revision=teacher.revision, variant=teacher.variant
        )
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"{given}: it is no folder here and could not be had from the hub: "
            f"{explain_hub(teacher.path, error)}"
        ) from error
    finally:
        logging.set_verbosity(verbosity)
    return Path(found)


def check_complete(folder: Path, variant: str | None = None) -> None:
    """Raise unless every component that model_index.json names is there with all its weights.

    Args:
        folder: in Diffusers format.
        variant: the set of weights files that is read, where a component has it.
    """
    if not (folder / INDEX).is_file():
        single = single_file_in(folder)
        raise FileNotFoundError(
            f"{folder} has no {INDEX}: "
            + (f"{explain_single_file(str(single))}" if single else NO_INDEX)
        )
    index = read_json(folder / INDEX)
    components = [name for name, value in index.items() if is_component(value)]
    check_classes(folder / INDEX, index, components)
    _check_variant(folder, variant)
    missing = _missing_of(folder, index, variant)
    if not missing:
        return
    whole = [name for name in list_variants(folder) if not _missing_of(folder, index, name)]
    if whole:
        raise FileNotFoundError(
            f"the teacher in {folder} has not all weights of teacher.variant {variant or 'null'}, "
            f"and all of {' and of '.join(whole)}: set teacher.variant: {whole[0]}"
        )
    raise FileNotFoundError(
        f"the teacher in {folder} is incomplete, missing: {', '.join(missing)}; copy or "
        "download it again"
    )


def _missing_of(folder: Path, index: Mapping[str, Any], variant: str | None) -> list[str]:
    """What a pipeline's components lack of what is read, as paths from its folder."""
    return [
        file
        for name, value in index.items()
        if is_component(value)
        for file in _missing(folder / name, value[1], variant)
    ]


def _check_variant(folder: Path, variant: str | None) -> None:
    """Raise FileNotFoundError unless some component has the weights of a variant."""
    there = list_variants(folder)
    if variant is not None and variant not in there:
        raise FileNotFoundError(
            f"teacher.variant is {variant!r}: {folder} has no weights of that name; there are: "
            f"{', '.join(there) or 'plain ones alone'}; null reads the plain ones"
        )


def is_component(value: Any) -> bool:
    """Whether an entry of model_index.json is a component, [library, class], that is present."""
    return isinstance(value, list) and len(value) == 2 and None not in value


def _missing(component: Path, class_name: str, variant: str | None) -> list[str]:
    """What a component's folder lacks, as paths relative to the pipeline's folder."""
    if not component.is_dir():
        return [component.name]
    config = next((CONFIGS[kind] for kind in CONFIGS if kind in class_name), MODEL_CONFIG)
    if not (component / config).is_file():
        return [f"{component.name}/{config}"]
    return missing_weights(component, variant) if config == MODEL_CONFIG else []


def fingerprint(folder: Path, variant: str | None = None) -> str:
    """A hash of all that is read of a pipeline, bit for bit; where its folder lies does not matter.

    That is its model_index.json and all files of the components that are named there, but for
    descriptions (.md), hidden files, and sets of weights that are not read: two teachers that
    differ in those alone compute the same.
    """
    hashes = hash_large_files(_files_read(folder, variant))
    return hash_json({path.relative_to(folder).as_posix(): it for path, it in hashes.items()})


def _files_read(folder: Path, variant: str | None) -> Iterator[Path]:
    """The files of a pipeline's folder that decide what it computes."""
    yield folder / INDEX
    components = (name for name, value in read_json(folder / INDEX).items() if is_component(value))
    for component in (folder / name for name in sorted(components)):
        unread = set(weights_in(component)) - set(weights_of(component, variant))
        for path in sorted(set(component.rglob("*")) - unread):
            # Downloads leave folders such as .cache/huggingface, with times in them.
            is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if path.is_file() and not is_hidden and path.suffix != ".md":
                yield path


def family_in(folder: Path) -> Family:
    """The family of the pipeline in a folder."""
    return family_of(read_json(folder / INDEX)["_class_name"])


def components_left_out(folder: Path) -> list[str]:
    """Components that a pipeline's class takes and its folder says it does not have.

    Diffusers loads such a folder only if it is told so for those that the class does not call
    optional, T5 of SD3 for one.
    """
    import diffusers

    index = read_json(folder / INDEX)
    optional = getattr(diffusers, index["_class_name"])._optional_components
    return [name for name, value in index.items() if value == [None, None] and name not in optional]


def denoisers_in(folder: Path) -> list[str]:
    """Names of the denoisers that a pipeline's folder has."""
    index = read_json(folder / INDEX)
    return [name for name in family_in(folder).denoisers if is_component(index.get(name))]


def denoiser_config(folder: Path) -> dict[str, Any]:
    """The configuration of a pipeline's first denoiser; several are of one shape."""
    return read_json(folder / denoisers_in(folder)[0] / MODEL_CONFIG)


def denoiser_class(folder: Path) -> type:
    """The Diffusers class of a pipeline's denoisers."""
    import diffusers

    found: type = getattr(diffusers, denoiser_config(folder)["_class_name"])
    return found


def count_parameters(folder: Path, variant: str | None = None) -> dict[str, int]:
    """Parameters of each component, read from the headers of the weights files that are loaded.

    Raises ValueError for a truncated file, or one that Git LFS has not fetched.
    """
    return {name: size.num_parameters for name, size in measure(folder, variant).items()}
