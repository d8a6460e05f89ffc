"""Build the student before training, from the teacher's denoiser alone."""

from collections.abc import Sequence
from pathlib import Path

import torch

from distillery.config.jobs import TrainingJob
from distillery.families import Family
from distillery.families.protocol import Denoiser
from distillery.files import atomic_path
from distillery.model_folder import save_denoiser
from distillery.teacher.find import denoiser_config, denoisers_in, family_in, find_teacher
from distillery.teacher.loading import load_adapted_denoiser


def build_student(job: TrainingJob, output: Path) -> None:
    """Write the untrained student, a Diffusers model folder in float32.

    Reads the teacher's denoiser, with its adapters fused, and no other component of it.

    Args:
        job: frozen configuration; its sections `teacher` and `student` decide.
        output: folder to write, e.g. results/{run}/student/initial.

    Raises:
        FileNotFoundError: no such teacher.
        ValueError: a layer in `student.layers` that the teacher does not have, or an adapter that
            does not fit.
    """
    folder = find_teacher(job.teacher)
    family = family_in(folder)
    expert = choose_expert(denoisers_in(folder), job.student.expert)
    denoiser = load_adapted_denoiser(job.teacher, folder, expert)
    if job.student.layers is not None:
        check_layers(folder, family, job.student.layers)
        keep_blocks(denoiser, family, job.student.layers)
    with atomic_path(output) as temporary:
        save_denoiser(denoiser, temporary)


def choose_expert(present: Sequence[str], chosen: str | None) -> str:
    """The teacher's network that the student starts from; with several, one must be chosen."""
    if chosen in present:
        return str(chosen)
    if chosen is None and len(present) == 1:
        return present[0]
    raise ValueError(
        f"student.expert is {chosen!r}: the teacher has the networks {', '.join(present)}, the "
        "student is one network for all steps; say which of them it starts from"
    )


def check_layers(folder: Path, family: Family, layers: tuple[int, ...]) -> None:
    """Raise ValueError unless the teacher in `folder` has the blocks that shall be kept."""
    if not family.blocks:
        raise ValueError(
            f"student.layers is given, but the denoiser of {family.name} is no row of equal "
            "blocks: use student.init: teacher"
        )
    config = denoiser_config(folder)
    num_blocks = sum(config[key] for key in family.blocks.values())
    unknown = [layer for layer in layers if layer >= num_blocks]
    if unknown:
        raise ValueError(
            f"student.layers lists {', '.join(map(str, unknown))}: the teacher's "
            f"{denoisers_in(folder)[0]} has {num_blocks} blocks, so use indices from 0 to "
            f"{num_blocks - 1}"
        )


def keep_blocks(denoiser: Denoiser, family: Family, layers: tuple[int, ...]) -> None:
    """Keep the listed blocks of a denoiser, in place; blocks are counted in the order they run."""
    changes = dict(family.kept_config(denoiser.config, layers))  # type: ignore[arg-type]
    first = 0
    for name, key in family.blocks.items():
        blocks = list(denoiser.get_submodule(name).children())
        kept = [block for index, block in enumerate(blocks, first) if index in layers]
        first += len(blocks)
        setattr(denoiser, name, torch.nn.ModuleList(kept))
        changes[key] = len(kept)
    denoiser.register_to_config(**changes)  # type: ignore[operator]
