"""What a stage says of itself; the rule `all`, the plan, the terminal and the report fold over it.

Each stage is a module of `stages/`, and `pipeline.STAGES` lists them. Every Snakemake reads them,
in every job too, so nothing heavy is imported here or there: a stage names what makes it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from distillery.config.run import Config, RunConfig
from distillery.importing import imported
from distillery.run_folder import RunFolder

Key = Mapping[str, str]
"""What makes a job another than its stage's others, by wildcard: {"shard": "0-of-4"}."""
Keys = Callable[[RunConfig], Sequence[Key]]
Gpus = Literal["none", "one", "teacher", "all"]
"""That a job takes, where there are any: none, one, as many as the teacher is spread over, all."""
Loads = Literal["", "texts", "drawing", "student", "training"]
"""What a job has in host memory: text encoders, what draws an image, a student, a training."""


@dataclass(frozen=True)
class Counts:
    """What amounts are counted from.

    Attributes:
        texts: that are encoded of each split, see `store.embeddings.distinct_texts`.
    """

    prompts: Mapping[str, int]
    texts: Mapping[str, int]

    def images(self, config: RunConfig) -> int:
        """Of each sampled model."""
        return config.samples.num_images(self.prompts["eval"])

    def trajectories(self, config: Config) -> int:
        """That the teacher walks from the noise of the training's samples."""
        return self.prompts["train"] * config.targets.samples_per_prompt


@dataclass(frozen=True)
class Passes:
    """Forward passes of both networks; a backward pass is two of them."""

    teacher: float = 0.0
    student: float = 0.0

    def __add__(self, other: "Passes") -> "Passes":
        return Passes(self.teacher + other.teacher, self.student + other.student)

    def __mul__(self, number: float) -> "Passes":
        return Passes(self.teacher * number, self.student * number)

    @property
    def calls(self) -> int:
        """Of either network."""
        return round(self.teacher + self.student)

    def of_size(self, size: float) -> float:
        """In passes of the teacher, of which one of the student takes the share `size`."""
        return self.teacher + size * self.student


@dataclass(frozen=True)
class Calls:
    """What passes are counted from.

    Attributes:
        per_image: of each sampled model.
        per_step: of the teacher in one step of a trajectory, in the mean.
    """

    per_image: Mapping[str, Passes]
    per_step: float = 0


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage.

    Attributes:
        name: of its rule and telemetry.
        makes: what one job does: a function whose signature is the command line, as MODULE:NAME.
        job: name of one job's log, lock and telemetry, with options of the command line in braces;
            empty: it has neither device nor telemetry.
        keys: of its jobs; none where a run has no such stage.
        writes: the outputs that one job declares.
        frozen: names of the frozen configurations that one job reads.
        gpus: that a job takes.
        loads: into host memory, which a cluster is asked for.
        items: that one job's telemetry counts: samples, images, texts.
        passes: that one of its items takes, on average.
        in_turn: one job after another, but for shards: each waits for what follows from the last.
        is_short: its jobs load nothing, so that the plan tells no time of them.
        colour: of its bars in every timeline, a number of the palette; None: any. Two stages share
            one where they never follow at once.
    """

    name: str
    makes: str = ""
    job: str = ""
    keys: Keys
    writes: Callable[[Any, RunFolder, Key], list[Path]] = lambda config, run, key: []
    frozen: Callable[[RunConfig, RunFolder, Key], list[str]] = lambda config, run, key: []
    gpus: Gpus = "none"
    loads: Loads = ""
    items: Callable[[Any, Counts, Key], int] = lambda config, counts, key: 0
    passes: Callable[[Any, Calls, Key], Passes] = lambda config, calls, key: Passes()
    in_turn: bool = False
    is_short: bool = False
    colour: int | None = None

    def of(self, config: RunConfig) -> list[list[Key]]:
        """The keys of its jobs, those together that differ by their shard alone."""
        groups: dict[tuple[tuple[str, str], ...], list[Key]] = {}
        for key in self.keys(config):
            beside = tuple((name, value) for name, value in key.items() if name != "shard")
            groups.setdefault(beside, []).append(key)
        return list(groups.values())

    def function(self) -> Callable[..., object]:
        """What one job does; importing it takes seconds."""
        module, _, name = self.makes.partition(":")
        made: Callable[..., object] = imported(module, name)
        return made


# ---- one job for each ... ------------------------------------------------------------------------


def one(config: RunConfig) -> list[Key]:
    """A single job."""
    return [{}]


def asked_for(config: RunConfig) -> list[Key]:
    """None of a run: a job that is asked for by its file alone."""
    return []


def to_generate(config: RunConfig) -> list[Key]:
    """A single job of runs that generate images alone."""
    return [] if isinstance(config, Config) else [{}]


def to_train(keys: Callable[[Config], Sequence[Key]]) -> Keys:
    """Of runs that train; others have none."""
    return lambda config: keys(config) if isinstance(config, Config) and config.trains else []


def to_judge(config: RunConfig) -> list[Key]:
    """A single job of runs that judge a student, their own or another run's."""
    return [{}] if isinstance(config, Config) else []


