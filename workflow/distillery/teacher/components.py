"""The components of a pipeline's folder: what each must have, and what its files must say."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from distillery.teacher.weights import CONFIG, missing_weights

INDEX = "model_index.json"
CONFIGS = {
    "Scheduler": "scheduler_config.json",
    "Tokenizer": "tokenizer_config.json",
    "Processor": "preprocessor_config.json",
    "FeatureExtractor": "preprocessor_config.json",
    "Guidance": "guider_config.json",
}
"""Part of a component's class name to the file that describes it; a model has `CONFIG`."""
LIBRARIES = ("diffusers", "transformers")
PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+")
VOCABULARIES = (
    ("tokenizer.json",),
    ("vocab.json", "merges.txt"),
    ("spiece.model",),
    ("tokenizer.model",),
    ("vocab.txt",),
)
"""Files of a tokenizer's words: one of these sets is there. Which of them its class reads shows
when it is loaded (`teacher.tokenizers`)."""


@contextmanager
def unusable(path: Path) -> Iterator[None]:
    """Let an error of a library that reads a folder be a ValueError with the folder's path.

    What Diffusers and Transformers raise for a file of wrong content is of any class, and seldom
    names the file.
    """
    try:
        yield
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        if isinstance(error, (ValueError, OSError)) and str(path) in str(error):
            raise
        own = type(error) is ValueError
        said = " ".join(lines[:3])[:300] or type(error).__name__
        kind = "" if own else f"{type(error).__name__}: "
        raise ValueError(f"{path} cannot be used: {kind}{said}") from error


def is_component(value: Any) -> bool:
    """Whether a value of a model_index.json names a component; lists of numbers are settings."""
    return isinstance(value, list) and not all(isinstance(part, int | float) for part in value)


def check_index(path: Path, index: Mapping[str, Any]) -> None:
    """Raise ValueError for an entry of a model_index.json that is no component and no setting."""
    for name, value in index.items():
        if name.startswith("_") or not is_component(value) or value == [None, None]:
            continue
        if not PLAIN_NAME.fullmatch(name):
            raise ValueError(f"{path} names a component {name!r}, which is no name of a folder")
        if len(value) != 2 or not all(isinstance(part, str) for part in value):
            raise ValueError(
                f"{path}: {name} is {str(value)[:80]}, [library, class] or [null, null] is needed"
            )


def check_classes(
    path: Path, index: Mapping[str, Any], pipeline_class: Any, needed: Collection[str]
) -> None:
    """Raise ValueError for a component that its pipeline's class does not take, or of no class.

    Args:
        needed: components that are loaded.
    """
    components, _ = pipeline_class._get_signature_keys(pipeline_class)
    for name, value in index.items():
        if not is_component(value) or value == [None, None] or name.startswith("_"):
            continue
        if name not in components:
            raise ValueError(
                f"{path}: {pipeline_class.__name__} has no component {name!r}; it has "
                f"{', '.join(sorted(components))}: correct the name, or remove the line"
            )
        if name in needed and not hasattr(library_of(value), value[1]):
            raise ValueError(
                f"{path}: {name} is {value}, and the installed {value[0]} has no such class: "
                "correct the name, or install a version that has it"
            )


def library_of(entry: Sequence[str]) -> Any:
    """Where a component's class is, by its entry in model_index.json; a few pipelines have their
    own text encoder, as Kolors."""
    import diffusers

    own = getattr(diffusers.pipelines, entry[0], None)
    return import_module(entry[0]) if entry[0] in LIBRARIES else own


def config_of(class_name: str) -> str:
    """The file that describes a component of this class."""
    return next((CONFIGS[kind] for kind in CONFIGS if kind in class_name), CONFIG)


def missing_of(
    component: Path, class_name: str, variant: str | None, has_weights: bool = False
) -> list[str]:
    """What a component's folder lacks, as paths from the pipeline's folder.

    Args:
        variant: of its weights.
        has_weights: whether these are elsewhere.
    """
    if not component.is_dir():
        return [component.name]
    config = config_of(class_name)
    if not (component / config).is_file():
        return [f"{component.name}/{config}"]
    if "Tokenizer" in class_name:
        return _missing_vocabulary(component)
    return missing_weights(component, variant) if config == CONFIG and not has_weights else []


def _missing_vocabulary(component: Path) -> list[str]:
    """The files of words, if a tokenizer has none of them."""
    if any(all((component / name).is_file() for name in files) for files in VOCABULARIES):
        return []
    return [f"{component.name}/{' or '.join(' with '.join(files) for files in VOCABULARIES)}"]


def dangling_in(folder: Path, read: Iterator[Path]) -> list[str]:
    """Links that lead nowhere among the paths that are read of a folder."""
    return [
        f"{path.relative_to(folder)} (a link to {path.readlink()}, which is not there)"
        for path in read
        if path.is_symlink() and not path.exists()
    ]
