"""What each stage depends on: its frozen part of the configuration.

`freeze` cuts out what one stage depends on; the workflow writes that to
results/{run}/config/{stage}.json, and a stage reads it back with `read_job`. So a change of a
section reruns exactly what depends on it, and a queued job cannot pick up a later edit. Settings
that change no result are in none of these files but in runtime.json, which no rule declares:
`plan_first` writes it before the first job.
"""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from distillery.config.earlier import has_earlier_keys, in_todays_words
from distillery.config.parsing import Model, parse
from distillery.config.previews import Previews
from distillery.config.run import (
    Config,
    Embeddings,
    GeneratingConfig,
    Prompts,
    RunConfig,
    Targets,
    parse_config,
)
from distillery.config.samples import Dataset, Evaluation
from distillery.config.sampling import Sampling, resolve_sampling
from distillery.config.section import (
    Name,
    OnlyIfSet,
    Section,
    Split,
    without_result,
)
from distillery.config.student import Student
from distillery.config.teacher import FPS, Teacher
from distillery.config.training import Training
from distillery.files import (
    JsonObject,
    hash_json,
    read_json,
    read_sealed,
    repair_hint,
    write_sealed,
)
from distillery.run_folder import RunFolder

NOT_OF_WEIGHTS = {
    "offload": "none",
    "num_gpus": 1,
    "attention": None,
    "quantization": None,
    "call": None,
}
"""Defaults of how a teacher's network runs: changing these must not retrain a student."""


OF_PIXELS = {"vae_dtype": "float32", "vae_tiling": False, "fps": FPS}
"""Defaults of how latents become images."""


OF_THE_RUN = {"targets": {"from_run": None}, "student": {"from_run": None}}
"""Defaults of settings that say where a run reads from, which changes no stage's results."""


class Job(Section):
    """One frozen configuration: sections of the whole one, each under its own name.

    Raise a job's `version` when its stage's code would give other bytes for the same configuration:
    that makes it run again. A comment must never recompute a week of work, so scripts are not
    watched.
    """

    unread: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """By section, defaults of settings that it has and that its stage ignores."""

    @classmethod
    def ignored(cls, config: RunConfig) -> Mapping[str, Mapping[str, Any]]:
        """`unread` in a run of this configuration."""
        return cls.unread

    @classmethod
    def sections(cls) -> list[str]:
        """The parts of a configuration that it takes."""
        return [name for name in cls.model_fields if not name.endswith("version")]

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Cut out of a configuration that has all its sections."""
        parts = {name: getattr(config, name) for name in cls.sections()}
        of_the_run = {name: it for name, it in OF_THE_RUN.items() if name in parts}
        for name, settings in (*of_the_run.items(), *cls.ignored(config).items()):
            parts[name] = parts[name].model_copy(update=settings)
        return cls(**parts)


class PromptsJob(Job):
    """Frozen configuration of the prompt tables."""

    prompts: Prompts


class SignatureJob(Job):
    """Frozen configuration of the trace of a pipeline without an adapter."""

    version: int = 1
    teacher: Teacher
    steps: int
    guidance_scale: float

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """For the trajectories; where none are made, for the model that takes most steps."""
        if isinstance(config, Config):
            targets = config.targets
            return cls(
                teacher=config.teacher, steps=targets.steps, guidance_scale=targets.guidance_scale
            )
        models = [resolve_sampling(config, name) for name in config.samples.models]
        scales = [model.guidance_scale or 1.0 for model in models]
        steps = max(model.steps for model in models)
        return cls(teacher=config.teacher, steps=steps, guidance_scale=max(scales))

    @classmethod
    def sections(cls) -> list[str]:
        """The teacher alone, in every run."""
        return ["teacher"]


class EmbeddingsJob(Job):
    """Frozen configuration of the text embeddings."""

    version: int = 2
    teacher: Teacher
    embeddings: Embeddings


class TargetsJob(Job):
    """Frozen configuration of target generation and of the merge."""

    version: int = 3
    seed: int
    teacher: Teacher
    targets: Targets


class RoundsJob(TargetsJob):
    """Frozen configuration of all rounds: of the student's states and the teacher's answers.

    How many there are is not in it, so that one more leaves those before it as they are.
    """

    rounds_version: int = 1
    student: Student

    @property
    def targets_job(self) -> TargetsJob:
        """Of the trajectories that the rounds belong to."""
        return TargetsJob(
            version=self.version, seed=self.seed, teacher=self.teacher, targets=self.targets
        )


class StudentJob(Job):
    """Frozen configuration of the student before training."""

    unread: ClassVar = {"teacher": NOT_OF_WEIGHTS | OF_PIXELS}
    version: int = 1
    seed: int
    teacher: Teacher
    student: Student


class TrainingJob(StudentJob):
    """Frozen configuration of the student's training.

    `targets` is there where no stage stores any: see `Training.reads_trajectories`.
    """

    version: int = 3
    training: Training
    targets: Annotated[Targets | None, OnlyIfSet] = None

    @classmethod
    def ignored(cls, config: RunConfig) -> Mapping[str, Mapping[str, Any]]:
        """With online targets it runs the teacher, and so reads how."""
        return {} if isinstance(config, Config) and config.training.asks else cls.unread

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Without `targets` where a stage stores them: their manifest tells them."""
        job = super().of(config)
        return job.model_copy(update={"targets": None} if job.training.reads_trajectories else {})


