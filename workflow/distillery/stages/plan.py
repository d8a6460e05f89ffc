"""The plan: what will run, what it needs, and whether it can work, before anything is computed."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import pandas as pd

from distillery.config.jobs import EmbeddingsJob, TargetsJob
from distillery.config.run import Config, RunConfig
from distillery.config.teacher import Teacher
from distillery.evaluation.judge import check_judge
from distillery.families import Family
from distillery.files import hash_json, write_json
from distillery.hardware import describe_hardware
from distillery.prompts import own_negatives
from distillery.schedule import Schedule
from distillery.stages.embeddings import check_prompt_lengths, embeddings_recipe
from distillery.stages.plan_generation import plan_generation, summarise_generation
from distillery.stages.plan_guidance import check_second_scale
from distillery.stages.plan_precision import advise_precision
from distillery.stages.plan_prompts import advise_weights, check_negatives
from distillery.stages.plan_training import plan_training, summarise_training
from distillery.stages.prompts import read_splits
from distillery.stages.targets import targets_recipe
from distillery.store.chunks import chunk_folder
from distillery.student.build import plan_student
from distillery.student.origin import describe_origin
from distillery.teacher.adapters import teacher_hash, text_hash
from distillery.teacher.find import (
    count_parameters,
    denoiser_class,
    denoiser_config,
    family_in,
    find_teacher,
)
from distillery.teacher.loading import check_options, load_tokenizers, torch_dtype
from distillery.teacher.memory import ITEM_BYTES, advise_memory, estimate, summarise_memory
from distillery.teacher.weights import measure
from distillery.training.dataset import student_grid
from distillery.training.objectives import segment_weights

GIB = 1 << 30
HEADROOM = 1.05
"""Of the planned bytes: file headers, embeddings, logs."""


@dataclass(frozen=True)
class Work:
    """How much there is to do.

    Attributes:
        num_prompts: of each split.
        num_trajectories: stored.
        num_chunks: files they are in.
        trajectory_bytes: of one stored trajectory.
        teacher_calls: denoiser forward passes for all targets.
    """

    num_prompts: dict[str, int]
    num_trajectories: int
    num_chunks: int
    trajectory_bytes: int
    teacher_calls: int


def make_plan(config: RunConfig, output: Path) -> None:
    """Check everything that can be known beforehand, and write the plan.

    Raises:
        FileNotFoundError: a prompt file, the teacher or a part of it is missing.
        ValueError: bad prompts, or some that are too long for the teacher, an impossible size or
            grid, adapters or attention that do not fit the teacher, a second guidance scale or
            negative prompts that nothing would use, no CLIP model as the judge, weights of
            timesteps that leave a step out, or too little disk space.
    """
    prompts = read_splits(config.prompts)
    folder = find_teacher(config.teacher)
    family = family_in(folder)
    check_options(config.teacher, folder)
    check_second_scale(config, folder, family)
    check_all_lengths(config.teacher, folder, family, prompts)
    of_prompts = check_negatives(config, prompts, folder, family) + advise_weights(prompts)
    plan: dict[str, Any] = {
        "run": config.run,
        "teacher": {
            "folder": str(folder),
            "family": family.name,
            "parameters": count_parameters(folder, config.teacher.variant),
        },
        "hardware": describe_hardware(),
    }
    if isinstance(config, Config):
        gpus = plan["hardware"]["gpus"]
        plan |= plan_distillation(config, prompts, folder, family, output.parent, gpus)
    else:
        plan |= plan_generation(config, len(prompts["eval"]), folder, family, output.parent)
    memory = estimate(config.teacher, folder, family, plan["hardware"]["gpus"])
    plan["memory"] = vars(memory)
    plan["advice"] += of_prompts + advise_memory(config.teacher, memory)
    # Last, as the slowest: it reads the whole teacher, once for all jobs.
    plan["teacher"]["hash"] = teacher_hash(config.teacher, folder)
    write_json(output, plan)


def check_all_lengths(
    teacher: Teacher, folder: Path, family: Family, prompts: Mapping[str, pd.DataFrame]
) -> None:
    """Raise ValueError for prompts of any split that encoding would refuse as too long.

    On one core a prompt takes some tenths of a millisecond.
    """
    if teacher.long_prompts == "refuse":
        tables = prompts.values()
        texts = [teacher.negative_prompt, *(text for it in tables for text in it.prompt)]
        texts += [text for it in tables for text in own_negatives(it)]
        pipeline = load_tokenizers(teacher, folder)
        check_prompt_lengths(teacher, family, pipeline, dict.fromkeys(texts))


def plan_distillation(
    config: Config,
    prompts: Mapping[str, pd.DataFrame],
    folder: Path,
    family: Family,
    run_folder: Path,
    gpus: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """What a run that distils needs; see `make_plan` for what it raises."""
    num_prompts = {split: len(table) for split, table in prompts.items()}
    check_judge(config.evaluation.judge)
    student = plan_student(config.student, folder, family)
    recipe = _recipe(config, folder, family)
    grid = check_segments(config, recipe)
    shape = tuple(recipe["latent_shape"])
    calls_per_step = family.calls_per_step(denoiser_config(folder), config.targets.guidance_scale)
    work = plan_work(config, num_prompts, shape, calls_per_step)
    chunks = chunk_folder(run_folder / "targets", hash_json(recipe))
    vae = measure(folder, config.teacher.variant)["vae"].num_parameters
    training = plan_training(config, student, denoiser_class(folder), gpus, vae_bytes(config, vae))
    return {
        "latent_shape": list(shape),
        "student": asdict(student) | {"summary": describe_origin(student)},
        "work": vars(work),
        "jobs": count_jobs(config),
        "disk": check_disk(work, run_folder, chunks),
        "training": training,
        "advice": advise_prompts(prompts)
        + advise(config, work)
        + advise_precision(config, grid, recipe["prediction_type"])
        + training["advice"],
    }


def _recipe(config: Config, folder: Path, family: Family) -> dict[str, Any]:
    """The recipe that the targets will have; raises ValueError for an impossible grid."""
    encoding = EmbeddingsJob(teacher=config.teacher, embeddings=config.embeddings)
    text = text_hash(config.teacher, folder)
    embeddings_hash = hash_json(embeddings_recipe(encoding, family, text))
    job = TargetsJob(seed=config.seed, teacher=config.teacher, targets=config.targets)
    return targets_recipe(job, family, folder, embeddings_hash)


def check_segments(config: Config, recipe: Mapping[str, Any]) -> Schedule:
    """The student's grid.

    Raises ValueError for a grid or weights of its steps that the training would refuse, hours
    later, when the targets are made.
    """
    grid = student_grid(recipe, Schedule(**recipe["schedule"]), config.student.steps)
    segment_weights(config.training.timestep_weights, grid, recipe["prediction_type"])
    return grid


def vae_bytes(config: Config, num_parameters: int) -> int:
    """Of the VAE's weights beside the student: once for previews, once for the perceptual loss."""
    previews = ITEM_BYTES[config.teacher.vae_dtype] * bool(config.previews.every_samples)
    perceptual = ITEM_BYTES["float32"] * bool(config.training.perceptual_weight)
    return num_parameters * (previews + perceptual)


