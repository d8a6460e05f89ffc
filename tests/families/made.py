"""Each family's tiny teacher and its trajectories: made once for all files that read them."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from families.case import FamilyCase
from runs import Run, family_run
from sharing import made_once

NUM_PROMPTS = 9
"""All in one batch: the last bits of a matrix product depend on its size."""


def made_teacher(factory: pytest.TempPathFactory, case: FamilyCase) -> Path:
    """The teacher's folder; tests must not write into it."""
    return made_once(factory, f"teacher-{case.name}", case.make)


def made_run(factory: pytest.TempPathFactory, case: FamilyCase, **changes: dict[str, Any]) -> Run:
    """A run of one's own with prompts, embeddings and targets; `changes` are of later sections."""
    teacher = made_teacher(factory, case)
    made = made_once(factory, f"run-{case.name}", lambda at: fill(empty_run(case, at, teacher)))
    run = empty_run(case, factory.mktemp(case.name), teacher, **changes)
    for name in ("prompts", "embeddings", "targets"):
        shutil.copytree(made / "results" / name, run.folder / name)
    return run


def empty_run(case: FamilyCase, folder: Path, teacher: Path, **changes: dict[str, Any]) -> Run:
    """Its targets will have as many segments as steps."""
    return family_run(
        case,
        folder,
        teacher,
        embeddings={"batch_size": NUM_PROMPTS, "chunk_size": 99},
        targets={
            "num_segments": case.steps,
            "batch_size": NUM_PROMPTS,
            "chunk_size": NUM_PROMPTS,
        },
        **changes,
    )


def fill(run: Run) -> None:
    """Make prompts, embeddings and targets."""
    for split in ("train", "eval"):
        run.encode(split)
    run.all_targets()
