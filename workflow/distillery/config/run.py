"""The typed configuration: one frozen model per section, unknown keys refused, defaults here only.

`Config` is what a user writes to distil a student, `GeneratingConfig` to generate images and
nothing else; `jobs` says which part of it each stage depends on.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from distillery.config.hardware import Hardware
from distillery.config.parsing import parse
from distillery.config.previews import Previews
from distillery.config.samples import (
    Dataset,
    Evaluation,
    Samples,
    add_models,
    on_reference,
    on_students_steps,
)
from distillery.config.section import (
    BatchSize,
    Count,
    Dtype,
    Guidance,
    Interval,
    Name,
    OnlyIfSet,
    Section,
    Seed,
    Shards,
    Small,
    on_multiple,
    steps_within,
)
from distillery.config.student import Student
from distillery.config.teacher import Teacher
from distillery.config.training import Training, on_flow_map, on_num_weights
from distillery.config.ways import Rounds
from distillery.files import SEAL, JsonObject
from distillery.notes import Note, error
from distillery.run_folder import RunFolder


def _check_path(path: str, info: ValidationInfo) -> str:
    """Raise ValueError for the path of a file that Snakemake could not take as an input."""
    key = f"prompts.{info.field_name}"
    if not path.strip():
        raise ValueError(f"{key} is {path!r}: name a file")
    if "{" in path or "}" in path:
        raise ValueError(
            f"{key} is {path!r}: Snakemake reads {{...}} as a wildcard; rename the file or its "
            "folder without braces"
        )
    return path


PromptFile = Annotated[str, AfterValidator(_check_path)]


class Prompts(Section):
    """Which prompt files are read (CSV, JSONL or Parquet with a column `prompt`, or TXT)."""

    train: PromptFile | None = Field(
        None,
        description="the prompts that the student learns from; required for training",
    )
    eval: PromptFile | None = Field(
        None,
        description="the held-out prompts that samples are generated for; required unless "
        "eval_fraction is given",
    )
    eval_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(
        None,
        description="instead of eval: hold out about this fraction of the train prompts. A hash "
        "of the text decides, so no text is in both splits",
    )
    notes: tuple[str, ...] = Field(
        (),
        description="columns to keep beside the images although they change nothing, such as "
        "seed or aspect_ratio; their names are refused otherwise",
    )

    def faults(self) -> Iterator[Note]:
        """Held-out prompts from nowhere or from two places, and notes that are no notes."""
        if self.eval is None and self.eval_fraction is None:
            yield error(
                "prompts.eval",
                " is missing",
                "add it, or prompts.eval_fraction: 0.05 to hold out a share of prompts.train",
            )
        elif self.eval is not None and self.eval_fraction is not None:
            yield error(
                f"prompts.eval is {self.eval!r}",
                f" and prompts.eval_fraction {self.eval_fraction}: held-out prompts come from a "
                "file or from prompts.train",
                "remove one of the keys",
            )
        elif self.eval is None and self.train is None:
            yield error(
                "prompts.eval_fraction",
                " holds out a share of prompts.train, which is missing",
                "add it, or name a file as prompts.eval",
            )
        taken = {"prompt_id", "prompt", "negative_prompt"} & set(self.notes)
        if taken:
            yield error(
                f"prompts.notes has {', '.join(sorted(taken))}",
                ", which is read",
                "rename the column in the file to keep it as a note",
            )

    def file(self, split: str) -> str | None:
        """The file that a split's prompts are in; None where the run has no such split."""
        return self.train if split == "train" or self.eval is None else self.eval

    def of_split(self, split: str) -> "Prompts":
        """What a split's table depends on. Held-out prompts of a file of their own are not of the
        split train, which names its own file twice: a section names a file for both."""
        if self.eval is None:
            return self
        train = self.train if split == "train" else None
        return self.model_copy(update={"train": train, "eval": self.file(split)})

    @property
    def files(self) -> list[str]:
        """All files that are read."""
        return [path for path in (self.train, self.eval) if path is not None]


class Embeddings(Section):
    """How prompts are encoded."""

    batch_size: Small = Field(32, description="prompts per call of the text encoder")
    chunk_size: Small = Field(1024, description="prompts per file; a crash loses at most one file")


