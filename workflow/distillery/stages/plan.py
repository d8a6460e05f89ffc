"""Check a run before it starts, and say what it will do.

python -m distillery.stages.plan --config results/demo/config/run.json \\
    --output results/demo/plan.json
"""

import logging
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import pandas as pd

from distillery.cli import logged_parser
from distillery.config.jobs import EmbeddingsJob, TargetsJob, freeze, read_config
from distillery.config.run import Config, RunConfig
from distillery.config.teacher import Teacher
from distillery.files import hash_json, read_json, readable, write_json
from distillery.generation.targets import targets_recipe
from distillery.generation.teacher_walk import check_steps
from distillery.hardware import describe_hardware
from distillery.planning.disk import check_disk, plan_disk, summarise_sizes
from distillery.planning.duration import plan_duration, summarise_duration
from distillery.planning.first import sources_of
from distillery.planning.generation import plan_generation, summarise_generation
from distillery.planning.gpus import Gpus, advise_gpus, plan_gpus, summarise_gpus
from distillery.planning.guidance import check_second_scale
from distillery.planning.measures import advise_measures, count_features
from distillery.planning.overlooked import check_same_teacher, hash_settings, hash_sources
from distillery.planning.passes import passes_per_job
from distillery.planning.precision import advise_precision
from distillery.planning.prompts import advise_weights, check_negatives
from distillery.planning.training import plan_training, summarise_training
from distillery.prompts import own_negatives
from distillery.run_folder import RunFolder
from distillery.schedule import Schedule
from distillery.stages.embeddings import check_prompt_lengths, embeddings_recipe
from distillery.stages.prompts import read_splits
from distillery.store.chunks import chunk_folder
from distillery.store.recipes import TargetsRecipe
from distillery.student.build import plan_student
from distillery.student.info import describe_student
from distillery.student.schedule import student_grid
from distillery.teacher.adapters import teacher_hash
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.loading import (
    check_options,
    load_scheduler,
    load_tokenizers,
    torch_dtype,
)
from distillery.teacher.memory import ITEM_BYTES, advise_memory, estimate, summarise_memory
from distillery.telemetry import explain_errors
from distillery.training.objectives import segment_weights


@dataclass(frozen=True)
class Work:
    """How much there is to do.

    Attributes:
        num_prompts: of each split.
        num_trajectories: stored.
        num_chunks: files they are in.
        trajectory_bytes: of one stored trajectory.
        teacher_calls: denoiser forward passes for all targets.
        round_bytes: of one round's states, and of the teacher's answers.
        round_calls: denoiser forward passes for them.
    """

    num_prompts: dict[str, int]
    num_trajectories: int
    num_chunks: int
    trajectory_bytes: int
    teacher_calls: int
    round_bytes: int = 0
    round_calls: int = 0

    @property
    def targets_bytes(self) -> int:
        """Of all stored trajectories."""
        return self.num_trajectories * self.trajectory_bytes


