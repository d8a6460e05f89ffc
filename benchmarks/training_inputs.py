"""Inputs of a training at full size: random weights, embeddings and trajectories."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from models import Model
from stages import write_embeddings

from distillery.config.jobs import TargetsJob, TrainingJob
from distillery.config.run import Targets
from distillery.config.student import Student
from distillery.config.teacher import Teacher
from distillery.config.training import Training
from distillery.files import hash_json, read_json
from distillery.generation.targets import targets_recipe
from distillery.store.chunks import ChunkIdentity, chunk_folder, chunk_path, write_chunk
from distillery.store.shards import Manifest, describe_chunk
from distillery.store.trajectories import knots_of
from distillery.student.build import build_student
from distillery.teacher.folder import PipelineFolder

STUDENT_STEPS = 4
CHUNK_SIZE = 16


def write_inputs(model: Model, folder: Path, num_trajectories: int) -> None:
    """Prompts, random embeddings, random trajectories and the untrained student, once."""
    if (folder / "student/initial").is_dir():
        return
    teacher = teacher_of(model, folder)
    table = pd.DataFrame(
        {
            "prompt_id": [f"p{row:05d}" for row in range(num_trajectories)],
            "prompt": [f"prompt number {row}" for row in range(num_trajectories)],
        }
    )
    (folder / "prompts").mkdir(parents=True, exist_ok=True)
    table.to_parquet(folder / "prompts/train.parquet", index=False)
    write_embeddings(model, teacher, folder / "teacher", table, folder / "embeddings")
    write_targets(model, folder, num_trajectories)
    build_student(training_job(model, folder, {}), folder / "student/initial")


def teacher_of(model: Model, folder: Path) -> Teacher:
    """The section `teacher` of all stages."""
    return Teacher(
        path=str(folder / "teacher"), dtype="bfloat16", height=model.height, width=model.width
    )


def write_targets(model: Model, folder: Path, num_trajectories: int) -> None:
    """Random states in the store's format, under the recipe that the targets stage would write."""
    targets = Targets(
        steps=model.steps,
        guidance_scale=model.guidance_scale,
        num_segments=STUDENT_STEPS,
        batch_size=CHUNK_SIZE,
        chunk_size=CHUNK_SIZE,
    )
    job = TargetsJob(seed=0, teacher=teacher_of(model, folder), targets=targets)
    embeddings = read_json(folder / "embeddings/manifest.json")["recipe_hash"]
    recipe = targets_recipe(job, PipelineFolder(folder / "teacher"), embeddings)
    recipe_hash = recipe.hash
    root = folder / "targets"
    chunks = chunk_folder(root, recipe_hash)
    num_knots = len(knots_of(model.steps, STUDENT_STEPS))
    generator = torch.Generator().manual_seed(0)
    records = []
    for index, start in enumerate(range(0, num_trajectories, CHUNK_SIZE)):
        rows = range(start, min(start + CHUNK_SIZE, num_trajectories))
        shape = (len(rows), num_knots, *recipe.latent_shape)
        tensors = {
            "noisy": torch.randn(shape, generator=generator),
            "prompt_row": torch.tensor(list(rows)),
        }
        identity = ChunkIdentity(recipe_hash, hash_json({"rows": list(rows)}))
        write_chunk(chunk_path(chunks, index), tensors, identity, {})
        records.append(describe_chunk(chunks, index, root, identity.members, len(rows)))
    Manifest(recipe.to_json(), recipe_hash, tuple(records)).write(root / "manifest.json")


def training_job(model: Model, folder: Path, settings: Mapping[str, Any]) -> TrainingJob:
    """The frozen configuration; `settings` are keys of the section `training`."""
    sizes = {
        "phases": [{"learn": "stored", "samples": 1 << 29}],
        "global_batch_size": 64,
        "ema_half_life_samples": 64000,
    }
    return TrainingJob(
        seed=0,
        teacher=teacher_of(model, folder),
        student=Student(steps=STUDENT_STEPS),
        training=Training.model_validate_json(json.dumps({**sizes, **settings})),
    )
