"""What is asked before a run, in this order: whoever adds a check adds a line to one of the lists.

A check gets the run's facts and yields notes of its subject. Each list is asked where none of those
before it found an error, and all of its errors are told at once. What is asked for its result, as a
scheduler, raises singly.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distillery.config.training import on_held_out
from distillery.families import flow_map_of
from distillery.notes import Note, gather, refuse
from distillery.planning import (
    call,
    disk,
    duration,
    few_steps,
    gpus,
    guidance,
    host,
    overlooked,
    precision,
    prompts,
    scoring,
    sizes,
    solver,
    there,
    training,
    unusual,
    work,
)
from distillery.planning.facts import Distillation, Facts
from distillery.planning.from_run import on_from_run, on_student_run
from distillery.planning.jobs import StageJobs
from distillery.planning.requests import read_requests
from distillery.planning.trace import on_trace
from distillery.teacher import memory, skeleton
from distillery.teacher.quantization import how_quantised
from distillery.teacher.solver import on_solver

Check = Callable[[Any], Iterable[Note] | None]


def _trained(check: Check) -> Check:
    """A check of runs that train their student, and do not judge another run's alone."""
    return lambda it: check(it) if it.config.trains else None


# Of a damaged folder nothing else can be asked.
FOLDER: tuple[Check, ...] = (
    lambda it: skeleton.on_networks(it.folder),
    lambda it: prompts.on_made(it.config, it.prompts, it.run_folder),
)

# What the user asks of prompts and the teacher, also of one that is still to be learnt.
WISHES_OF_ANY: tuple[Check, ...] = (
    lambda it: call.on_call(it.config.teacher, it.folder),
    lambda it: call.on_frames(it.config.teacher, it.folder),
    lambda it: call.on_effect(it.config, it.folder),
    lambda it: on_trace(it.config, it.folder, it.prompts),
    lambda it: sizes.on_traced_sizes(it.config, it.folder, it.prompts),
    lambda it: solver.on_num_steps(it.config, it.folder),
    lambda it: prompts.on_weights(it.prompts),
    lambda it: prompts.on_misread(it.prompts),
    lambda it: prompts.on_images(it.prompts),
    lambda it: unusual.on_numbers(it.config, it.num_prompts["eval"]),
    lambda it: unusual.on_adapters(it.config.teacher),
    lambda it: unusual.on_attention(it.config.teacher),
    lambda it: possible(how_quantised(it.config.teacher)),
)
WISHES_OF_TRAINING: tuple[Check, ...] = (
    _trained(lambda it: on_held_out(it.config.training.held_out_prompts, it.num_prompts["train"])),
    _trained(lambda it: unusual.on_settings(it.config, it.num_prompts["train"])),
    lambda it: prompts.on_both_splits(it.prompts),
    _trained(lambda it: precision.on_average(it.config)),
    lambda it: scoring.on_measures(it.config, it.num_features, it.num_prompts["eval"]),
)
# What its family must be known for.
WISHES: tuple[Check, ...] = (
    lambda it: sizes.on_sizes(it.config, it.folder, it.prompts),
    lambda it: prompts.on_sequence_length(it.config.teacher, it.folder.family),
    lambda it: skeleton.check_options(it.config.teacher, it.folder),
    lambda it: guidance.on_second_scale(it.config, it.folder),
    lambda it: guidance.on_interval(it.config, it.folder),
    lambda it: prompts.check_all_texts(it.config.teacher, it.folder, it.prompts),
    lambda it: prompts.on_negatives(it.config, it.prompts, it.folder),
    lambda it: few_steps.on_few_steps(it.config, it.folder),
    lambda it: unusual.on_idle(it.config.teacher, it.folder),
)
WISHES_OF_DISTILLATION: tuple[Check, ...] = (
    lambda it: guidance.on_guided_students(it.config, it.folder),
    lambda it: possible(it.config.student.is_flow_map and flow_map_of(it.folder.family)),
)

# What follows from it.
RESULTS: tuple[Check, ...] = (
    lambda it: on_solver(it.folder, it.config.teacher),
    lambda it: solver.on_walks(it.config, it.folder, it.latent_shapes),
)
RESULTS_OF_GENERATION: tuple[Check, ...] = (
    lambda it: work.on_images(it.config.samples, it.images_per_model, disk.lacking_bytes(it.disk)),
)
RESULTS_OF_DISTILLATION: tuple[Check, ...] = (
    on_from_run,
    on_student_run,
    _trained(lambda it: precision.on_rounding(it.config, it.grid, it.recipe.prediction_type)),
    _trained(lambda it: work.on_amounts(it.config, it.work)),
    _trained(
        lambda it: training.on_training(
            it.config.training, it.execution, it.machine, it.config.student.init
        )
    ),
    _trained(lambda it: training.on_previews(it.config, it.execution)),
    lambda it: possible(it.training),
    lambda it: disk.on_disk(it.stores, it.disk, it.run_folder),
)


@dataclass(frozen=True)
class Planned:
    """A plan, and the facts that it was made from."""

    facts: Facts
    plan: Mapping[str, Any]


# What the whole plan says, for which the teacher was read.
PLANS: tuple[Check, ...] = (
    lambda it: overlooked.on_same_teacher(it.plan["teacher"], it.facts.folder, it.facts.run_folder),
    lambda it: gpus.on_gpus(it.facts.gpus),
    lambda it: memory.on_memory(it.facts.config.teacher, memory.Memory(**it.plan["memory"])),
    lambda it: duration.on_duration(it.plan["time"], it.facts.gpus, str(it.facts.run_folder.probe)),
    lambda it: there.on_repair(
        [there.Found(**row) for row in it.plan["there"]], it.facts.run_folder
    ),
    lambda it: host.on_requests(
        read_requests(it.plan["requests"]),
        it.plan["host_bytes"],
        it.plan["time"],
        [StageJobs(**row) for row in it.plan["stages"]],
    ),
)


def possible(fact: object) -> None:
    """Nothing, of a fact that raises where it is not."""


def ask(checks: Iterable[Check], subject: Facts | Planned) -> list[Note]:
    """The notes of a list; raises ValueError with all errors among them."""
    notes = gather(checks, subject)
    refuse(notes)
    return notes


def wishes_of(facts: Facts) -> tuple[Check, ...]:
    """What is asked first, of this kind of run."""
    is_distilled, is_known = isinstance(facts, Distillation), not facts.folder.is_to_be_learnt
    return (
        WISHES * is_known
        + WISHES_OF_ANY
        + WISHES_OF_DISTILLATION * (is_distilled and is_known)
        + WISHES_OF_TRAINING * is_distilled
    )


def results_of(facts: Facts) -> tuple[Check, ...]:
    """The list `RESULTS`, with what is asked of this kind of run alone."""
    is_distilled = isinstance(facts, Distillation)
    return RESULTS + (RESULTS_OF_DISTILLATION if is_distilled else RESULTS_OF_GENERATION)