def plan_work(
    config: Config, num_prompts: dict[str, int], shape: tuple[int, ...], calls_per_step: int
) -> Work:
    """Count trajectories, bytes and network calls."""
    targets = config.targets
    num_trajectories = num_prompts["train"] * targets.samples_per_prompt
    return Work(
        num_prompts=num_prompts,
        num_trajectories=num_trajectories,
        num_chunks=-(-num_trajectories // targets.chunk_size),
        trajectory_bytes=(targets.num_segments * (1 + targets.predictions) + 1)
        * prod(shape)
        * torch_dtype(targets.dtype).itemsize,
        teacher_calls=num_trajectories * targets.steps * calls_per_step,
    )


def check_disk(work: Work, folder: Path, chunks: Path) -> dict[str, Any]:
    """Compare the planned size with the free space of `folder`; finished `chunks` need no more."""
    folder.mkdir(parents=True, exist_ok=True)
    planned = int(work.num_trajectories * work.trajectory_bytes * HEADROOM)
    free = shutil.disk_usage(folder).free
    present = sum(path.stat().st_size for path in chunks.glob("chunk-*.safetensors"))
    if planned > free + present:
        raise ValueError(
            f"the targets need {planned / GIB:.1f} GiB, {folder} has {free / GIB:.1f} GiB free: "
            "free some space, lower targets.samples_per_prompt or targets.num_segments, store "
            "targets.dtype: bfloat16, or make results/ a link to a larger disk"
        )
    return {"planned_bytes": planned, "free_bytes": free, "present_bytes": present}


def count_jobs(config: Config) -> dict[str, int]:
    """Jobs of each stage that can run side by side."""
    num_models = len(config.samples.models)
    return {
        "embeddings": 2,
        "targets": config.targets.num_shards,
        "training": 1,
        "samples": num_models * config.samples.num_shards,
    }


def advise_prompts(prompts: Mapping[str, pd.DataFrame]) -> list[str]:
    """What of the held-out prompts, and of their noise, the student also learns from."""
    texts, ids = (
        len(set(prompts["train"][column]) & set(prompts["eval"][column]))
        for column in ("prompt", "prompt_id")
    )
    advice = []
    if texts:
        advice.append(
            f"{texts} prompts of prompts.eval are also in prompts.train: on them the scores say "
            "what the student remembers, not what it has learned"
        )
    if ids:
        advice.append(
            f"{ids} prompt ids of prompts.eval are also in prompts.train: equal ids have equal "
            "noise, so the student is judged on noise that it has learned from; begin the ids of "
            "one file otherwise"
        )
    return advice


def advise(config: Config, work: Work) -> list[str]:
    """What a user would want to know, though it stops nothing."""
    advice = []
    if work.num_chunks < config.targets.num_shards:
        advice.append(
            f"targets.num_shards is {config.targets.num_shards} for {work.num_chunks} chunks: some "
            "jobs will have nothing to do"
        )
    if work.num_trajectories < 1000:
        advice.append(
            f"{work.num_trajectories} trajectories only initialise a student; real models look "
            "soft below about 10,000 and good from 100,000"
        )
    steps = config.student.steps
    if config.training.objective == "prediction" and steps < config.targets.steps:
        advice.append(
            f"training.objective is 'prediction' and student.steps is {steps}, targets.steps "
            f"{config.targets.steps}: the student learns to do without guidance, not to take fewer "
            f"steps, and will draw as the teacher does in {steps}; use segment, or set "
            f"student.steps and targets.num_segments to {config.targets.steps}"
        )
    return advice


def summary(plan: dict[str, Any]) -> str:
    """The plan on one screen."""
    trains = "training" in plan["jobs"]
    lines = [
        f"run {plan['run']}: {plan['teacher']['family']} teacher in {plan['teacher']['folder']}",
        *(_summarise_distillation(plan) if trains else summarise_generation(plan)),
        f"  devices       {len(plan['hardware']['gpus']) or 'no'} GPU, "
        f"{plan['hardware']['num_cores']} cores",
        summarise_memory(plan["memory"]),
    ]
    return "\n".join([*lines, *(f"  note          {line}" for line in plan["advice"])])


def _summarise_distillation(plan: dict[str, Any]) -> list[str]:
    """The lines of what is computed and stored."""
    work, disk = plan["work"], plan["disk"]
    return [
        f"  prompts       {work['num_prompts']['train']} to learn from, "
        f"{work['num_prompts']['eval']} held out",
        f"  student       {plan['student']['summary']}",
        f"  trajectories  {work['num_trajectories']} in {work['num_chunks']} chunks, "
        f"{work['teacher_calls']} network calls",
        f"  disk          {disk['planned_bytes'] / GIB:.2f} GiB planned, "
        f"{disk['free_bytes'] / GIB:.1f} GiB free",
        *summarise_training(plan["training"]),
    ]