def splits(config: RunConfig) -> list[Key]:
    """Each split of the prompts."""
    trains = isinstance(config, Config) and config.trains
    found = ["train", "eval"] if trains else ["eval"]
    return [{"split": split} for split in found]


def encoded_splits(config: RunConfig) -> list[Key]:
    """Each split of the prompts, but for what is read from another run."""
    is_read = isinstance(config, Config) and config.targets.from_run is not None
    return [key for key in splits(config) if not (is_read and key["split"] == "train")]


def models(config: RunConfig) -> list[Key]:
    """Each model that is sampled."""
    return [{"model": model} for model in config.samples.models]


def rounds(config: Config) -> list[Key]:
    """Each round of the training, from 1."""
    return [{"round": str(number)} for number in config.training.round_numbers]


def target_shards(config: Config) -> list[Key]:
    """Each shard of the trajectories; none where the student learns online alone, or from those of
    another run."""
    makes = config.training.reads_trajectories and config.targets.from_run is None
    return in_shards([{}] * makes, config.targets.num_shards)


def round_shards(config: Config) -> list[Key]:
    """Each shard of each round."""
    return in_shards(rounds(config), config.targets.num_shards)


def in_shards(keys: Iterable[Key], num_shards: int) -> list[Key]:
    """Each key with each shard."""
    parts = [f"{part}-of-{num_shards}" for part in range(num_shards)]
    return [{**key, "shard": part} for key in keys for part in parts]


def balanced_range(num_items: int, part: int, num_parts: int) -> range:
    """The items of one part when `num_items` are dealt in order, sizes differing by at most one.

    Five items on four parts are 2, 1, 1, 1; a part may be empty.
    """
    if not 0 <= part < num_parts:
        raise ValueError(f"part is {part}: it must be from 0 to {num_parts - 1}")
    size, extra = divmod(num_items, num_parts)
    start = part * size + min(part, extra)
    return range(start, start + size + (part < extra))


def share(items: int, key: Key) -> int:
    """How many items the shard of a key has."""
    part, whole = map(int, key["shard"].split("-of-"))
    return len(balanced_range(items, part, whole))


def named(*names: str) -> Callable[[RunConfig, RunFolder, Key], list[str]]:
    """Names of frozen configurations, with the key's values in braces."""
    return lambda config, run, key: [name.format(**key) for name in names]


# ---- what folds over the list --------------------------------------------------------------------


def everything(stages: Iterable[Stage], config: RunConfig, run: RunFolder) -> list[Path]:
    """What the rule `all` asks for: every declared output, and every frozen configuration.

    Not the last files alone: Snakemake overlooks what is missing behind a file that is there, and
    damage is repaired by removing what is damaged. Frozen configurations too: without them and
    without Snakemake's notes, as in a run that was moved, results would be taken for those of any
    configuration.
    """
    jobs = [(stage, key) for stage in stages for key in stage.keys(config)]
    frozen = [run.config(name) for stage, key in jobs for name in stage.frozen(config, run, key)]
    made = [path for stage, key in jobs for path in stage.writes(config, run, key)]
    return list(dict.fromkeys([*frozen, *made]))


def short_rules(stages: Iterable[Stage]) -> set[str]:
    """Rules whose jobs load nothing: they tell nothing of how long others load."""
    return {"all", *(stage.name for stage in stages if stage.is_short)}
