"""A network on disk: one Diffusers model folder, the same bytes wherever it was made.

A student's folder, and its pipeline's, lists its files with their hashes in `METADATA`.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from distillery.files import (
    JsonObject,
    hash_files,
    hash_json,
    read_json,
    read_sealed,
    repair_hint,
    write_json,
    write_sealed,
)
from distillery.importing import imported

if TYPE_CHECKING:
    import torch

    from distillery.families.protocol import Denoiser

CONFIG = "config.json"
METADATA = "distillery.json"
"""Beside a student's model: what it is made of, and once it is trained the recipe, its hash and the
samples seen; `FILES`, and a seal of it all."""
FILES = "files"
"""Its key for the hashes of all other files."""
LINKED_BYTES = 1 << 20
"""Files of this size or more become hard links where they can; people edit the small ones."""


def load_denoiser(folder: Path, dtype: "torch.dtype", variant: str | None = None) -> "Denoiser":
    """Load a Diffusers model, on the CPU and in evaluation mode; `variant` names a set of weights.

    Modules that the model's class keeps in float32 stay in float32, as in the stock pipeline.

    Raises:
        FileNotFoundError: there is no model in the folder.
    """
    import torch

    _check_there(folder)
    denoiser = imported("diffusers", "AutoModel").from_pretrained(
        str(folder), dtype=dtype, variant=variant, local_files_only=True
    )
    assert isinstance(denoiser, torch.nn.Module)
    return denoiser


def load_denoiser_skeleton(folder: Path) -> "Denoiser":
    """A Diffusers model with its shapes but without its weights, on the meta device."""
    import torch

    _check_there(folder)
    model = imported("diffusers", read_json(folder / CONFIG)["_class_name"])
    with torch.device("meta"):
        denoiser = model.from_config(model.load_config(str(folder)))
    assert isinstance(denoiser, torch.nn.Module)
    return denoiser


def save_denoiser(denoiser: "Denoiser", folder: Path) -> None:
    """Write a Diffusers model folder; not atomic, so give it a temporary path.

    Diffusers notes in config.json where a model was loaded from; that is left out, or equal weights
    would have different bytes on two machines.
    """
    with full_disk_as_os_error(folder):
        denoiser.save_pretrained(folder)  # type: ignore[operator]
    config = read_json(folder / CONFIG)
    config.pop("_name_or_path", None)
    write_json(folder / CONFIG, config)
    copy_permissions(folder)


def copy_permissions(folder: Path) -> None:
    """Give a folder's safetensors the permissions of its JSON files.

    safetensors makes its files readable only by their owner, whatever the user's umask says.
    """
    mode = next(folder.glob("*.json")).stat().st_mode
    for path in folder.glob("*.safetensors"):
        path.chmod(mode)


@contextmanager
def full_disk_as_os_error(path: Path) -> Iterator[None]:
    """Turn a disk error inside safetensors into an OSError, as everything that writes files raises.

    safetensors raises an error of its own, whose text has the system's error number.
    """
    try:
        yield
    except SafetensorError as error:
        match = re.search(r"\(os error (\d+)\)", str(error))
        if match is None:
            raise
        number = int(match[1])
        raise OSError(number, os.strerror(number), str(path)) from error


def write_metadata(folder: Path, about: JsonObject) -> None:
    """Write `METADATA` beside a student, with the hashes of all that is in its folder by then."""
    write_sealed(folder / METADATA, {**about, FILES: _hash_folder(folder)})


def read_metadata(folder: Path) -> dict[str, Any]:
    """What `write_metadata` wrote, without the hashes; raises ValueError where it is damaged."""
    about = read_sealed(folder / METADATA, made_with=folder)
    about.pop(FILES, None)
    return about


def check_student(folder: Path) -> None:
    """Compare every byte of a student's folder with what was written.

    Raises:
        FileNotFoundError: there is no student in the folder.
        ValueError: a file is missing, was added, or has other bytes.
    """
    if not (folder / METADATA).is_file():
        raise FileNotFoundError(
            f"{folder} holds no {METADATA}: distillery.stages.student makes a student, "
            "distillery.stages.training a trained one, distillery.stages.export its pipeline"
        )
    changes = find_changes(folder)
    if changes:
        raise ValueError(
            f"{folder} is damaged, or was changed after it was written ({', '.join(changes)}): "
            f"{repair_hint(folder)}"
        )


def find_changes(folder: Path) -> list[str]:
    """The files of a student's folder that are not as they were written, by their path in it."""
    try:
        expected = read_sealed(folder / METADATA)[FILES]
    except (OSError, ValueError, KeyError):
        return [METADATA]
    actual = _hash_folder(folder)
    names = sorted(actual.keys() | expected.keys())
    return [name for name in names if actual.get(name) != expected.get(name)]


def hash_model(folder: Path) -> str:
    """A hash over all that decides what a student computes, after `check_student`."""
    check_student(folder)
    return hash_json(read_sealed(folder / METADATA)[FILES])


def _hash_folder(folder: Path) -> dict[str, str]:
    """The hashes of a folder's files by their path in it.

    Hidden files do not count: Snakemake puts its time stamp into a folder that a rule makes. Nor
    do `METADATA` itself and texts for people, who may change them.
    """
    names = {path: path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()}
    counted = [
        path
        for path, name in names.items()
        if not any(part.startswith(".") for part in name.parts)
        and name.name != METADATA
        and path.suffix != ".md"
    ]
    digests = hash_files(counted)
    return {names[path].as_posix(): digests[path] for path in counted}


def _check_there(folder: Path) -> None:
    """Raise FileNotFoundError unless the folder holds a model."""
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(
            f"{folder} holds no {CONFIG}: distillery.stages.student makes a student, "
            "distillery.stages.training a trained one"
        )
