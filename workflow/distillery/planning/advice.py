"""Notes of the plan: what stops nothing, and a user would want to know before it is computed."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from distillery.config.run import Config
from distillery.config.samples import Samples
from distillery.notes import Note, advice, doubt
from distillery.planning.work import Work
from distillery.teacher.folder import PipelineFolder

MANY_VIEWS = 30
"""Of a stored segment. 47 gave less than 12 did (docs/how-many-trajectories.md)."""


def on_both_splits(prompts: Mapping[str, pd.DataFrame]) -> Iterator[Note]:
    """Held-out prompts, and their noise, that the student also learns from."""
    texts, ids = (
        len(set(prompts["train"][column]) & set(prompts["eval"][column]))
        for column in ("prompt", "prompt_id")
    )
    if texts:
        yield doubt(
            f"{texts} prompts of prompts.eval",
            " are also in prompts.train: on them the scores say what the student remembers, not "
            "what it has learned",
        )
    if ids:
        yield doubt(
            f"{ids} prompt ids of prompts.eval",
            " are also in prompts.train: equal ids have equal noise, so the student is judged on "
            "noise that it has learned from",
            "begin the ids of one file otherwise",
        )


def on_amounts(config: Config, work: Work) -> Iterator[Note]:
    """More shards than work, few trajectories, and segments that are seen so often that a student
    may learn them by heart."""
    training = config.training
    if not training.reads_trajectories:
        return
    if work.num_chunks < config.targets.num_shards:
        yield advice(
            f"targets.num_shards is {config.targets.num_shards}",
            f" for {work.num_chunks} chunks: some jobs will have nothing to do",
        )
    if work.num_trajectories < 1000:
        yield advice(
            f"{work.num_trajectories} trajectories",
            " teach a student little",
            "begin with 10,000 (docs/how-many-trajectories.md)",
        )
    views = training.num_samples // max(1, work.num_trajectories * config.student.steps)
    if views >= MANY_VIEWS and not training.held_out_prompts:
        yield doubt(
            f"each stored segment is seen {views} times",
            ": the student may learn its trajectories by heart",
            "make more of them, or set training.held_out_prompts, which shows it",
        )


def on_guided_students(config: Config, folder: PipelineFolder) -> Iterator[Note]:
    """Students that would be guided once more, by extra calls; a network that takes the scale as an
    input gets one anyway."""
    for name, model in config.samples.models.items():
        scale, family = model.guidance_scale or 1.0, folder.family
        if model.source != "teacher" and family.calls_per_step(folder.denoiser_config, scale) > 1:
            yield advice(
                f"samples.models.{name}.guidance_scale is {scale:g}",
                ": the student learns the guided teacher's answers and is best without guidance of "
                "its own, which doubles its network calls too",
            )


def on_images(samples: Samples, per_model: int, disk: Mapping[str, Any]) -> Iterator[Note]:
    """Of a run that only generates: a disk that its images may fill, and shards without work."""
    if disk["planned_bytes"] > disk["free_bytes"]:
        yield doubt(
            "the images",
            " may not fit on the disk",
            "free some space, or make results/ a link to a larger one; a run that fills it stops, "
            "keeps what it made, and resumes when rerun",
        )
    num_batches = -(-per_model // (1 if samples.batch_size == "auto" else samples.batch_size))
    if num_batches < samples.num_shards:
        yield advice(
            f"samples.num_shards is {samples.num_shards}",
            f" for {num_batches} batches: some jobs will have nothing to do",
        )