def make_plan(
    config: RunConfig, output: Path, num_gpus: int | None = None, num_nodes: int = 1
) -> None:
    """Check everything that can be known beforehand, and write the plan.

    Args:
        config: of the run.
        output: plan.json.
        num_gpus: that Snakemake gives the training; None where it is not to train.
        num_nodes: that these are on.

    Raises:
        FileNotFoundError: a prompt file, the teacher or a part of it is missing.
        ValueError: bad prompts, or some that are too long for the teacher, an impossible size or
            grid, adapters or attention that do not fit the teacher, a second guidance scale or
            negative prompts that nothing would use, no CLIP model as the judge, a vision model
            that gives no features, weights of timesteps that leave a step out, previews that the
            training could not draw, or too little disk space.
    """
    run_folder = RunFolder(output.parent)
    prompts = read_splits(config.prompts)
    folder = find_teacher(config.teacher)
    check_options(config.teacher, folder)
    check_second_scale(config, folder)
    check_all_steps(config, folder)
    check_all_lengths(config.teacher, folder, prompts)
    of_prompts = check_negatives(config, prompts, folder) + advise_weights(prompts)
    hardware = describe_hardware()
    gpus = plan_gpus(config.hardware, hardware["gpus"], num_gpus, num_nodes)
    plan: dict[str, Any] = {
        "run": config.run,
        "config": hash_json(freeze(config, "run")),
        "num_gpus": num_gpus,
        "num_nodes": num_nodes,
        "teacher": {
            "folder": str(folder.path),
            "family": folder.family.name,
            "parameters": folder.parameters,
        },
        "hardware": hardware,
        "planned_gpus": vars(gpus),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(config, Config):
        plan |= plan_distillation(config, prompts, folder, run_folder, gpus)
    else:
        plan |= plan_generation(config, prompts, folder, run_folder)
    plan["time"] = plan_duration(
        config,
        plan["work"]["num_prompts"],
        run_folder,
        gpus.count,
        hardware["num_cores"],
    )
    memory = estimate(config.teacher, folder, gpus.memory_bytes, gpus.is_unknown)
    plan["memory"] = vars(memory)
    plan["advice"] += of_prompts + advise_gpus(gpus) + advise_memory(config.teacher, memory)
    plan["sources"] = hash_sources(sources_of(config))
    # Last, as the slowest: it reads the whole teacher, once for all jobs.
    plan["teacher"] |= {
        "hash": teacher_hash(config.teacher, folder),
        "settings": hash_settings(config.teacher),
    }
    check_same_teacher(plan["teacher"], run_folder)
    write_json(output, plan)


def check_all_steps(config: RunConfig, folder: PipelineFolder) -> None:
    """Raise ValueError for more steps than the teacher's scheduler was trained with.

    Some schedulers refuse it, hours later; others repeat timesteps.
    """
    most = int(load_scheduler(folder, config.teacher).config.num_train_timesteps)
    steps = {
        f"samples.models.{name}.steps": model.steps for name, model in config.samples.models.items()
    }
    if isinstance(config, Config):
        steps["targets.steps"] = config.targets.steps
    for key, number in steps.items():
        if number is not None and number > most:
            raise ValueError(
                f"{key} is {number}, the teacher's scheduler has {most} timesteps: use fewer steps"
            )


def check_all_lengths(
    teacher: Teacher, folder: PipelineFolder, prompts: Mapping[str, pd.DataFrame]
) -> None:
    """Raise ValueError for prompts of any split that encoding would refuse as too long.

    On one core a prompt takes some tenths of a millisecond.
    """
    if teacher.long_prompts == "refuse":
        tables = prompts.values()
        texts = [teacher.negative_prompt, *(text for table in tables for text in table.prompt)]
        texts += [text for table in tables for text in own_negatives(table)]
        pipeline = load_tokenizers(folder)
        check_prompt_lengths(teacher, folder.family, pipeline, dict.fromkeys(texts))


def plan_distillation(
    config: Config,
    prompts: Mapping[str, pd.DataFrame],
    folder: PipelineFolder,
    run_folder: RunFolder,
    gpus: Gpus,
) -> dict[str, Any]:
    """What a run that distils needs; see `make_plan` for what it raises."""
    num_prompts = {split: len(table) for split, table in prompts.items()}
    num_features = count_features(config.evaluation)
    student = plan_student(config.student, folder)
    recipe = _recipe(config, folder)
    grid = check_segments(config, recipe)
    shape = recipe.latent_shape
    calls_per_step = folder.family.calls_per_step(
        folder.denoiser_config, config.targets.guidance_scale
    )
    work = plan_work(config, num_prompts, shape, calls_per_step)
    chunks = chunk_folder(run_folder.target_folder, recipe.hash)
    sizes = plan_disk(
        config,
        student,
        prompts,
        work.targets_bytes,
        work.round_bytes,
        shape,
        folder,
        run_folder,
    )
    vae = vae_bytes(config, folder.parameters["vae"])
    training = plan_training(config, student, folder, gpus, vae)
    return {
        "latent_shape": list(shape),
        "student": asdict(student) | {"summary": describe_student(student)},
        "work": vars(work),
        "jobs": count_jobs(config),
        "passes_per_job": passes_per_job(
            config,
            num_prompts["eval"],
            {"targets": work.teacher_calls, "round": work.round_calls},
            folder,
            student.num_parameters / student.teacher_parameters,
        ),
        "disk": check_disk(sizes, run_folder, chunks),
        "training": training,
        "num_features": num_features,
        "advice": advise_prompts(prompts)
        + advise(config, work)
        + advise_measures(config, num_features, num_prompts["eval"])
        + advise_guidance(config, folder)
        + advise_precision(config, grid, recipe.prediction_type)
        + training["advice"],
    }


def _recipe(config: Config, folder: PipelineFolder) -> TargetsRecipe:
    """The recipe that the targets will have; raises ValueError for an impossible grid."""
    encoding = EmbeddingsJob(teacher=config.teacher, embeddings=config.embeddings)
    embeddings_hash = embeddings_recipe(encoding, folder).hash
    job = TargetsJob(seed=config.seed, teacher=config.teacher, targets=config.targets)
    return targets_recipe(job, folder, embeddings_hash)


def check_segments(config: Config, recipe: TargetsRecipe) -> Schedule:
    """The student's grid.

    Raises ValueError for a grid, weights of its steps or steps of the teacher that the training
    would refuse, hours later, when the targets are made.
    """
    grid = student_grid(recipe, config.student.steps)
    segment_weights(config.training.timestep_weights, grid, recipe.prediction_type)
    if config.training.targets == "online":
        check_steps(recipe.steps, config.student.steps, config.training.online_steps)
    return grid


def vae_bytes(config: Config, num_parameters: int) -> int:
    """Bytes of the VAE beside the student: once for previews, once for the perceptual loss."""
    previews = ITEM_BYTES[config.teacher.vae_dtype] * bool(config.previews.every_samples)
    perceptual = ITEM_BYTES["float32"] * bool(config.training.perceptual_weight)
    return num_parameters * (previews + perceptual)


def plan_work(
    config: Config, num_prompts: dict[str, int], shape: tuple[int, ...], calls_per_step: int
) -> Work:
    """Count trajectories, bytes and network calls."""
    targets = config.targets
    num_trajectories = num_prompts["train"] * targets.samples_per_prompt
    if not config.training.reads_trajectories:
        num_trajectories = 0
    steps, latent_bytes = config.student.steps, prod(shape) * torch_dtype(targets.dtype).itemsize
    num_states = num_trajectories if config.training.rounds else 0
    return Work(
        num_prompts=num_prompts,
        num_trajectories=num_trajectories,
        num_chunks=-(-num_trajectories // targets.chunk_size),
        trajectory_bytes=(targets.num_segments * (1 + targets.predictions) + 1) * latent_bytes,
        teacher_calls=num_trajectories * targets.steps * calls_per_step,
        # A state beside the teacher's walk from it, and once alone, on its way to the teacher.
        round_bytes=num_states * 3 * latent_bytes,
        round_calls=num_states * (targets.steps // steps * calls_per_step + steps),
    )


def count_jobs(config: Config) -> dict[str, int]:
    """Jobs of each stage that can run side by side."""
    num_models, rounds = len(config.samples.models), config.training.rounds
    in_rounds = {"rounds": 2 * config.targets.num_shards} if rounds else {}
    return {
        "embeddings": 2,
        "targets": config.targets.num_shards * config.training.reads_trajectories,
        "training": 1,
        "samples": num_models * config.samples.num_shards,
    } | in_rounds


def advise_prompts(prompts: Mapping[str, pd.DataFrame]) -> list[str]:
    """Notes on held-out prompts, and their noise, that the student also learns from."""
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
    advice: list[str] = []
    if not config.training.reads_trajectories:
        return advice
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


def advise_guidance(config: Config, folder: PipelineFolder) -> list[str]:
    """Notes on students that would be guided once more, by extra calls; a network that takes the
    scale as an input gets one anyway."""
    return [
        f"samples.models.{name}.guidance_scale is {model.guidance_scale:g}: the student learns the "
        "guided teacher's answers and is best without guidance of its own, which doubles its "
        "network calls too"
        for name, model in config.samples.models.items()
        if model.source != "teacher"
        and folder.family.calls_per_step(folder.denoiser_config, model.guidance_scale or 1.0) > 1
    ]


def summary(plan: dict[str, Any]) -> str:
    """The plan on one screen."""
    trains = "training" in plan["jobs"]
    lines = [
        f"run {plan['run']}: {plan['teacher']['family']} teacher in {plan['teacher']['folder']}",
        *(_summarise_distillation(plan) if trains else summarise_generation(plan)),
        f"  devices       {summarise_gpus(plan['planned_gpus'])}; here "
        f"{len(plan['hardware']['gpus']) or 'no'} GPU, {plan['hardware']['num_cores']} cores",
        summarise_memory(plan["memory"]),
        *summarise_duration(plan["time"], str(RunFolder(Path("results") / plan["run"]).probe)),
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
        f"{work['teacher_calls']} network calls"
        if work["num_trajectories"]
        else "  trajectories  none stored: all targets are online",
        *_summarise_rounds(plan),
        f"  disk          {readable(disk['planned_bytes'])} at the most, "
        f"{readable(disk['free_bytes'])} free, {readable(disk['present_bytes'])} of it there",
        f"    {summarise_sizes(disk['stages'])}",
        *summarise_training(plan["training"]),
    ]


def _summarise_rounds(plan: dict[str, Any]) -> list[str]:
    """The line of what each round computes, if there are rounds."""
    rounds, work = plan["training"]["rounds"], plan["work"]
    if rounds is None:
        return []
    return [
        f"  rounds        {rounds['count']}, each {work['num_trajectories']} states of the "
        f"student, {work['round_calls']} network calls, and {rounds['samples']} samples of the "
        "training"
    ]


def main(argv: list[str] | None = None) -> int:
    """The command line of this stage: plan, and print the plan."""
    parser = logged_parser(__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the whole configuration")
    parser.add_argument("--output", type=Path, required=True, help="plan.json")
    parser.add_argument("--num-gpus", type=int, help="that Snakemake gives the training")
    parser.add_argument("--num-nodes", type=int, default=1, help="that these are on")
    arguments = parser.parse_args(argv)
    # On the terminal, as the plan itself: reading a large teacher takes minutes.
    logging.basicConfig(format="%(message)s")
    logging.getLogger("distillery").setLevel(logging.INFO)
    status = explain_errors(
        lambda: make_plan(
            read_config(arguments.config),
            arguments.output,
            arguments.num_gpus,
            arguments.num_nodes,
        ),
        arguments.log,
    )
    if status == 0:
        print(summary(read_json(arguments.output)), file=sys.stderr)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
