"""The plan of a run that only generates: how many images, network calls and bytes."""

import shutil
from collections.abc import Mapping
from typing import Any

import pandas as pd

from distillery.config.jobs import resolve_sampling
from distillery.config.run import RunConfig
from distillery.generation.walk import calls_per_image
from distillery.planning.disk import embeddings_bytes, samples_bytes
from distillery.run_folder import RunFolder
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.loading import load_skeleton
from distillery.teacher.solver import load_scheduler


def plan_generation(
    config: RunConfig,
    prompts: Mapping[str, pd.DataFrame],
    folder: PipelineFolder,
    run_folder: RunFolder,
) -> dict[str, Any]:
    """What a run that only generates needs.

    Args:
        config: of the run.
        prompts: the table of the eval split.
        folder: of the teacher.
        run_folder: results/{run}, where the images will be.

    Raises:
        ValueError: a size that the teacher cannot make, or a scheduler that cannot be used.
    """
    size, num_prompts = (config.teacher.height, config.teacher.width), len(prompts["eval"])
    load_scheduler(folder, config.teacher)
    shape = folder.family.latent_shape(load_skeleton(folder), *size)
    samples = config.samples
    per_model = samples.num_images(num_prompts)
    models = [resolve_sampling(config, model) for model in samples.models]
    calls = [calls_per_image(folder, config.teacher, model) for model in models]
    stages = {
        "embeddings": embeddings_bytes(config.teacher, folder, prompts),
        "samples": samples_bytes(config, num_prompts, shape),
    }
    disk = {
        "stages": stages,
        "planned_bytes": sum(stages.values()),
        "free_bytes": shutil.disk_usage(run_folder.path).free,
    }
    return {
        "latent_shape": list(shape),
        "work": {
            "num_prompts": {"eval": num_prompts},
            "num_images": per_model * len(models),
            "teacher_calls": per_model * sum(calls),
        },
        "disk": disk,
        "advice": _advise(config, per_model, disk),
    }


def _advise(config: RunConfig, per_model: int, disk: Mapping[str, Any]) -> list[str]:
    """What a user would want to know, though it stops nothing."""
    advice = []
    if disk["planned_bytes"] > disk["free_bytes"]:
        advice.append(
            "the images may not fit on the disk: free some space, or make results/ a link to a "
            "larger one; a run that fills it stops, keeps what it made, and resumes when rerun"
        )
    batch_size = config.samples.batch_size
    num_batches = -(-per_model // (1 if batch_size == "auto" else batch_size))
    if num_batches < config.samples.num_shards:
        advice.append(
            f"samples.num_shards is {config.samples.num_shards} for {num_batches} batches: some "
            "jobs will have nothing to do"
        )
    return advice
