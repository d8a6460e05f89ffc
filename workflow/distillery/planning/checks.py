"""What is asked before a run, in this order: whoever adds a check adds a line to one of the lists.

A check gets the run's facts and yields notes of its subject. Each list is asked where none of those
before it found an error, and all of its errors are told at once. What is asked for its result, as a
scheduler, raises singly.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distillery.config.training import on_held_out
from distillery.notes import Note, gather, refuse
from distillery.planning.advice import on_amounts, on_both_splits, on_guided_students, on_images
from distillery.planning.disk import on_disk
from distillery.planning.duration import on_duration
from distillery.planning.facts import Distillation, Facts
from distillery.planning.few_steps import on_few_steps
from distillery.planning.gpus import on_gpus
from distillery.planning.guidance import on_second_scale
from distillery.planning.host import on_requests
from distillery.planning.jobs import StageJobs
from distillery.planning.overlooked import on_same_teacher
from distillery.planning.precision import on_average, on_rounding
from distillery.planning.prompts import (
    check_all_texts,
    on_made,
    on_misread,
    on_negatives,
    on_sequence_length,
    on_weights,
)
from distillery.planning.requests import read_requests
from distillery.planning.scoring import on_measures
from distillery.planning.solver import on_num_steps, on_walks
from distillery.planning.there import Found, on_repair
from distillery.planning.training import on_previews, on_training
from distillery.planning.unusual import (
    on_adapters,
    on_attention,
    on_idle,
    on_numbers,
    on_settings,
)
from distillery.teacher.loading import check_options, on_networks
from distillery.teacher.memory import Memory, on_memory
from distillery.teacher.solver import on_solver

Check = Callable[[Any], Iterable[Note] | None]

# Of a damaged folder nothing else can be asked.
FOLDER: tuple[Check, ...] = (
    lambda it: on_networks(it.folder),
    lambda it: on_made(it.config, it.prompts, it.run_folder),
)

# What the user asks of prompts and the teacher.
WISHES: tuple[Check, ...] = (
    lambda it: on_sequence_length(it.config.teacher, it.folder.family),
    lambda it: check_options(it.config.teacher, it.folder),
    lambda it: on_second_scale(it.config, it.folder),
    lambda it: on_num_steps(it.config, it.folder),
    lambda it: check_all_texts(it.config.teacher, it.folder, it.prompts),
    lambda it: on_negatives(it.config, it.prompts, it.folder),
    lambda it: on_weights(it.prompts),
    lambda it: on_misread(it.prompts),
    lambda it: on_numbers(it.config, it.num_prompts["eval"]),
    lambda it: on_few_steps(it.config, it.folder),
    lambda it: on_adapters(it.config.teacher),
    lambda it: on_idle(it.config.teacher, it.folder),
    lambda it: on_attention(it.config.teacher),
)
WISHES_OF_DISTILLATION: tuple[Check, ...] = (
    lambda it: on_held_out(it.config.training.held_out_prompts, it.num_prompts["train"]),
    lambda it: on_settings(it.config, it.num_prompts["train"]),
    lambda it: on_both_splits(it.prompts),
    lambda it: on_guided_students(it.config, it.folder),
    lambda it: on_average(it.config),
    lambda it: on_measures(it.config, it.num_features, it.num_prompts["eval"]),
)

# What follows from it.
RESULTS: tuple[Check, ...] = (
    lambda it: on_solver(it.folder, it.config.teacher),
    lambda it: on_walks(it.config, it.folder, it.latent_shape),
)
RESULTS_OF_GENERATION: tuple[Check, ...] = (
    lambda it: on_images(it.config.samples, it.images_per_model, it.disk),
)
RESULTS_OF_DISTILLATION: tuple[Check, ...] = (
    lambda it: on_rounding(it.config, it.grid, it.recipe.prediction_type),
    lambda it: on_amounts(it.config, it.work),
    lambda it: on_training(it.config.training, it.execution, it.machine, it.config.student.init),
    lambda it: on_previews(it.config, it.execution),
    lambda it: possible(it.training),
    lambda it: on_disk(it.disk, it.run_folder),
)


@dataclass(frozen=True)
class Planned:
    """A plan, and the facts that it was made from."""

    facts: Facts
    plan: Mapping[str, Any]


# What the whole plan says, for which the teacher was read.
PLANS: tuple[Check, ...] = (
    lambda it: on_same_teacher(it.plan["teacher"], it.facts.run_folder),
    lambda it: on_gpus(it.facts.gpus),
    lambda it: on_memory(it.facts.config.teacher, Memory(**it.plan["memory"])),
    lambda it: on_duration(it.plan["time"], it.facts.gpus, str(it.facts.run_folder.probe)),
    lambda it: on_repair([Found(**row) for row in it.plan["there"]], it.facts.run_folder),
    lambda it: on_requests(
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
    """The list `WISHES`, with what is asked of this kind of run alone."""
    return WISHES + WISHES_OF_DISTILLATION * isinstance(facts, Distillation)


def results_of(facts: Facts) -> tuple[Check, ...]:
    """The list `RESULTS`, with what is asked of this kind of run alone."""
    is_distilled = isinstance(facts, Distillation)
    return RESULTS + (RESULTS_OF_DISTILLATION if is_distilled else RESULTS_OF_GENERATION)