class PreviewsJob(Job):
    """Frozen configuration of the previews."""

    unread: ClassVar = {"teacher": NOT_OF_WEIGHTS}
    seed: int
    teacher: Teacher
    student: Student
    previews: Previews


class ExportJob(Job):
    """Frozen configuration of the export."""

    unread: ClassVar = {"teacher": NOT_OF_WEIGHTS}
    teacher: Teacher
    targets: Targets
    student: Student


class SamplesJob(Job):
    """Frozen configuration of one model's samples."""

    version: int = 4
    seed: int
    teacher: Teacher
    sampling: Sampling


class DatasetJob(Job):
    """Frozen configuration of the data set's tables."""

    dataset: Dataset
    models: tuple[Name, ...]


class EvaluationJob(Job):
    """Frozen configuration of the scores."""

    # Only the report reads it: changing it must not score again.
    unread: ClassVar = {
        "evaluation": {"min_clip_ratio": Evaluation.model_fields["min_clip_ratio"].default}
    }
    version: int = 3
    evaluation: Evaluation
    models: tuple[Name, ...]


JOBS: dict[str, type[Job]] = {
    "prompts": PromptsJob,
    "embeddings": EmbeddingsJob,
    "targets": TargetsJob,
    "student": StudentJob,
    "training": TrainingJob,
    "rounds": RoundsJob,
    "previews": PreviewsJob,
    "export": ExportJob,
    "dataset": DatasetJob,
    "evaluation": EvaluationJob,
}
"""Frozen configurations by name; samples have one for each model. Plan and report take `run`, the
whole configuration; see `read_config`."""


SIGNATURE = "signature"
"""The stage that a run has where its teacher is traced."""
PROMPTS_STAGES: dict[str, Split] = {"prompts-train": "train", "prompts-eval": "eval"}
"""Each split's prompts have a frozen configuration of their own, so that other held-out prompts
start no job of the training. `prompts` is that of both, of earlier releases."""
EARLIER_TRAINING = re.compile(r"training-(\d+)-rounds")
RUNTIME = "runtime"
RUNTIME_SECTIONS = ("teacher", "training")
"""Sections with settings that change no result; see `section.NoResult`."""


def freeze(config: RunConfig, stage: str) -> dict[str, Any]:
    """What `stage` depends on, as a JSON object.

    `stage` is a key of `JOBS` or `PROMPTS_STAGES`, `samples-{model}` for a key of
    `config.samples.models`, `training-{n}-rounds` for the training that ends after so many, `run`
    for all of it, or `runtime` for what no result depends on.
    """
    earlier = EARLIER_TRAINING.fullmatch(stage)
    if earlier and isinstance(config, Config):
        training = config.training.up_to_round(int(earlier[1]))
        return freeze(config.model_copy(update={"training": training}), "training")
    if stage == "runtime":
        return config.model_dump(mode="json", include=_runtime(config))
    if stage == "run":
        return config.model_dump(mode="json")
    job = _job(config, stage)
    return as_frozen(job, job.ignored(config))


def as_frozen(job: Job, ignored: Collection[str] = ()) -> dict[str, Any]:
    """A job without the settings that change no result, but for sections that ignore some."""
    left_out = {name: keys for name, keys in _runtime(job).items() if name not in ignored}
    return job.model_dump(mode="json", exclude=left_out)


def frozen_stages(config: RunConfig, run: RunFolder) -> set[str]:
    """The stages whose frozen configurations a run has, those before its rounds left out."""
    stages = {*JOBS, *(f"samples-{model}" for model in config.samples.models)} - {"prompts"}
    stages |= {SIGNATURE} if config.teacher.trace else set()
    return stages | {prompts_stage(config, run, split) for split in PROMPTS_STAGES.values()}


