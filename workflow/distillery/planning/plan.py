"""Check a run before it starts, and say what it will do."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from distillery.config.jobs import EmbeddingsJob, TargetsJob, freeze
from distillery.config.run import Config, RunConfig
from distillery.config.teacher import Teacher
from distillery.config.ways import Online
from distillery.files import hash_json, write_json, write_text
from distillery.generation.embeddings import check_texts, embeddings_recipe
from distillery.generation.targets import plan_of_targets, targets_recipe
from distillery.generation.teacher_walk import check_steps
from distillery.hardware import describe_hardware
from distillery.noise import hash_samples
from distillery.planning.costs import what_it_costs
from distillery.planning.distillation import plan_distillation
from distillery.planning.duration import advise_duration, plan_duration
from distillery.planning.few_steps import advise_few_steps
from distillery.planning.first import sources_of
from distillery.planning.generation import plan_generation
from distillery.planning.gpus import Gpus, advise_gpus, plan_gpus
from distillery.planning.guidance import check_second_scale
from distillery.planning.host import advise_requests, host_bytes
from distillery.planning.html import html_of
from distillery.planning.jobs import Room, StageJobs, list_jobs
from distillery.planning.overlooked import check_same_teacher, hash_settings, hash_sources
from distillery.planning.page import Page, Part, page_of
from distillery.planning.passes import passes_of_stages, passes_per_job
from distillery.planning.probe import check_name
from distillery.planning.prompt_tables import read_splits
from distillery.planning.prompts import (
    advise_misread,
    advise_weights,
    check_made,
    check_negatives,
    check_sequence_length,
)
from distillery.planning.requests import read_requests
from distillery.planning.scaling import networks_of
from distillery.planning.solver import plan_solver
from distillery.planning.there import (
    Found,
    advise_repair,
    already_there,
    hash_solver,
    there_part,
)
from distillery.planning.unusual import (
    advise_adapters,
    advise_attention,
    advise_idle,
    advise_numbers,
)
from distillery.planning.what_runs import what_runs
from distillery.prompts import own_negatives
from distillery.run_folder import RunFolder
from distillery.schedule import Schedule
from distillery.schedulers import plain_config
from distillery.stage import Counts, Stage
from distillery.store.embeddings import distinct_texts
from distillery.store.recipes import TargetsRecipe
from distillery.student.schedule import student_grid, student_scheduler
from distillery.teacher.adapters import denoiser_hash, teacher_hash
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.loading import check_networks, check_options, load_tokenizers
from distillery.teacher.memory import advise_memory, estimate
from distillery.teacher.solver import load_scheduler
from distillery.training.objectives import segment_weights
from distillery.words import counted


@dataclass(frozen=True)
class Inputs:
    """What a plan is made from.

    Attributes:
        stages: that there are.
        config: of the run.
        prompts: the table of each split.
        folder: of the teacher.
        run_folder: results/{run}, which exists.
        gpus: that the jobs will get.
    """

    stages: Sequence[Stage]
    config: RunConfig
    prompts: Mapping[str, pd.DataFrame]
    folder: PipelineFolder
    run_folder: RunFolder
    gpus: Gpus


def make_plan(
    stages: Sequence[Stage],
    config: RunConfig,
    output: Path,
    num_gpus: int | None = None,
    num_nodes: int = 1,
    requests: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Check everything that can be known beforehand, and write the plan.

    A plan that is refused leaves the files of the last good one as they are.

    Args:
        stages: that there are.
        config: of the run.
        output: plan.json; plan.html goes beside it.
        num_gpus: that Snakemake gives the training; None where it is not to train.
        num_nodes: that these are on.
        requests: what jobs ask a cluster for, see `planning.requests`.

    Raises:
        FileNotFoundError: a prompt file, the teacher or a part of it is missing.
        ValueError: bad prompts, some that are too long for the teacher, or others that Snakemake
            would not read again, an impossible size or grid, adapters or attention that do not fit
            the teacher, a second guidance scale or negative prompts that nothing would use, no
            CLIP model as the judge, a vision model that gives no features, weights of timesteps
            that leave a step out, previews that the training could not draw, or too little disk
            space.
    """
    run_folder = RunFolder(output.parent)
    check_name(config, run_folder)
    prompts = read_splits(config.prompts)
    check_made(config, prompts, run_folder)
    folder = find_teacher(config.teacher)
    of_prompts = check_inputs(config, prompts, folder)
    hardware = describe_hardware()
    gpus = plan_gpus(config.hardware, hardware["gpus"], num_gpus, num_nodes)
    output.parent.mkdir(parents=True, exist_ok=True)
    inputs = Inputs(stages, config, prompts, folder, run_folder, gpus)
    plan: dict[str, Any] = {
        "run": config.run,
        "config": hash_json(freeze(config, "run")),
        "num_gpus": num_gpus,
        "num_nodes": num_nodes,
        "hardware": hardware,
        "planned_gpus": asdict(gpus),
        "requests": requests or {},
    }
    plan |= plan_parts(inputs, hardware["num_cores"])
    plan["advice"] += of_prompts + advise_requests(
        read_requests(plan["requests"]),
        plan["host_bytes"],
        plan["time"],
        [StageJobs(**row) for row in plan["stages"]],
    )
    check_same_teacher(plan["teacher"], run_folder)
    plan["page"] = asdict(page_for(inputs, plan))
    # The page first: Snakemake asks for plan.json, so where that is, its page is. The page is no
    # output of the rule: before the first job a run is planned without a rule.
    write_text(run_folder.plan_page, html_of(page_of(plan)))
    write_json(output, plan)


