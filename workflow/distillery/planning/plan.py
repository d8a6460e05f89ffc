"""Check a run before it starts, and say what it will do."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distillery.config.jobs import freeze
from distillery.config.run import Config, RunConfig
from distillery.config.teacher import Teacher
from distillery.files import hash_json, write_json, write_text
from distillery.hardware import describe_hardware
from distillery.notes import Note, noting, refuse
from distillery.planning.checks import FOLDER, PLANS, Planned, ask, results_of, wishes_of
from distillery.planning.costs import what_it_costs
from distillery.planning.duration import plan_duration
from distillery.planning.facts import Distillation, Facts
from distillery.planning.first import sources_of
from distillery.planning.gpus import on_gpus, plan_gpus
from distillery.planning.host import host_bytes
from distillery.planning.html import html_of
from distillery.planning.jobs import Room, StageJobs, list_jobs
from distillery.planning.overlooked import hash_settings, hash_sources
from distillery.planning.page import DOUBTS, NO_DOUBT, Page, Part, page_of
from distillery.planning.passes import passes_per_job
from distillery.planning.probe import on_name
from distillery.planning.prompt_tables import read_splits
from distillery.planning.scaling import networks_of
from distillery.planning.solver import solver_facts
from distillery.planning.there import Found, already_there, there_part
from distillery.planning.what_runs import steps_of, what_is_known, what_runs
from distillery.run_folder import RunFolder
from distillery.stage import Stage
from distillery.teacher.adapters import denoiser_hash, teacher_hash
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.memory import Memory, estimate, on_memory
from distillery.teacher.quantization import how_quantised
from distillery.words import counted


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
        output: plan.json; plan.html goes beside it.
        num_gpus: that Snakemake gives the training; None where it is not to train.
        num_nodes: that these are on.
        requests: what jobs ask a cluster for, see `planning.requests`.

    Raises:
        FileNotFoundError: a prompt file, the teacher or a part of it is missing, and nothing else.
        ValueError: with all errors of the first list of `planning.checks` that has some.
    """
    run_folder, hardware = RunFolder(output.parent), describe_hardware()
    gpus = plan_gpus(config.hardware, hardware["gpus"], num_gpus, num_nodes)
    notes = list(on_name(config, run_folder))
    with noting(notes):
        prompts = read_splits(config.prompts, config.teacher)
    config.teacher.learn_from(run_folder.signature)
    with noting(notes):
        folder = find_teacher(config.teacher)
    refuse(notes)
    head: dict[str, Any] = {
        "run": config.run,
        "config": hash_json(freeze(config, "run")),
        "num_gpus": num_gpus,
        "num_nodes": num_nodes,
        "hardware": hardware,
        "planned_gpus": asdict(gpus),
        "requests": requests or {},
    }
    found = prompts, folder, run_folder, gpus
    facts = Facts(stages, config, *found)
    if isinstance(config, Config):
        facts = Distillation(stages, config, *found)
    notes = ask(FOLDER, facts) + ask(wishes_of(facts), facts)
    if folder.is_to_be_learnt:
        memory = estimate(config.teacher, folder, gpus.memory_bytes, gpus.is_unknown)
        notes += [*on_gpus(gpus), *on_memory(config.teacher, memory)]
        write_plan(run_folder, head | plan_unlearnt(facts, notes, memory))
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    notes += ask(results_of(facts), facts)
    plan = head | plan_parts(facts, hardware["num_cores"])
    notes += ask(PLANS, Planned(facts, plan))
    plan["advice"] = told(notes)
    plan["page"] = asdict(page_for(facts, plan))
    write_plan(run_folder, plan)


def write_plan(run_folder: RunFolder, plan: Mapping[str, Any]) -> None:
    """Write plan.html and plan.json.

    The page first: Snakemake asks for plan.json, so where that is, its page is. The page is no
    output of the rule: before the first job a run is planned without a rule.
    """
    run_folder.path.mkdir(parents=True, exist_ok=True)
    write_text(run_folder.plan_page, html_of(page_of(plan)))
    write_json(run_folder.plan, plan)


