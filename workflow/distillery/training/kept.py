"""Draw previews from a kept checkpoint of the training, with the weights that it would export."""

from pathlib import Path

import torch

from distillery.config.jobs import TrainingJob
from distillery.model_folder import hash_model
from distillery.store.chunks import chunk_folder
from distillery.student.lora import load_trainable
from distillery.teacher.loading import torch_dtype
from distillery.telemetry import Reporter
from distillery.training.checkpoint import checkpoint_path, read_student
from distillery.training.previews import PreviewPipeline, Previews
from distillery.training.run import (
    Inputs,
    PreviewPaths,
    open_dataset,
    training_recipe,
)


def draw_kept(
    job: TrainingJob,
    inputs: Inputs,
    samples_seen: int,
    paths: PreviewPaths,
    device: torch.device,
    reporter: Reporter,
) -> None:
    """Draw what is missing of a checkpoint's previews, and write its contact sheet.

    Args:
        job: frozen configuration of the training.
        inputs: of the training, with its checkpoints.
        samples_seen: of the checkpoint.
        paths: what previews read and write.
        device: for the student and the VAE.
        reporter: of this job.

    Raises:
        ValueError: no such checkpoint of this configuration is kept, or it is damaged.
    """
    dataset = open_dataset(job, inputs)
    initial = hash_model(inputs.student)
    recipe = training_recipe(job, dataset, initial)
    recipe_hash = recipe.hash
    # A training with rounds or a finish takes up checkpoints of those that do its first part.
    hashes = [recipe_hash, *(part.hash for part in recipe.first_parts(job.training))]
    own = next((it for it in hashes if is_kept(inputs.checkpoints, it, samples_seen)), recipe_hash)
    weights = read_student(chunk_folder(inputs.checkpoints, own), samples_seen, own)
    denoiser = load_trainable(inputs.student, torch_dtype(job.training.dtype))
    denoiser.load_state_dict(weights, strict=False)
    previews = Previews(paths, (0, 1), recipe_hash, reporter)
    drawer = PreviewPipeline.around(
        denoiser.to(device),
        previews.job.teacher,
        dataset.recipe,
        dataset.steps,
        device,
        job.training.dtype,
    )
    missing = previews.missing(samples_seen)
    with reporter.work(len(missing)):
        previews.save(previews.draw_missing(drawer, samples_seen), samples_seen)


def is_kept(checkpoints: Path, recipe_hash: str, samples_seen: int) -> bool:
    """Whether a training's checkpoint at a position is there."""
    return checkpoint_path(chunk_folder(checkpoints, recipe_hash), samples_seen).is_dir()