def check_inputs(
    config: RunConfig, prompts: Mapping[str, pd.DataFrame], folder: PipelineFolder
) -> list[str]:
    """Notes on prompts and the teacher; raises as `make_plan` for what the teacher cannot do."""
    unread = check_networks(folder)
    check_sequence_length(config.teacher, folder.family)
    check_options(config.teacher, folder)
    check_second_scale(config, folder)
    check_all_steps(config, folder)
    check_all_texts(config.teacher, folder, prompts)
    notes = check_negatives(config, prompts, folder) + advise_weights(prompts)
    notes += unread + advise_misread(prompts)
    notes += advise_numbers(config, len(prompts["eval"])) + advise_few_steps(config, folder)
    notes += advise_adapters(config.teacher) + advise_idle(config.teacher, folder)
    return notes + advise_attention(config.teacher)


def plan_parts(inputs: Inputs, num_cores: int) -> dict[str, Any]:
    """What a run needs of everything; raises as `make_plan`."""
    config, folder, gpus = inputs.config, inputs.folder, inputs.gpus
    world, size, networks, recipes = 1, 1.0, None, {"embeddings": _embeddings_hash(config, folder)}
    if isinstance(config, Config):
        recipe = _recipe(config, folder, recipes["embeddings"])
        targets = recipe, check_segments(config, recipe)
        recipes["targets"] = recipe.hash
        solver = student_scheduler(recipe, config.student.steps)
        recipes["scheduler"] = hash_solver(plain_config(solver))
        rest = inputs.prompts, folder, inputs.run_folder, gpus
        plan = plan_distillation(config, *rest, targets)
        recipes["samples"] = _hash_samples(inputs)
        student, training = plan["student"], plan["training"]
        world = training["machine"]["world_size"]
        size = student["num_parameters"] / student["teacher_parameters"]
        networks = networks_of(training, plan["calls_per_step"], size)
    else:
        plan = plan_generation(config, inputs.prompts, folder, inputs.run_folder)
    plan["solver"] = plan_solver(config, folder, tuple(plan["latent_shape"]))
    plan["advice"] += plan["solver"].pop("advice")
    jobs = list_jobs(inputs.stages, config, gpus, world)
    room = Room(jobs, gpus.count, num_cores // config.hardware.cpu_threads)
    counts = Counts(plan["work"]["num_prompts"], _count_texts(inputs))
    of_run = inputs.stages, config, counts, inputs.run_folder
    plan["time"] = plan_duration(*of_run, room, networks)
    passes = passes_of_stages(config, plan, folder)
    plan["passes_per_job"] = passes_per_job(config, passes, jobs, size)
    memory = estimate(config.teacher, folder, gpus.memory_bytes, gpus.is_unknown)
    plan["memory"] = vars(memory)
    plan["host_bytes"] = host_bytes(config, plan, folder)
    plan["advice"] += advise_gpus(gpus) + advise_memory(config.teacher, memory)
    plan["advice"] += advise_duration(plan["time"], gpus, str(inputs.run_folder.probe))
    by_input = folder.family.has_guidance_embedding(folder.denoiser_config)
    found = already_there(config, inputs.run_folder, inputs.prompts, recipes, by_input)
    plan["advice"] += advise_repair(found, inputs.run_folder)
    return plan | {
        "stages": [asdict(row) for row in jobs],
        "there": [asdict(row) for row in found],
        "sources": hash_sources(sources_of(config)),
        "teacher": _about_teacher(config.teacher, folder),
    }


def _count_texts(inputs: Inputs) -> dict[str, int]:
    """What is encoded of each split."""
    negative = inputs.config.teacher.negative_prompt
    tables = inputs.prompts.items()
    return {split: len(distinct_texts(table, negative).texts) for split, table in tables}


def page_for(inputs: Inputs, plan: Mapping[str, Any]) -> Page:
    """The page of a plan: what runs, what is there, what it costs, what is doubtful."""
    config, folder = inputs.config, inputs.folder
    jobs = [StageJobs(**row) for row in plan["stages"]]
    doubts = tuple(plan["advice"]) or ("None that can be seen beforehand.",)
    parts = (
        what_runs(config, inputs.prompts, folder, plan, jobs),
        there_part(Found(**row) for row in plan["there"]),
        what_it_costs(config, folder, inputs.run_folder, plan, jobs),
        Part("Doubts", notes=doubts),
    )
    return Page(config.run, headline(config, plan), parts)


def headline(config: RunConfig, plan: Mapping[str, Any]) -> str:
    """The run in one sentence."""
    name = config.teacher.path
    if not isinstance(config, Config):
        images = counted(plan["work"]["num_images"], "image")
        return f"{images} of {name}, {plan['work']['teacher_calls']:,} network calls"
    kind = "a LoRA" if config.student.init == "lora" else "a student"
    steps = counted(config.student.steps, "step")
    return f"{config.targets.steps} steps of {name}, distilled into {kind} of {steps}"


def _about_teacher(teacher: Teacher, folder: PipelineFolder) -> dict[str, Any]:
    """Where and what it is; reads the whole teacher, once for all jobs."""
    return {
        "folder": str(folder.path),
        "family": folder.family.name,
        "parameters": folder.parameters,
        "hash": teacher_hash(teacher, folder),
        "denoiser_hash": denoiser_hash(teacher, folder),
        "settings": hash_settings(teacher),
    }


def _embeddings_hash(config: RunConfig, folder: PipelineFolder) -> str:
    """The hash of the recipe that the embeddings will have."""
    job = EmbeddingsJob(teacher=config.teacher, embeddings=config.embeddings)
    return embeddings_recipe(job, folder).hash


def _recipe(config: Config, folder: PipelineFolder, embeddings_hash: str) -> TargetsRecipe:
    """The recipe that the targets will have; raises ValueError for an impossible grid."""
    return targets_recipe(_targets_job(config), folder, embeddings_hash)


def _hash_samples(inputs: Inputs) -> str:
    """Of the trajectories' ids and texts, as a training's recipe has it; "" where no training is
    there that it could be compared with: a million samples take seconds."""
    config, run = inputs.config, inputs.run_folder
    trained = [run.student("trained"), *run.checkpoints.glob("*/recipe.json")]
    if not isinstance(config, Config) or not any(path.exists() for path in trained):
        return ""
    plans = plan_of_targets(_targets_job(config), inputs.folder, inputs.prompts["train"])
    return hash_samples(plan.members for plan in plans)


def _targets_job(config: Config) -> TargetsJob:
    return TargetsJob(seed=config.seed, teacher=config.teacher, targets=config.targets)


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


def check_all_texts(
    teacher: Teacher, folder: PipelineFolder, prompts: Mapping[str, pd.DataFrame]
) -> None:
    """Raise ValueError for prompts of any split that encoding would refuse.

    On one core a prompt takes some tenths of a millisecond.
    """
    tables = prompts.values()
    texts = [teacher.negative_prompt, *(text for table in tables for text in table.prompt)]
    texts += [text for table in tables for text in own_negatives(table)]
    check_texts(teacher, folder, load_tokenizers(folder), dict.fromkeys(texts))


def check_segments(config: Config, recipe: TargetsRecipe) -> Schedule:
    """The student's grid.

    Raises ValueError for a grid, weights of its steps or steps of the teacher that the training
    would refuse, hours later, when the targets are made.
    """
    grid = student_grid(recipe, config.student.steps)
    segment_weights(config.training.timestep_weights, grid, recipe.prediction_type)
    if online := config.training.of(Online):
        check_steps(recipe.steps, config.student.steps, online.steps)
    return grid