def plan_unlearnt(facts: Facts, notes: Sequence[Note], memory: Memory) -> dict[str, Any]:
    """What is said of a run before anything is learnt of its teacher."""
    config, doubts = facts.config, told(notes)
    known = what_is_known(config, facts.prompts, facts.folder, memory)
    parts = (known, doubts_part(doubts))
    page = Page(config.run, f"{config.teacher.path}, to be learnt", parts)
    return {
        "memory": vars(memory),
        "sources": hash_sources(sources_of(config)),
        "advice": doubts,
        "page": asdict(page),
    }


def told(notes: Sequence[Note]) -> list[str]:
    """Doubts, then advice."""
    return [str(note) for kind in ("doubt", "advice") for note in notes if note.kind == kind]


def plan_parts(facts: Facts, num_cores: int) -> dict[str, Any]:
    """What a run needs of everything."""
    config, folder, gpus = facts.config, facts.folder, facts.gpus
    plan = facts.amounts()
    plan["solver"] = {"facts": solver_facts(config, folder, facts.latent_shape)}
    world, size, networks = 1, 1.0, None
    if isinstance(facts, Distillation):
        world, student = facts.machine.world_size, facts.student
        size = student.num_parameters / student.teacher_parameters
        networks = networks_of(facts.training, facts.calls_per_step, size)
    jobs = list_jobs(facts.stages, config, gpus, world)
    room = Room(jobs, gpus.count, num_cores // config.hardware.cpu_threads)
    of_run = facts.stages, config, facts.counts, facts.run_folder
    plan["time"] = plan_duration(*of_run, room, networks)
    amounts = facts.stages, config, facts.counts, facts.calls
    plan["passes_per_job"] = passes_per_job(*amounts, facts.run_folder, size)
    memory = estimate(config.teacher, folder, gpus.memory_bytes, gpus.is_unknown)
    plan["memory"] = vars(memory)
    plan["host_bytes"] = host_bytes(facts.stages, config, plan, folder)
    by_input = folder.family.has_guidance_embedding(folder.denoiser_config)
    found = already_there(config, facts.run_folder, facts.prompts, facts.recipes, by_input)
    return plan | {
        "stages": [asdict(row) for row in jobs],
        "there": [asdict(row) for row in found],
        "sources": hash_sources(sources_of(config)),
        "teacher": _about_teacher(config.teacher, folder),
    }


def page_for(facts: Facts, plan: Mapping[str, Any]) -> Page:
    """The page of a plan: what runs, what is there, what it costs, what is doubtful."""
    config, folder = facts.config, facts.folder
    jobs = [StageJobs(**row) for row in plan["stages"]]
    parts = (
        what_runs(config, facts.prompts, folder, plan, jobs),
        there_part(Found(**row) for row in plan["there"]),
        what_it_costs(facts, plan, jobs),
        doubts_part(plan["advice"]),
    )
    return Page(config.run, headline(config, plan), parts)


def doubts_part(lines: Sequence[str]) -> Part:
    """The page's last part."""
    return Part(DOUBTS, notes=tuple(lines) or (NO_DOUBT,))


def headline(config: RunConfig, plan: Mapping[str, Any]) -> str:
    """The run in one sentence."""
    name = config.teacher.path
    if not isinstance(config, Config):
        images = counted(plan["work"]["num_images"], "image")
        return f"{images} of {name}, {plan['work']['teacher_calls']:,} network calls"
    kind = "a LoRA" if config.student.init == "lora" else "a student"
    steps = steps_of(config.student)
    return f"{config.targets.steps} steps of {name}, distilled into {kind} of {steps}"


def _about_teacher(teacher: Teacher, folder: PipelineFolder) -> dict[str, Any]:
    """Where and what it is; reads the whole teacher, once for all jobs."""
    packing = how_quantised(teacher)
    return {
        **({"quantization": packing} if packing else {}),
        "folder": str(folder.path),
        "family": folder.family.name,
        "parameters": folder.parameters,
        "hash": teacher_hash(teacher, folder),
        "denoiser_hash": denoiser_hash(teacher, folder),
        "settings": hash_settings(teacher),
    }
