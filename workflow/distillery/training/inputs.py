"""What says which training it is: its files."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Inputs:
    """What a training starts from, and where it goes on.

    Attributes:
        student: the untrained student's folder.
        targets: manifest.
        embeddings: manifest of the train split.
        prompts: table of the train split.
        checkpoints: folder of all recipes' checkpoints, kept between runs.
    """

    student: Path
    targets: Path
    embeddings: Path
    prompts: Path
    checkpoints: Path
