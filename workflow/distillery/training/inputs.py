"""What says which training it is: its files, and the options that name them."""

import argparse
from dataclasses import dataclass, fields
from pathlib import Path

OPTIONS = {
    "student": "folder before training",
    "targets": "manifest",
    "embeddings": "manifest of the train split",
    "prompts": "table of the train split",
    "checkpoints": "folder of all recipes' checkpoints, kept between runs",
}


@dataclass(frozen=True)
class Inputs:
    """What a training starts from, and where it goes on.

    Attributes:
        student: the untrained student's folder.
        targets, embeddings: manifests.
        prompts: the train table.
        checkpoints: folder of all recipes' checkpoints.
    """

    student: Path
    targets: Path
    embeddings: Path
    prompts: Path
    checkpoints: Path


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """The options that `read_inputs` reads, named like the fields."""
    for name, meaning in OPTIONS.items():
        parser.add_argument(f"--{name}", type=Path, required=True, help=meaning)


def read_inputs(arguments: argparse.Namespace) -> Inputs:
    """What the command line says."""
    return Inputs(**{field.name: getattr(arguments, field.name) for field in fields(Inputs)})
