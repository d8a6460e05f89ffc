"""One cell of the lab: train a student, export it, draw held-out prompts, compare with the teacher.

Everything is done by the product's own functions, called in this process. benchmarks/lab.py says
which cells there are.
"""

import time
from pathlib import Path

import pandas as pd
from cell_images import draw, draw_strip, keep_reference, load, score
from lab_students import Cell, Json, Lab

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


def prepare(lab: Lab) -> None:
    """Prompts, their embeddings, and the teacher's own images, which all are compared with.

    Raises ValueError for more prompts than the configuration has.
    """
    tables = read_splits(lab.config().prompts)
    for split, wanted in (("train", lab.plan.store.prompts), ("eval", lab.plan.held_out.prompts)):
        if wanted > len(tables[split]):
            raise ValueError(
                f"the lab asks for {wanted} prompts, and the configuration's prompts.{split} has "
                f"{len(tables[split])}: give --prompts a folder with more"
            )
        _encode(lab, split, tables[split].head(wanted))
    reference = lab.teacher_cells[0]
    keep_reference(lab, *draw(lab, reference, load(lab, reference), reference.steps))


def _encode(lab: Lab, split: str, table: pd.DataFrame) -> None:
    """Prompts and their embeddings."""
    with atomic_path(lab.prompts(split)) as temporary:
        table.to_parquet(temporary, index=False)
    make_embeddings(
        lab.job("embeddings", EmbeddingsJob),
        lab.prompts(split),
        lab.embeddings(split),
        lab.place,
        lab.reporter(f"embeddings-{split}"),
    )


def shard_of(lab: Lab, shard: int, num_shards: int) -> Path:
    """The manifest of a shard of the store."""
    return lab.targets.parent / f"shard-{shard}-of-{num_shards}.json"


def make_shard(lab: Lab, shard: int, num_shards: int) -> Path:
    """Trajectories of a shard of the store; its manifest."""
    path = shard_of(lab, shard, num_shards)
    make_targets(
        lab.job("targets", TargetsJob),
        lab.prompts("train"),
        lab.embeddings("train"),
        (shard, num_shards),
        path,
        lab.place,
        lab.reporter(f"targets-{shard}"),
    )
    return path


def run_cell(lab: Lab, cell: Cell) -> list[Json]:
    """Train, export, draw and score one cell: a row for each number of steps that it is drawn at.

    Its first images lie beside.
    """
    training_s = 0.0 if cell.is_teacher else train_student(lab, cell)
    pipeline, rows = load(lab, cell), list[Json]()
    for steps in lab.drawn_at(cell):
        latents, images = draw(lab, cell, pipeline, steps)
        draw_strip(lab, f"{cell.key}-{steps}", images)
        about = {"name": cell.name, "seed": cell.seed, "steps": steps, "training_s": training_s}
        rows.append(about | score(lab, latents, images))
    return rows


def train_student(lab: Lab, cell: Cell) -> float:
    """Build, train and export a student; returns the seconds of the training, and of rounds."""
    folder = lab.student(cell)
    job = lab.job("training", TrainingJob, cell)
    build_student(job, folder / "initial")
    begin = time.perf_counter()
    for number in job.training.round_numbers:
        done = number - 1
        part = job.model_copy(update={"training": job.training.up_to_round(done)})
        _train(lab, cell, part, folder / f"trained-{done}-rounds")
        _make_round(lab, cell, number)
    _train(lab, cell, job, folder / "trained")
    seconds = time.perf_counter() - begin
    export_student(lab.job("export", ExportJob, cell), folder / "trained", folder / "pipeline")
    return seconds


def _train(lab: Lab, cell: Cell, job: TrainingJob, trained: Path) -> None:
    """One training, which takes up the one before it."""
    folder = lab.student(cell)
    paths = Paths(
        student=folder / "initial",
        targets=lab.targets,
        embeddings=lab.embeddings("train"),
        prompts=lab.prompts("train"),
        trained=trained,
        losses=folder / "loss.parquet",
        checkpoints=folder / "checkpoints",
        rounds=folder / "rounds",
    )
    run = prepare_training(
        job, paths, RankInfo(), lab.place, lab.reporter(cell.key), StopRequest(), Watchdog(0, 0)
    )
    finished = train(run, paths)
    assert finished, "nobody asks it to stop"


def _make_round(lab: Lab, cell: Cell, number: int) -> None:
    """The states of the student as it is before a round, and the teacher's answers."""
    folder = lab.student(cell)
    before, made = f"{number - 1}-rounds", folder / "rounds" / str(number)
    export_student(
        lab.job("export", ExportJob, cell), folder / f"trained-{before}", folder / before
    )
    job = lab.job("rounds", RoundsJob, cell)
    prompts, embeddings = lab.prompts("train"), lab.embeddings("train")
    states, shard = made / "states" / "shard-0-of-1.json", made / "shard-0-of-1.json"
    make_round_states(
        job, prompts, embeddings, folder / before, number, (0, 1), states, lab.place,
        lab.reporter(f"round-states-{cell.key}"),
    )  # fmt: skip
    make_round_targets(
        job, prompts, embeddings, states, number, (0, 1), shard, lab.place,
        lab.reporter(f"round-targets-{cell.key}"),
    )  # fmt: skip
    merge_targets([shard], round_manifest(folder / "rounds", number))