class Targets(Section):
    """The teacher's trajectories that are stored."""

    steps: Small = Field(description="denoising steps of the teacher")
    guidance_scale: Guidance = Field(
        description="the teacher's classifier-free guidance, which becomes part of the targets; "
        "1.0 is off"
    )
    guidance_scale_2: Guidance | None = Field(
        None,
        description="guidance of a teacher's second network (transformer_2 of Wan2.2-A14B); "
        "null: the same",
    )
    guidance_interval: Annotated[Interval | None, OnlyIfSet] = Field(
        None,
        description="guide only the steps whose middle is within these shares of all steps, from "
        "the noise, 0, to the image, 1, and take the others with a scale of 1.0. `[0.1, 1.0]` "
        "leaves the first tenth unguided: more variety; `[0.0, 0.8]` the last fifth: fewer network "
        "calls. null: all steps are guided",
    )
    num_segments: Small = Field(
        4,
        description="segments of equal numbers of steps per trajectory; the num_segments + 1 "
        "states at their ends are stored",
    )
    samples_per_prompt: Count = Field(1, description="trajectories per prompt")
    batch_size: BatchSize = Field(
        8,
        description="trajectories per call of the pipeline; auto: the largest batch that fits "
        "the GPU and is faster. The last bits of a result then depend on the GPU",
    )
    chunk_size: Small = Field(
        64, description="trajectories per file; a crash loses at most one file per job"
    )
    num_shards: Shards = Field(8, description="number of independent jobs; at least one per GPU")
    dtype: Dtype = Field(
        "float32", description="number type of the stored states; they are always solved in float32"
    )
    from_run: Annotated[str | None, OnlyIfSet] = Field(
        None,
        description="the folder of another run, `results/{run}`, whose trajectories and their "
        "embeddings are read where they are, so that several students learn from one store. Its "
        "teacher, prompts.train and targets must be these. null: this run makes its own",
    )

    def faults(self) -> Iterator[Note]:
        """Numbers that do not divide each other, and an interval that changes nothing."""
        yield from self._on_interval()
        yield from on_multiple(
            "targets.steps", self.steps, "targets.num_segments", self.num_segments
        )
        if self.batch_size != "auto":
            yield from on_multiple(
                "targets.chunk_size", self.chunk_size, "targets.batch_size", self.batch_size
            )

    def _on_interval(self) -> Iterator[Note]:
        if self.guidance_interval is None:
            return
        where = f"targets.guidance_interval is {list(self.guidance_interval)}"
        guided = steps_within(self.guidance_interval, self.steps)
        if self.guidance_scale == 1.0:
            cause = ", and with targets.guidance_scale: 1.0 no step is guided"
            yield error(where, cause, "raise the scale, or remove the interval")
        elif not guided:
            cause = f", which has the middle of none of the {self.steps} steps of targets"
            yield error(where, cause, "make it wider, or set targets.guidance_scale: 1.0")
        elif len(guided) == self.steps:
            cause = f", which has the middles of all {self.steps} steps of targets"
            yield error(where, cause, "make it narrower, or remove it")


COMPARISONS = "compare"
"""The folder of results/ that comparisons of runs go to."""


def _not_of_comparisons(name: str) -> str:
    """Raise ValueError for the name of the folder that comparisons of runs go to."""
    if name.lower() == COMPARISONS:
        raise ValueError(
            f"run is {name!r}, and results/{COMPARISONS} is for comparisons of runs: choose "
            "another name"
        )
    return name


class RunConfig(Section):
    """What every run has."""

    run: Annotated[Name, AfterValidator(_not_of_comparisons)] = Field(
        description="results go to results/{run}"
    )
    seed: Seed = Field(0, description="seeds all noise and the order of the training data")
    prompts: Prompts
    teacher: Teacher
    embeddings: Embeddings = Embeddings()
    samples: Samples
    dataset: Dataset = Dataset()
    hardware: Hardware = Hardware()

    @property
    def models(self) -> tuple[str, ...]:
        """Names of those that are sampled."""
        return tuple(self.samples.models)

    def faults(self) -> Iterator[Note]:
        """Pairs of single images, and guidance of a student as only a teacher has it."""
        images = self.samples.images_per_prompt * len(self.samples.models)
        if self.dataset.pairs != "none" and images == 1:
            yield error(
                f"dataset.pairs is {self.dataset.pairs!r}",
                " and each prompt gets a single image",
                "raise samples.images_per_prompt, or write pairs: none",
            )
        for name, model in self.samples.models.items():
            if model.source != "teacher" and model.guidance_scale_2 is not None:
                yield error(
                    f"samples.models.{name}.guidance_scale_2 is {model.guidance_scale_2}",
                    ": a student is one network, guidance_scale is all of its guidance",
                    "remove it",
                )
            if model.source != "teacher" and model.guidance_interval is not None:
                yield error(
                    f"samples.models.{name}.guidance_interval is {list(model.guidance_interval)}",
                    ": a student takes all its steps alike",
                    "remove it",
                )


class GeneratingConfig(RunConfig):
    """A run that generates images with the teacher, and a data set of them; no training."""

    def faults(self) -> Iterator[Note]:
        """Models that would need what only a run with training has."""
        yield from super().faults()
        for key, whom in (("steps", "the teacher of targets"), ("student_steps", "the student")):
            if getattr(self.samples, key):
                yield error(
                    f"samples.{key} is set",
                    f": it adds {whom} at other numbers of steps, and a run without training has "
                    "none",
                    "list them in samples.models",
                )
        for name, model in self.samples.models.items():
            key = f"samples.models.{name}"
            if model.source != "teacher":
                yield error(
                    f"{key}.source is {model.source!r}",
                    ": a run without training has no student",
                    f"use source: teacher, or add {', '.join(NEEDED_TO_TRAIN)}",
                )
            for setting in ("steps", "guidance_scale"):
                if getattr(model, setting) is None:
                    yield error(
                        f"{key}.{setting} is missing",
                        f": a run without training has no targets.{setting} to take it from",
                        "add it",
                    )


