"""What a run left behind, read for its report; what is not there is None or empty."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from distillery.config.run import Config
from distillery.files import JsonObject, read_json, read_sealed
from distillery.input_images import IMAGE
from distillery.measures.manifests import ModelSamples, check_pairs, check_scored, read_samples
from distillery.model_folder import METADATA, read_metadata
from distillery.report.categories import Categories, find_categories
from distillery.report.choices import Choices, read_choices
from distillery.report.roles import Roles, find_roles, find_same, order_models
from distillery.report.timeline import (
    Attempt,
    Origin,
    PlannedTime,
    find_attempts,
    find_origin,
    hold_against_plan,
)
from distillery.report.training_facts import TrainingFacts, gather_training
from distillery.report.verdict import Check, check_student
from distillery.report.worth import Worth, find_worth
from distillery.run_folder import RunFolder
from distillery.store.belonging import check_losses
from distillery.store.recipes import TrainingRecipe
from distillery.store.tables import read_table
from distillery.student.info import StudentInfo, read_student_info
from distillery.student.usage import student_code
from distillery.telemetry import Event, read_events

Content = TypeVar("Content")
OWN_STAGE = "report"


@dataclass(frozen=True)
class Findings:
    """Everything a run left behind that the report shows; None or empty where there is nothing."""

    config: Config
    roles: Roles
    quality: Mapping[str, Any] | None
    scores: pd.DataFrame | None
    samples: Mapping[str, ModelSamples]
    loss: pd.DataFrame | None
    training: TrainingFacts | None
    trained_recipes: Sequence[str]
    """The hash of the training's, and those of trainings that do a first part of it."""
    timesteps: Sequence[float]
    """Of the trained student's steps."""
    attempts: Sequence[Attempt]
    packing_errors: Mapping[str, float]
    """How much packed weights change a pass of each of the teacher's networks, as last measured."""
    origin: Origin | None
    manifests: Mapping[str, Mapping[str, Any]]
    plan: Mapping[str, Any] | None
    student_info: StudentInfo | None
    choice_files: Sequence[Path]

    @property
    def shown(self) -> Mapping[str, ModelSamples]:
        """The samples of each model under one name only."""
        return {name: self.samples[name] for name in self.roles.same.shown(self.samples)}

    @property
    def shown_quality(self) -> Mapping[str, Any] | None:
        """The scores of each model under one name only."""
        if self.quality is None:
            return None
        models = self.quality["models"]
        return {**self.quality, "models": {it: models[it] for it in self.roles.same.shown(models)}}

    @property
    def checks(self) -> list[Check]:
        """The thresholds."""
        if self.quality is None:
            return []
        return check_student(self.quality, self.roles, self.config.evaluation.min_clip_ratio)

    @cached_property
    def categories(self) -> Categories | None:
        """Scores by category, where the prompts have one."""
        reference = self.samples.get(self.roles.reference)
        if self.scores is None or reference is None:
            return None
        return find_categories(
            reference.table, self.scores, self.roles, self.config.evaluation.num_resamples
        )

    @cached_property
    def worth(self) -> Worth | None:
        """The student in network calls of the teacher, where that has a curve."""
        if self.quality is None or self.scores is None:
            return None
        return find_worth(
            self.quality,
            self.scores,
            self.config.samples.models,
            self.roles.student,
            self.config.evaluation.num_resamples,
        )

    @property
    def choices(self) -> Choices | None:
        """What people chose blindly; None where no file is in the run's folder for it."""
        return read_choices(self.choice_files, self.samples, self.roles)

    @property
    def planned(self) -> list[PlannedTime]:
        """Planned and measured times; none without a probe."""
        return hold_against_plan(self.attempts, self.plan)


