"""A network on disk: one Diffusers model folder, the same bytes wherever it was made."""

from pathlib import Path

import torch

from distillery.families.protocol import Denoiser
from distillery.files import hash_files, hash_json, read_json, write_json

CONFIG = "config.json"
ABOUT = "distillery.json"
"""Beside a student's model: what it is made of, and once it is trained the recipe, its hash and the
samples seen."""


def load_denoiser(folder: Path, dtype: torch.dtype, variant: str | None = None) -> Denoiser:
    """Load a Diffusers model, on the CPU and in evaluation mode; `variant` names a set of weights.

    Modules that the model's class keeps in float32 stay in float32, as in the stock pipeline.

    Raises:
        FileNotFoundError: there is no model in the folder.
    """
    import diffusers

    _check_there(folder)
    denoiser = diffusers.AutoModel.from_pretrained(
        str(folder), dtype=dtype, variant=variant, local_files_only=True
    )
    assert isinstance(denoiser, torch.nn.Module)
    return denoiser


def load_denoiser_skeleton(folder: Path) -> Denoiser:
    """A Diffusers model with its shapes but without its weights, on the meta device."""
    import diffusers

    _check_there(folder)
    model = getattr(diffusers, read_json(folder / CONFIG)["_class_name"])
    with torch.device("meta"):
        denoiser = model.from_config(model.load_config(str(folder)))
    assert isinstance(denoiser, torch.nn.Module)
    return denoiser


def save_denoiser(denoiser: Denoiser, folder: Path) -> None:
    """Write a Diffusers model folder; not atomic, so give it a temporary path.

    Diffusers notes in config.json where a model was loaded from; that is left out, or equal weights
    would have different bytes on two machines.
    """
    denoiser.save_pretrained(folder)  # type: ignore[operator]
    config = read_json(folder / CONFIG)
    config.pop("_name_or_path", None)
    write_json(folder / CONFIG, config)
    share(folder)


def share(folder: Path) -> None:
    """Give a folder's safetensors the permissions of its JSON files.

    safetensors makes its files readable by their owner alone, whatever the user's umask says.
    """
    mode = next(folder.glob("*.json")).stat().st_mode
    for path in folder.glob("*.safetensors"):
        path.chmod(mode)


def hash_model(folder: Path) -> str:
    """A hash over every file of a model folder that decides what the model computes.

    Hidden files do not count: Snakemake puts its time stamp into a folder that a rule makes. Nor
    does `ABOUT`, which tells what the model is.
    """
    _check_there(folder)
    visible = (
        path for path in folder.iterdir() if not path.name.startswith(".") and path.name != ABOUT
    )
    digests = hash_files(path for path in visible if path.is_file())
    return hash_json({path.name: digest for path, digest in digests.items()})


def _check_there(folder: Path) -> None:
    """Raise FileNotFoundError unless the folder holds a model."""
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(
            f"{folder} holds no {CONFIG}: distillery.scripts.build_student makes a student, "
            "distillery.scripts.train a trained one"
        )
