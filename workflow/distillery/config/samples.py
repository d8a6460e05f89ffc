"""What is generated, from which models, and how it is scored."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from distillery.config.section import (
    BatchSize,
    Count,
    Guidance,
    Interval,
    Name,
    OnlyIfSet,
    Section,
    Shards,
    Small,
)
from distillery.config.student import Student
from distillery.files import JsonObject
from distillery.notes import Note, error
from distillery.words import listed_numbers

MAX_CLIP_RATIO = 2.0
Source = Literal["teacher", "student", "untrained"]
SampleStoreName = Literal["files", "shards"]
IMAGES_PER_SHARD = 20_000


class SampledModel(Section):
    """One column of the comparison: who generates, with how many steps."""

    source: Source = Field(
        description="which pipeline to sample; untrained: the student before training, with the "
        "student's scheduler"
    )
    steps: Small | None = Field(
        None,
        description="denoising steps; null: targets.steps for the teacher, student.steps for the "
        "others, which take no other number, but for a student of init: flow_map numbers that "
        "divide it. Required without training",
    )
    guidance_scale: Guidance | None = Field(
        None,
        description="null: targets.guidance_scale for the teacher, 1.0 for the others. Required "
        "without training",
    )
    guidance_scale_2: Guidance | None = Field(
        None,
        description="guidance of the teacher's second network; null: as guidance_scale, or "
        "targets.guidance_scale_2 if that is null too",
    )
    guidance_interval: Annotated[Interval | None, OnlyIfSet] = Field(
        None,
        description="shares of the teacher's steps that are guided, as targets.guidance_interval; "
        "null: all, or those of targets if guidance_scale is null too. `[0.0, 1.0]` is all",
    )
    grid: Literal["even"] | None = Field(
        None,
        description="of the teacher: even takes equal steps from pure noise, which few steps need "
        "where the stock call's last step is next to none. Flows start from sigmas linspace(1, "
        "1/n, n), shifted as the scheduler shifts; others from timestep_spacing: trailing. null: "
        "as the stock call",
    )

    def faults(self) -> Iterator[Note]:
        """A student on another grid than it has learned."""
        if self.grid is not None and self.source != "teacher":
            yield error(
                f"grid is {self.grid!r}",
                f" with source: {self.source}: a student walks the levels that it has learned",
                "remove grid, or set source: teacher",
            )


class Samples(Section):
    """What is generated from the prompts of prompts.eval."""

    def num_images(self, num_prompts: int) -> int:
        """Of each model, from so many held-out prompts."""
        return min(self.num_prompts or num_prompts, num_prompts) * self.images_per_prompt

    models: dict[Name, SampledModel] = Field(
        min_length=1, description="the models to compare, by names of your choice"
    )
    steps: tuple[Small, ...] = Field(
        (),
        description="the teacher is sampled with each of these numbers of steps as well, guided as "
        "in targets and without guidance, as models teacher-N-steps and teacher-N-steps-unguided: "
        "the report shows quality against cost. A model of such a name in models stays as it is. "
        "Not without training",
    )
    student_steps: Annotated[tuple[Small, ...], OnlyIfSet] = Field(
        (),
        description="a student of init: flow_map is sampled with each of these numbers of steps as "
        "well, as models student-N-steps; each must divide student.steps. A model of such a name "
        "in models stays as it is",
    )
    num_prompts: Count | None = Field(
        None, description="sample only the first so many held-out prompts; null: all"
    )
    images_per_prompt: Count = Field(1, description="images per prompt, each from its own noise")
    batch_size: BatchSize = Field(
        8, description="images per call of the pipeline; auto: as for targets"
    )
    num_shards: Shards = Field(4, description="independent jobs per model")
    store: Annotated[SampleStoreName, OnlyIfSet] = Field(
        "files",
        description="files: each image and its latents are files of their own; shards: a model's "
        "samples lie in tar files that `webdataset` and `datasets` read, for hundreds of thousands "
        "of images, of which file systems hold few well. The images are the same, and nothing is "
        "drawn again where files become shards",
    )
    images_per_shard: Annotated[Count, OnlyIfSet] = Field(
        IMAGES_PER_SHARD,
        description="images of each tar file of `store: shards`, rounded up to whole batches. A "
        "job makes whole tar files, so there should be several for each of `num_shards`",
    )

    @field_validator("steps", "student_steps")
    @classmethod
    def _check_steps(cls, steps: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        """Raise ValueError for a number that is there twice."""
        twice = sorted({number for number in steps if steps.count(number) > 1})
        if twice:
            key = f"samples.{info.field_name}"
            raise ValueError(f"{key} has {twice[0]} more than once: once is enough")
        return steps

    @field_validator("models")
    @classmethod
    def _check_names(cls, models: dict[str, SampledModel]) -> dict[str, SampledModel]:
        """Raise ValueError for names that would share a folder on some disks."""
        first: dict[str, str] = {}
        for name in models:
            other = first.setdefault(name.lower(), name)
            if other != name:
                raise ValueError(
                    f"samples.models has {other} and {name}, which differ in case alone and name "
                    "folders: rename one"
                )
        return models


class Dataset(Section):
    """The tables that make a data set of the images: results/{run}/dataset."""

    pairs: Literal["none", "all", "neighbours"] = Field(
        "none",
        description="which pairs of images of a prompt pairs.csv lists, in the order of "
        "samples.models and of the seeds. all: every pair; neighbours: each image with the next "
        "one",
    )


class Evaluation(Section):
    """How samples are scored."""

    judge: str = Field(description="a CLIP model in Transformers format: a folder or a hub id")
    reference: Name = Field(
        "teacher",
        description="the model in `samples` that the others are compared with; not a student",
    )
    vision_models: dict[Name, str] = Field(
        {},
        description="vision models in whose features sets of images are compared (Fréchet "
        "distance, MMD, density, coverage, diversity), by names of your choice: folders or hub "
        "ids of CLIP, SigLIP, DINOv2 or others in Transformers format; {}: the judge's own image "
        "features",
    )
    preference_model: Annotated[str | None, OnlyIfSet] = Field(
        None,
        description="a CLIP model that has learned which of two images people choose, such as "
        "PickScore: a folder or a hub id. The report has its score of each image, and its "
        "probability that the image is chosen over the reference's; null: none",
    )
    min_clip_ratio: Annotated[float, Field(gt=0)] = Field(
        0.97,
        json_schema_extra={"maximum": MAX_CLIP_RATIO},
        description="the student passes if the whole interval of its CLIP score lies above this "
        "fraction of the reference's. Choose what you would accept; fewer steps keep less",
    )
    num_resamples: Annotated[int, Field(ge=100, le=100_000)] = Field(
        2000, description="bootstrap resamples per interval"
    )

    @field_validator("min_clip_ratio")
    @classmethod
    def _check_ratio(cls, ratio: float) -> float:
        """Raise ValueError for what must be meant in percent."""
        if ratio > MAX_CLIP_RATIO:
            raise ValueError(
                f"evaluation.min_clip_ratio is {ratio:g}: it is a ratio, at most "
                f"{MAX_CLIP_RATIO:g}; write 0.95 for 95 %"
            )
        return ratio


def add_models(raw: JsonObject) -> JsonObject:
    """A configuration as loaded, with the models that samples.steps and samples.student_steps ask
    for.

    What has another shape than a configuration stays: its sections say what is wrong with it.
    """
    samples, targets = raw.get("samples"), raw.get("targets")
    if not isinstance(samples, dict) or not isinstance(targets, dict):
        return raw
    models = samples.get("models")
    if not isinstance(models, dict):
        return raw
    is_guided = targets.get("guidance_scale") != 1.0
    more: dict[str, Any] = {}
    for number in _numbers(samples.get("steps")):
        if number != targets.get("steps"):
            more[f"teacher-{number}-steps"] = {"source": "teacher", "steps": number}
        if is_guided:
            unguided = {"source": "teacher", "steps": number, "guidance_scale": 1.0}
            more[f"teacher-{number}-steps-unguided"] = unguided
    student = raw.get("student")
    trained = student.get("steps") if isinstance(student, dict) else None
    for number in _numbers(samples.get("student_steps")):
        if number != trained:
            more[f"student-{number}-steps"] = {"source": "student", "steps": number}
    added = {name: model for name, model in more.items() if name not in models}
    return {**raw, "samples": {**samples, "models": {**models, **added}}}


def _numbers(steps: object) -> list[int]:
    """Those of a list that are numbers of steps; the section itself says what is wrong with the
    others."""
    found = steps if isinstance(steps, list | tuple) else ()
    return [number for number in found if isinstance(number, int) and number >= 1]


def on_reference(evaluation: Evaluation, samples: Samples) -> Iterator[Note]:
    """A reference that is no model of the samples, or is the student."""
    name = evaluation.reference
    where = f"evaluation.reference is {name!r}"
    if name not in samples.models:
        yield error(where, "", f"it must be one of samples.models ({', '.join(samples.models)})")
    elif samples.models[name].source == "student":
        others = [other for other, model in samples.models.items() if model.source != "student"]
        yield error(
            where,
            ", a model of source: student: the student is what is judged, and cannot be its own "
            "measure",
            f"name {' or '.join(others)}" if others else "add a model of source: teacher",
        )


def on_students_steps(samples: Samples, student: Student) -> Iterator[Note]:
    """A student that is sampled at other steps than it has learned.

    A scheduler that is made for one number walks, with another, levels that the student has not
    learned, begins below pure noise, or ends in NaN.
    """
    steps, known = student.steps, student.numbers_of_steps
    if samples.student_steps and not student.is_flow_map:
        yield error(
            f"samples.student_steps is {list(samples.student_steps)}",
            f" and student.init is {student.init!r}: such a student takes student.steps steps and "
            "no other number",
            "write student.init: flow_map, or leave student_steps out",
        )
        return
    for name, model in samples.models.items():
        if model.source == "teacher" or model.steps in (None, *known):
            continue
        if student.is_flow_map:
            is_added = name == f"student-{model.steps}-steps"
            yield error(
                f"samples.student_steps has {model.steps}"
                if is_added and model.steps in samples.student_steps
                else f"samples.models.{name}.steps is {model.steps}",
                f", student.steps is {steps}: the student learns {listed_numbers(known)} steps",
                "use one of these, or more student.steps",
            )
        else:
            yield error(
                f"samples.models.{name}.steps is {model.steps}",
                f", student.steps is {steps}: the student and its scheduler are made for {steps} "
                "steps and no other number",
                f"remove samples.models.{name}.steps, or train a student of {model.steps} steps in "
                "another run",
            )