class Config(RunConfig):
    """A run that distils a student."""

    targets: Targets
    student: Student = Student()
    training: Training
    previews: Previews = Previews()
    evaluation: Evaluation

    def faults(self) -> Iterator[Note]:
        """What one section asks of another."""
        yield from super().faults()
        if self.prompts.train is None:
            yield error("prompts.train is missing", "", "add it")
        yield from on_multiple(
            "targets.num_segments", self.targets.num_segments, "student.steps", self.student.steps
        )
        yield from on_multiple(
            "previews.every_samples",
            self.previews.every_samples,
            "training.global_batch_size",
            self.training.global_batch_size,
        )
        yield from on_num_weights(self.training.timestep_weights, self.student.steps)
        yield from on_students_steps(self.samples, self.student)
        yield from on_flow_map(self.training, self.student)
        if self.training.of(Rounds) and self.student.steps == 1:
            yield error(
                "training.phases has rounds",
                " and student.steps is 1: the only state that a student of one step visits is the "
                "noise, which the trajectories have",
                "leave rounds out, or take more steps",
            )
        start = self.student.start_from
        if start and Path(start).resolve().is_relative_to(Path("results", self.run).resolve()):
            yield error(
                f"student.start_from is {start!r}",
                ", which this run itself makes",
                "start from the student of another run, or give this one another name (`run`)",
            )
        yield from self._on_from_run()
        residence = self.training.teacher_residence
        if self.training.asks and self.teacher.num_gpus > 1 and not self.own_gpus:
            yield error(
                f"teacher.num_gpus is {self.teacher.num_gpus}",
                f" and training.teacher_residence is {residence}: each GPU has a rank of its own "
                "there, so the teacher cannot be spread over several",
                "use own_gpus, which takes GPUs from the training, set teacher.num_gpus: 1, or "
                "leave online out of training.phases",
            )
        yield from on_reference(self.evaluation, self.samples)

    def _on_from_run(self) -> Iterator[Note]:
        own = Path("results", self.run).resolve()
        for section in ("targets", "student"):
            other = getattr(self, section).from_run
            if other is not None and Path(other).resolve() == own:
                yield error(
                    f"{section}.from_run is {other!r}",
                    ", which is this run itself",
                    "name another run, or remove it",
                )
        other = self.targets.from_run
        if other is not None and not self.training.reads_trajectories:
            yield error(
                f"targets.from_run is {other!r}",
                " and training.phases has online alone, which reads no trajectories",
                "remove it",
            )

    @property
    def trains(self) -> bool:
        """Whether the student is this run's own."""
        return self.student.from_run is None

    def student_run(self, run: RunFolder) -> RunFolder:
        """The run whose student is drawn: itself, or another."""
        return RunFolder(Path(self.student.from_run)) if self.student.from_run else run

    def targets_run(self, run: RunFolder) -> RunFolder:
        """The run whose trajectories and embeddings of train this one reads: itself, or another."""
        return RunFolder(Path(self.targets.from_run)) if self.targets.from_run else run

    @property
    def own_gpus(self) -> int:
        """GPUs of each node on which the teacher of online targets is alone; 0: none."""
        training, several = self.training, self.teacher.num_gpus > 1
        is_alone = training.teacher_residence == "own_gpus" or (
            training.teacher_residence == "auto" and several
        )
        return self.teacher.num_gpus if training.asks and is_alone else 0


NEEDED_TO_TRAIN = ("targets", "training", "evaluation", "prompts.train")


def parse_config(
    raw: JsonObject, source: str, given: Collection[str] = ()
) -> Config | GeneratingConfig:
    """Check a configuration as loaded from YAML; errors name key, value and what is allowed.

    A run with none of `NEEDED_TO_TRAIN` and no student only generates. `given` are the keys that
    --config gives, which errors say.
    """
    if not isinstance(raw, Mapping):
        raise ValueError(
            f"{source} cannot be used: it holds a {type(raw).__name__}, a run is a mapping of keys"
        )
    # Where a run's frozen configuration is the configuration file.
    raw = {key: value for key, value in raw.items() if key != SEAL}
    present = [key for key in (*NEEDED_TO_TRAIN, "student") if _is_given(raw, key)]
    if not present:
        return parse(GeneratingConfig, raw, source, given)
    missing = [key for key in NEEDED_TO_TRAIN if key not in present]
    try:
        return parse(Config, add_models(raw), source, given)
    except ValueError as error:
        if not missing:
            raise
        raise ValueError(
            f"{error}\n  To distil a student add {', '.join(missing)}; for a run that only "
            f"generates images remove {', '.join(present)}"
        ) from None


def _is_given(raw: JsonObject, key: str) -> bool:
    """Whether a section, or the key prompts.train, is in a configuration."""
    section, _, name = key.partition(".")
    if not name:
        return section in raw
    inner = raw.get(section)
    return isinstance(inner, dict) and inner.get(name) is not None