def prompts_stage(config: RunConfig, run: RunFolder, split: str) -> str:
    """The stage whose frozen configuration a split's prompts are made by.

    In a run of an earlier release it stays that of both splits, while that says the same of this
    one: another input would make Snakemake run all of it again.
    """
    own = f"prompts-{split}"
    try:
        if not run.config(own).is_file():
            before = parse(PromptsJob, read_frozen(run.config("prompts")), "prompts").prompts
            if before.of_split(split) == config.prompts.of_split(split):
                return "prompts"
    except (OSError, ValueError):  # none, or a damaged one
        pass
    return own


def hash_origin(frozen: JsonObject) -> str:
    """Of the settings that a student before its training is made with, by the frozen configuration
    of its stage; without paths, since its bytes are the same wherever things lie."""
    ignored = {*StudentJob.unread["teacher"], *without_result(Teacher), "path", "weights"}
    teacher = {name: value for name, value in frozen["teacher"].items() if name not in ignored}
    paths = ("config", "start_from")
    student = {name: value for name, value in frozen["student"].items() if name not in paths}
    return hash_json({"seed": frozen["seed"], "teacher": teacher, "student": student})


def _runtime(sections: Section) -> dict[str, set[str]]:
    """By section, the settings that change no result."""
    present = [name for name in RUNTIME_SECTIONS if name in type(sections).model_fields]
    return {name: set(without_result(type(getattr(sections, name)))) for name in present}


def _job(config: RunConfig, stage: str) -> Job:
    model = stage.removeprefix("samples-")
    if model != stage and model in config.samples.models:
        sampling = resolve_sampling(config, model)
        return SamplesJob(seed=config.seed, teacher=config.teacher, sampling=sampling)
    if stage in PROMPTS_STAGES:
        return PromptsJob(prompts=config.prompts.of_split(PROMPTS_STAGES[stage]))
    job = SignatureJob if stage == SIGNATURE and config.teacher.trace else JOBS.get(stage)
    if job is None or not all(hasattr(config, name) for name in job.sections()):
        known = ", ".join([*JOBS, *PROMPTS_STAGES, "run", "runtime"])
        raise ValueError(f"no stage {stage!r}: use one of {known} or samples-MODEL")
    return job.of(config)


def save_frozen(path: Path, content: JsonObject) -> None:
    """Write what `freeze` gives, sealed. The order of samples.models is that of the report and of
    a data set's pairs, so keys stay in their order."""
    write_sealed(path, content, sort_keys=False)


def read_frozen(path: Path) -> dict[str, Any]:
    """The inverse; earlier releases wrote no seal, and a training's phases as other keys. Raises
    ValueError for a damaged file."""
    return in_todays_words(read_sealed(path, may_be_open=True))


def frozen_text(config: RunConfig, run: RunFolder, stage: str) -> str:
    """What `freeze` gives, as JSON.

    In a run of an earlier release it stays in the words of that, while these say the same: in other
    words Snakemake would train again.
    """
    content = freeze(config, stage)
    try:
        written = read_sealed(run.config(stage), may_be_open=True)
    except (OSError, ValueError):  # none, or a damaged one
        written = {}
    is_same = has_earlier_keys(written) and in_todays_words(written) == content
    return json.dumps(written if is_same else content)


def read_job(path: Path, job: type[Model]) -> Model:
    """Read a stage's frozen configuration from results/{run}/config/{stage}.json.

    Settings that it leaves out are in runtime.json beside it; without that file, defaults hold.
    """
    runtime = path.with_name(f"{RUNTIME}.json")
    frozen = read_frozen(path)
    raw = complete(frozen, read_json(runtime, runtime) if runtime.is_file() else {})
    try:
        read = parse(job, raw, str(path))
    except ValueError as error:
        raise ValueError(
            f"{error}\n  the workflow wrote it, so it is damaged or of another release: "
            f"{repair_hint(path)}"
        ) from error
    _learn(read, RunFolder.of_config(path))
    return read


def _learn(read: object, run: RunFolder) -> None:
    """Give a traced teacher what was learnt of it."""
    teacher = getattr(read, "teacher", None)
    if isinstance(teacher, Teacher):
        teacher.learn_from(run.signature)


def complete(frozen: JsonObject, runtime: JsonObject) -> dict[str, Any]:
    """A stage's frozen configuration with the settings that it leaves out."""
    return {
        section: runtime[section] | values if section in runtime else values
        for section, values in frozen.items()
    }


def read_config(path: Path) -> Config | GeneratingConfig:
    """Read a run's whole configuration from results/{run}/config/run.json."""
    return parse_config(read_frozen(path), str(path))
