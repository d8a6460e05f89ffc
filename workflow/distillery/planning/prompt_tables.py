"""Prompt files, checked and written as tables."""

from pathlib import Path
from typing import Any

import pandas as pd

from distillery.config.jobs import PromptsJob
from distillery.config.run import Prompts
from distillery.config.section import Split
from distillery.config.teacher import Teacher
from distillery.notes import Note, noting, refuse
from distillery.planning.first import plan_as_asked
from distillery.prompts import held_out, read_prompts
from distillery.run_folder import RunFolder
from distillery.store.tables import write_table

NUMBERED: dict[Split, str] = {"train": "t", "eval": "p"}
"""What the ids of numbered prompts begin with: equal ids would have equal noise."""


def make_prompt_table(
    job: PromptsJob,
    split: Split,
    run_folder: RunFolder,
    output: Path,
    planned: dict[str, Any] | None = None,
) -> None:
    """Check a split's prompt file and write it as Parquet; see `prompts.read_prompts`.

    Args:
        job: frozen configuration.
        split: whose prompt file is read.
        run_folder: planned first.
        output: results/{run}/prompts/{split}.parquet.
        planned: the run to plan first, see `planning.first.plan_as_asked`.
    """
    plan_as_asked(planned, run_folder)
    write_table(read_split(job.prompts, split), output)


def read_splits(prompts: Prompts, teacher: Teacher | None = None) -> dict[str, pd.DataFrame]:
    """The prompts of all splits that a run has; raises ValueError with what is bad in any.

    Args:
        teacher: that images are checked against, as by the plan; None: they may be of any size.
    """
    splits: tuple[Split, ...] = ("train", "eval")
    tables: dict[str, pd.DataFrame] = {}
    notes: list[Note] = []
    for split in splits:
        if prompts.file(split):
            with noting(notes):
                tables[split] = read_split(prompts, split, teacher)
    refuse(notes)
    return tables


def read_split(prompts: Prompts, split: Split, teacher: Teacher | None = None) -> pd.DataFrame:
    """A split's prompts from its own file, or its part of the file that both are in.

    Raises ValueError for a bad file, or for a fraction that leaves a split without prompts.
    """
    source = prompts.file(split)
    if source is None:
        raise ValueError("prompts.train is missing, and --split train asks for it: add it")
    takes_images, size = True, None
    if teacher is not None:
        takes_images = bool(teacher.image_argument)
        size = teacher.height, teacher.width
    table = read_prompts(Path(source), prompts.notes, NUMBERED[split], takes_images, size)
    if prompts.eval_fraction is None:
        return table
    is_eval = held_out(table["prompt"].tolist(), prompts.eval_fraction)
    return table[[chosen == (split == "eval") for chosen in is_eval]].reset_index(drop=True)