def gather(config: Config, run_folder: RunFolder) -> Findings:
    """Read all there is of a run."""
    events = read_events(run_folder.telemetry)
    of_run = [event for event in events if event.stage != OWN_STAGE]
    student = config.student_run(run_folder)
    trained = _read_training_recipe(student)
    trained_recipes = _hashes(trained, config) if trained else []
    quality = _read_optional(read_sealed, run_folder.quality)
    samples = _read_all_samples(config, run_folder)
    if quality is not None:
        check_scored(run_folder, quality, samples)
    check_losses(run_folder)
    roles = find_roles(config, quality)
    first = (roles.reference, roles.student, roles.untrained, roles.rival)
    return Findings(
        config=config,
        roles=replace(roles, same=find_same(samples, first)),
        quality=quality,
        scores=_read_optional(read_table, run_folder.scores),
        samples=samples,
        loss=_read_optional(read_table, run_folder.loss),
        training=gather_training(events, trained_recipes),
        trained_recipes=trained_recipes,
        timesteps=trained.schedule.timesteps if trained else (),
        attempts=find_attempts(of_run),
        packing_errors=_packing_errors(config, of_run),
        origin=find_origin(of_run),
        manifests=_read_manifests(config, run_folder),
        plan=_read_optional(read_json, run_folder.plan),
        student_info=read_student_info(student.student("initial")),
        choice_files=run_folder.choices,
    )


def _packing_errors(config: Config, events: Sequence[Event]) -> dict[str, float]:
    """By component; nothing where the weights are not packed."""
    errors: dict[str, float] = {}
    for event in events:
        if config.teacher.quantization is not None and event.kind == "measure":
            errors |= event.facts.get("packing_errors", {})
    return errors


def _read_optional(read: Callable[[Path], Content], path: Path) -> Content | None:
    """What a file holds, or None where there is none."""
    return read(path) if path.is_file() else None


def _read_training_recipe(run_folder: RunFolder) -> TrainingRecipe | None:
    """The recipe of the trained student; None without one."""
    trained = run_folder.student("trained")
    if not (trained / METADATA).is_file():
        return None
    return TrainingRecipe.from_json(read_metadata(trained)["recipe"])


def _hashes(recipe: TrainingRecipe, config: Config) -> list[str]:
    """See `Findings.trained_recipes`."""
    return [each.hash for each in (recipe, *recipe.first_parts(config.training))]


def _read_manifests(config: Config, run_folder: RunFolder) -> dict[str, JsonObject]:
    """The manifests that there are, by what they list."""
    source = config.targets_run(run_folder)
    shards = {
        "targets": [source.targets],
        "embeddings, train": [source.embeddings("train")],
        "embeddings, eval": [run_folder.embeddings("eval")],
    }
    num_shards = config.targets.num_shards
    for number in map(str, config.training.round_numbers):
        parts = (f"{part}-of-{num_shards}" for part in range(num_shards))
        # Nothing merges the states, which round_targets reads by shards.
        shards[f"round {number}, states"] = [run_folder.states_shard(number, it) for it in parts]
        shards[f"round {number}, targets"] = [run_folder.visited(number)]
    return {
        name: _joined([read_sealed(path) for path in paths])
        for name, paths in shards.items()
        if all(path.is_file() for path in paths)
    }


def _joined(shards: Sequence[JsonObject]) -> JsonObject:
    """The manifest of all shards."""
    chunks = [chunk for shard in shards for chunk in shard["chunks"]]
    return {**shards[0], "num_samples": sum(it["num_samples"] for it in shards), "chunks": chunks}


def _read_all_samples(config: Config, run_folder: RunFolder) -> dict[str, ModelSamples]:
    """The samples that there are, in the report's order."""
    paths = {name: run_folder.samples(name) for name in config.samples.models}
    samples_by_name = {
        name: read_samples(name, path) for name, path in paths.items() if path.is_file()
    }
    samples = {
        name: samples_by_name[name]
        for name in order_models(samples_by_name, config.evaluation.reference)
    }
    for model in samples.values():
        check_pairs(next(iter(samples.values())), model)
    return samples


def loading_code(run_folder: RunFolder, samples: ModelSamples | None) -> str | None:
    """A script for the student's pipeline, as in its model card; None if it was not exported.

    Args:
        samples: the student's samples; the first one's prompt and seed are used.
    """
    folder = run_folder.student("pipeline")
    if not (folder / METADATA).is_file():
        return None
    call = read_metadata(folder)["call"]
    if samples is None:
        return student_code(call, folder.as_posix(), "a photo of a lighthouse at dusk")
    first = samples.table.iloc[0]
    return student_code(
        call,
        folder.as_posix(),
        str(first["prompt"]),
        int(first["noise_seed"]),
        f"noise of {first['prompt_id']}/{first['index']}",
        str(first[IMAGE]) if "takes_image" in call else "",
    )
