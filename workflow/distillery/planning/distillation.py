"""The plan of a run that distils: the student, its work, its disk and its training."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pandas as pd

from distillery.config.run import Config
from distillery.config.training import on_held_out
from distillery.notes import refuse
from distillery.planning.advice import advise_amounts, advise_guidance, advise_prompts
from distillery.planning.disk import check_disk, plan_disk
from distillery.planning.gpus import Gpus
from distillery.planning.precision import advise_precision
from distillery.planning.scoring import advise_measures, count_features
from distillery.planning.training import plan_training
from distillery.planning.unusual import advise_settings
from distillery.planning.work import plan_work
from distillery.run_folder import RunFolder
from distillery.schedule import Schedule
from distillery.store.chunks import chunk_folder
from distillery.store.recipes import TargetsRecipe
from distillery.student.build import plan_student
from distillery.student.info import describe_student
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.memory import ITEM_BYTES


def plan_distillation(
    config: Config,
    prompts: Mapping[str, pd.DataFrame],
    folder: PipelineFolder,
    run_folder: RunFolder,
    gpus: Gpus,
    targets: tuple[TargetsRecipe, Schedule],
) -> dict[str, Any]:
    """What a run that distils needs.

    Args:
        config: of the run.
        prompts: the table of each split.
        folder: of the teacher.
        run_folder: results/{run}, which exists.
        gpus: that the jobs will get.
        targets: the recipe that they will have, and the student's grid.

    Raises:
        ValueError: no prompt left to learn from, a student that cannot be built, a judge or vision
            model that is none, previews that the training could not draw, or too little disk space.
    """
    recipe, grid = targets
    num_prompts = {split: len(table) for split, table in prompts.items()}
    refuse(on_held_out(config.training.held_out_prompts, num_prompts["train"]))
    num_features = count_features(config.evaluation)
    student, shape = plan_student(config.student, folder), recipe.latent_shape
    scale = config.targets.guidance_scale
    calls_per_step = folder.family.calls_per_step(folder.denoiser_config, scale)
    work = plan_work(config, num_prompts, shape, calls_per_step)
    stored = work.targets_bytes, work.round_bytes
    sizes = plan_disk(config, student, prompts, *stored, shape, folder, run_folder)
    chunks = chunk_folder(run_folder.target_folder, recipe.hash)
    vae = vae_bytes(config, folder.parameters["vae"])
    training = plan_training(config, student, folder, gpus, vae)
    return {
        "latent_shape": list(shape),
        "student": asdict(student) | {"summary": describe_student(student)},
        "work": vars(work),
        "calls_per_step": calls_per_step,
        "disk": check_disk(sizes, run_folder, chunks),
        "training": training,
        "num_features": num_features,
        "advice": advise_prompts(prompts)
        + advise_amounts(config, work)
        + advise_measures(config, num_features, num_prompts["eval"])
        + advise_guidance(config, folder)
        + advise_settings(config, num_prompts["train"])
        + advise_precision(config, grid, recipe.prediction_type)
        + training["advice"],
    }


def vae_bytes(config: Config, num_parameters: int) -> int:
    """Bytes of the VAE beside the student: once for previews, once for the perceptual loss."""
    previews = ITEM_BYTES[config.teacher.vae_dtype] * bool(config.previews.every_samples)
    perceptual = ITEM_BYTES["float32"] * config.training.decodes
    return num_parameters * (previews + perceptual)
