"""One cell of the table of objectives: train a student, export it, draw, compare with the teacher.

Everything is done by the product's own stages, called in this process. benchmarks/objectives.py
says which cells there are.
"""

import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import torch
from cell_images import draw, draw_strip, keep_reference, load, score
from lab import Bench, Cell, Json, Store, device_of, student_folder

from distillery.config.jobs import EmbeddingsJob, ExportJob, RoundsJob, TargetsJob, TrainingJob
from distillery.files import atomic_path
from distillery.generation.embeddings import make_embeddings
from distillery.generation.targets import make_targets
from distillery.planning.prompt_tables import read_splits
from distillery.run_folder import round_manifest
from distillery.store.shards import merge_targets
from distillery.student.build import build_student
from distillery.student.export import export_student
from distillery.training.distributed import RankInfo
from distillery.training.health import StopRequest, Watchdog
from distillery.training.loop import train
from distillery.training.run import Paths
from distillery.training.run import prepare as prepare_training
from distillery.training.ways.rounds import make_round_states, make_round_targets


def prepare(bench: Bench, stores: Iterable[Store]) -> None:
    """Prompts, embeddings, all stores of targets, and the teacher's own images.

    Raises ValueError for a store of more prompts than the configuration has.
    """
    config = bench.config()
    tables = read_splits(config.prompts)
    _encode(bench, tables["eval"].head(bench.num_prompts))
    for store in stores:
        if store.num_prompts > len(tables["train"]):
            raise ValueError(
                f"the store {store.name} asks for {store.num_prompts} prompts, and "
                f"{config.prompts.train} has {len(tables['train'])}: give --prompts a longer file"
            )
        _encode(bench, tables["train"].head(store.num_prompts), store.name)
        _make_targets(bench, Cell("guided", "teacher", config.targets.steps, store.name))
    reference = Cell("guided", "teacher", config.targets.steps)
    keep_reference(bench, *draw(bench, reference, load(bench, reference)))


def _encode(bench: Bench, table: pd.DataFrame, store: str = "") -> None:
    """Prompts and their embeddings."""
    with atomic_path(bench.prompts(store)) as temporary:  # labs side by side may share a store
        table.to_parquet(temporary, index=False)
    make_embeddings(
        bench.job("embeddings", EmbeddingsJob),
        bench.prompts(store),
        bench.embeddings(store),
        torch.device(bench.device),
        bench.reporter(f"embeddings-{store}"),
    )


def _make_targets(bench: Bench, cell: Cell) -> None:
    """The trajectories of a cell's store."""
    shard = bench.targets(cell.store).parent / "shard-0-of-1.json"
    make_targets(
        bench.job("targets", TargetsJob, cell),
        bench.prompts(cell.store),
        bench.embeddings(cell.store),
        (0, 1),
        shard,
        torch.device(bench.device),
        bench.reporter(f"targets-{cell.store}"),
    )
    merge_targets([shard], bench.targets(cell.store))


def run_cell(bench: Bench, cell: Cell) -> Json:
    """Train, export, draw and score one cell; its row of the table. Its first images lie beside."""
    training_s = 0.0 if cell.is_teacher else train_student(bench, cell)
    latents, images = draw(bench, cell, load(bench, cell))
    draw_strip(bench, cell, images)
    return {**asdict(cell), "training_s": training_s, **score(bench, latents, images)}


def train_student(bench: Bench, cell: Cell) -> float:
    """Build, train and export a student; returns the seconds of the training, and of rounds."""
    folder = student_folder(bench, cell)
    job = bench.job("training", TrainingJob, cell)
    build_student(job, folder / "initial")
    begin = time.perf_counter()
    for number in job.training.round_numbers:
        done = number - 1
        part = job.model_copy(update={"training": job.training.up_to_round(done)})
        _train(bench, cell, part, folder / f"trained-{done}-rounds")
        _make_round(bench, cell, number)
    _train(bench, cell, job, folder / "trained")
    seconds = time.perf_counter() - begin
    export_student(bench.job("export", ExportJob, cell), folder / "trained", folder / "pipeline")
    return seconds


def _train(bench: Bench, cell: Cell, job: TrainingJob, trained: Path) -> None:
    """One training, which takes up the one before it."""
    folder = student_folder(bench, cell)
    paths = Paths(
        student=folder / "initial",
        targets=bench.targets(cell.store),
        embeddings=bench.embeddings(cell.store),
        prompts=bench.prompts(cell.store),
        trained=trained,
        losses=folder / "loss.parquet",
        checkpoints=folder / "checkpoints",
        rounds=folder / "rounds",
    )
    reporter = bench.reporter(cell.name)
    run = prepare_training(
        job, paths, RankInfo(), device_of(bench), reporter, StopRequest(), Watchdog(0, 0)
    )
    finished = train(run, paths)
    assert finished, "nobody asks it to stop"


def _make_round(bench: Bench, cell: Cell, number: int) -> None:
    """The states of the student as it is before a round, and the teacher's answers."""
    folder = student_folder(bench, cell)
    before, made = f"{number - 1}-rounds", folder / "rounds" / str(number)
    export_student(
        bench.job("export", ExportJob, cell), folder / f"trained-{before}", folder / before
    )
    job, device, reporter = bench.job("rounds", RoundsJob, cell), device_of(bench), bench.reporter
    prompts, embeddings = bench.prompts(cell.store), bench.embeddings(cell.store)
    states, shard = made / "states" / "shard-0-of-1.json", made / "shard-0-of-1.json"
    make_round_states(
        job, prompts, embeddings, folder / before, number, (0, 1), states, device,
        reporter(f"round-states-{cell.name}"),
    )  # fmt: skip
    make_round_targets(
        job, prompts, embeddings, states, number, (0, 1), shard, device,
        reporter(f"round-targets-{cell.name}"),
    )  # fmt: skip
    merge_targets([shard], round_manifest(folder / "rounds", number))
