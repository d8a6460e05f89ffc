"""Build the student before training, from the teacher's denoiser alone."""

from pathlib import Path

import torch

from distillery.families import Family
from distillery.families.protocol import Denoiser
from distillery.files import atomic_path
from distillery.jobs import TrainingJob
from distillery.student.model import load_denoiser, save_denoiser
from distillery.teacher import family_in, find_teacher


def build_student(job: TrainingJob, output: Path) -> None:
    """Write the untrained student, a Diffusers model folder in float32.

    Reads the teacher's denoiser and no other component of it.

    Args:
        job: frozen configuration; its sections `teacher` and `student` decide.
        output: folder to write, e.g. results/{run}/student/initial.

    Raises:
        FileNotFoundError: no such teacher.
        ValueError: a layer in `student.layers` that the teacher does not have.
    """
    folder = find_teacher(job.teacher)
    family = family_in(folder)
    denoiser = load_denoiser(folder / family.denoiser, torch.float32)
    if job.student.layers is not None:
        keep_blocks(denoiser, family, job.student.layers)
    with atomic_path(output) as temporary:
        save_denoiser(denoiser, temporary)


def keep_blocks(denoiser: Denoiser, family: Family, layers: tuple[int, ...]) -> None:
    """Keep the listed blocks of a denoiser, in place, in their order."""
    blocks = denoiser.get_submodule(family.blocks)
    assert isinstance(blocks, torch.nn.ModuleList)
    unknown = [layer for layer in layers if layer >= len(blocks)]
    if unknown:
        raise ValueError(
            f"student.layers lists {', '.join(map(str, unknown))}: the teacher's {family.denoiser} "
            f"has {len(blocks)} blocks, so use indices from 0 to {len(blocks) - 1}"
        )
    setattr(denoiser, family.blocks, torch.nn.ModuleList(blocks[layer] for layer in layers))
    denoiser.register_to_config(**{family.blocks_config: len(layers)})  # type: ignore[operator]
