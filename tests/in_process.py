"""Trainings in the process of a test, what they read and what they leave behind."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

import tiny
from distillery.training.data import SegmentDataset

WEIGHTS = "student/trained/diffusion_pytorch_model.safetensors"


def train(data: Path, output: Path, **settings: Any) -> int:
    """The exit status of the training's script, with data of a tiny run; `settings` as of
    `tiny.write_training_job`."""
    tiny.write_training_job(output, **settings)
    return run_script(tiny.train_arguments(data, output))


def run_script(arguments: Sequence[str]) -> int:
    from distillery.stages import training as script

    return script.main(arguments)


def outputs(folder: Path) -> dict[str, bytes]:
    """The bytes of everything that a training declares."""
    files = [*sorted((folder / "student/trained").iterdir()), folder / "student/loss.parquet"]
    return {path.name: path.read_bytes() for path in files}


def losses_of(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "student/loss.parquet")


def log_of(folder: Path) -> str:
    return (folder / "logs/training.log").read_text()


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "student/checkpoints").glob("*/samples-*"))


def open_dataset(folder: Path, steps: int = 4, *options: Any) -> SegmentDataset:
    """What a training reads of a tiny run; `options` are the objective and weights."""
    return SegmentDataset(
        folder / "targets/manifest.json",
        folder / "embeddings/train/manifest.json",
        folder / "prompts/train.parquet",
        steps,
        *options,
    )


def flip(path: Path, place: int = -1) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
