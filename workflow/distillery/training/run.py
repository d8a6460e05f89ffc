"""What a training is made from, checked once: its inputs, its recipe, its place."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from distillery.config.jobs import TrainingJob
from distillery.config.training import Training
from distillery.files import hash_json
from distillery.model_folder import hash_model
from distillery.store.chunks import chunk_folder
from distillery.telemetry import Reporter
from distillery.training import distributed
from distillery.training.batches import Batches
from distillery.training.dataset import SegmentDataset
from distillery.training.distributed import Place
from distillery.training.stopping import StopRequest

NOT_IN_RECIPE = {
    "micro_batch_size",
    "log_every_samples",
    "save_every_samples",
    "keep_checkpoints",
    "timeout_s",
}
"""Settings that change no weight beyond rounding: a training may be resumed with others."""


@dataclass(frozen=True)
class Paths:
    """What a training reads and writes.

    Attributes:
        student: the untrained student's folder.
        targets, embeddings: manifests.
        prompts: the train table.
        trained: folder to write.
        losses: table to write.
        checkpoints: folder of all recipes' checkpoints.
    """

    student: Path
    targets: Path
    embeddings: Path
    prompts: Path
    trained: Path
    losses: Path
    checkpoints: Path


@dataclass(frozen=True)
class Run:
    """What does not change while the loop runs."""

    training: Training
    dataset: SegmentDataset
    batches: Batches
    place: Place
    device: torch.device
    reporter: Reporter
    stop: StopRequest
    checkpoints: Path
    recipe: dict[str, Any]
    recipe_hash: str


def prepare(
    job: TrainingJob,
    paths: Paths,
    place: Place,
    device: torch.device,
    reporter: Reporter,
    stop: StopRequest,
) -> Run:
    """Open the data, check that all of it belongs together, and name the recipe."""
    dataset = SegmentDataset(
        paths.targets,
        paths.embeddings,
        paths.prompts,
        job.student.steps,
        job.training.objective,
    )
    # Hashing a large student takes seconds; one process does it for all.
    initial = hash_model(paths.student) if place.is_main else ""
    recipe = training_recipe(job, dataset, distributed.from_main(initial, device))
    recipe_hash = hash_json(recipe)
    reporter.info(
        f"training recipe {recipe_hash[:12]}: {dataset.num_items} items, {place.num_processes} "
        f"processes, objective {job.training.objective}"
    )
    return Run(
        training=job.training,
        dataset=dataset,
        batches=Batches(dataset, job.training, job.seed, place),
        place=place,
        device=device,
        reporter=reporter,
        stop=stop,
        checkpoints=chunk_folder(paths.checkpoints, recipe_hash),
        recipe=recipe,
        recipe_hash=recipe_hash,
    )


def training_recipe(job: TrainingJob, dataset: SegmentDataset, initial: str) -> dict[str, Any]:
    """Everything that the trained weights depend on, beyond rounding."""
    settings = job.training.model_dump(mode="json", exclude=NOT_IN_RECIPE)
    return {
        "kind": "training",
        "version": job.version,
        "seed": job.seed,
        "steps": job.student.steps,
        "schedule": asdict(dataset.grid),
        "latent_shape": dataset.recipe["latent_shape"],
        "guidance_scale": dataset.recipe["guidance_scale"],
        "initial": initial,
        "targets": dataset.recipe_hash,
        "training": settings,
    }
