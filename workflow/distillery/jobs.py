"""What each stage depends on: its frozen part of the configuration.

`freeze` cuts out what one stage depends on; the workflow writes that to
results/{run}/config/{stage}.json, and a stage reads it back with `read_job`. So a change of a
section reruns exactly what depends on it, and a queued job cannot pick up a later edit.
"""

from pathlib import Path
from typing import Any, Literal

from distillery.config import (
    Config,
    Count,
    Embeddings,
    Evaluation,
    Model,
    Name,
    Prompts,
    Section,
    Student,
    Targets,
    Teacher,
    Training,
    parse,
)
from distillery.files import read_json

RECIPE_VERSIONS = {"embeddings": 2, "targets": 2, "training": 2, "samples": 2}
"""Raise a stage's number when its code would give other bytes for the same configuration: that
makes it run again. A comment must never recompute a week of work, so scripts are not watched."""


class PromptsJob(Section):
    """Frozen configuration of the prompt tables."""

    prompts: Prompts


class EmbeddingsJob(Section):
    """Frozen configuration of the text embeddings."""

    version: int = RECIPE_VERSIONS["embeddings"]
    teacher: Teacher
    embeddings: Embeddings


class TargetsJob(Section):
    """Frozen configuration of target generation and of the merge."""

    version: int = RECIPE_VERSIONS["targets"]
    seed: int
    teacher: Teacher
    targets: Targets


class TrainingJob(Section):
    """Frozen configuration of the student's training."""

    version: int = RECIPE_VERSIONS["training"]
    seed: int
    teacher: Teacher
    student: Student
    training: Training


class ExportJob(Section):
    """Frozen configuration of the export."""

    teacher: Teacher
    targets: Targets
    student: Student


class Sampling(Section):
    """One model's sampling with every default resolved.

    `guidance_scale` is None for a student as it was trained: without guidance, or, where the
    network takes the scale as an input, told `trained_guidance_scale`, that of its targets.
    """

    source: Literal["teacher", "student"]
    steps: Count
    guidance_scale: float | None
    trained_guidance_scale: float | None
    num_prompts: Count | None
    images_per_prompt: Count
    batch_size: Count


class SamplesJob(Section):
    """Frozen configuration of one model's samples."""

    version: int = RECIPE_VERSIONS["samples"]
    seed: int
    teacher: Teacher
    sampling: Sampling


class EvaluationJob(Section):
    """Frozen configuration of the scores."""

    evaluation: Evaluation
    models: tuple[Name, ...]


JOBS: dict[str, type[Section]] = {
    "prompts": PromptsJob,
    "embeddings": EmbeddingsJob,
    "targets": TargetsJob,
    "training": TrainingJob,
    "export": ExportJob,
    "evaluation": EvaluationJob,
    "report": Config,
}
"""Stage name to the model of its frozen configuration; samples have one for each model."""


def freeze(config: Config, stage: str) -> dict[str, Any]:
    """What `stage` depends on, as a JSON object.

    `stage` is a key of `JOBS`, or `samples-{model}` for a key of `config.samples.models`.
    """
    if stage.removeprefix("samples-") in config.samples.models and stage.startswith("samples-"):
        job: Section = SamplesJob(
            seed=config.seed,
            teacher=config.teacher,
            sampling=resolve_sampling(config, stage.removeprefix("samples-")),
        )
    elif stage == "evaluation":
        job = EvaluationJob(evaluation=config.evaluation, models=tuple(config.samples.models))
    elif stage == "report":
        job = config
    elif stage in JOBS:
        fields = set(JOBS[stage].model_fields) & set(Config.model_fields)
        job = JOBS[stage](**{name: getattr(config, name) for name in fields})
    else:
        raise ValueError(f"no stage {stage!r}: use one of {', '.join(JOBS)} or samples-MODEL")
    return job.model_dump(mode="json")


def resolve_sampling(config: Config, model: str) -> Sampling:
    """Fill the steps and the guidance that a sampled model leaves open."""
    chosen = config.samples.models[model]
    of_teacher = chosen.source == "teacher"
    steps = config.targets.steps if of_teacher else config.student.steps
    guidance_scale = config.targets.guidance_scale if of_teacher else None
    return Sampling(
        source=chosen.source,
        steps=chosen.steps or steps,
        guidance_scale=chosen.guidance_scale or guidance_scale,
        trained_guidance_scale=None if of_teacher else config.targets.guidance_scale,
        num_prompts=config.samples.num_prompts,
        images_per_prompt=config.samples.images_per_prompt,
        batch_size=config.samples.batch_size,
    )


def read_job(path: Path, job: type[Model]) -> Model:
    """Read a stage's frozen configuration from results/{run}/config/{stage}.json."""
    return parse(job, read_json(path), str(path))
