"""A small run that measures how fast a large one will be: its configuration, and its rates.

It has the same teacher, sizes, batches, student and machine, and little of everything else, so that
every rate is taken from the real job.
"""

import copy
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distillery.config.run import RunConfig
from distillery.config.ways import Stored
from distillery.files import hash_json, read_json
from distillery.notes import Note, error
from distillery.planning.jobs import Room
from distillery.report.timeline import RANK, SAMPLES_JOB, Attempt
from distillery.run_folder import RunFolder
from distillery.stage import Counts, Stage

NUM_CHUNKS, NUM_BATCHES, NUM_INTERVALS, UPDATES = 2, 3, 4, 4
"""Chunks of targets; batches of each model's images; intervals of the training's log, and updates
in each. The first of each loads and compiles, and counts as the job's start."""
ENDING = "-probe"
"""Of the names of small runs."""
AUTO_BATCH = 8
"""Images that stand for a batch whose size a GPU decides."""
FOR_THE_PLAN = ("gpu", "num_gpus", "gpu_memory_gib")
"""Of the hardware, what describes GPUs elsewhere: jobs here do not read it."""


@dataclass(frozen=True)
class Rate:
    """How long the jobs of one kind take: so long each, and so long for each of their items.

    Attributes:
        start_s: of one job: loading, compiling, saving.
        item_s: of one sample, image or text; 0 where none is counted.
        num_processes: that one job has.
    """

    start_s: float
    item_s: float
    num_processes: int = 1


def probe_config(config: RunConfig) -> dict[str, Any]:
    """The configuration of the small run, without its prompt files."""
    raw = copy.deepcopy(config.model_dump(mode="json"))
    raw["run"] = probe_name(config.run)
    raw["samples"] |= {"num_shards": 1, "num_prompts": None}
    # A chunk a batch: prompts are too few for two chunks of the usual size.
    raw["embeddings"]["chunk_size"] = raw["embeddings"]["batch_size"]
    if "training" in raw:
        size = raw["training"]["global_batch_size"]
        num_samples = NUM_INTERVALS * UPDATES * size
        # Plain updates are measured, all else is counted in them.
        raw["training"] |= {
            "phases": [Stored(samples=num_samples).model_dump(mode="json")],
            "held_out_prompts": 0,
            "log_every_samples": UPDATES * size,
            "save_every_samples": num_samples,
            "warmup_samples": min(raw["training"]["warmup_samples"], size),
            "ema_half_life_samples": min(raw["training"]["ema_half_life_samples"], size),
        }
        raw["targets"] |= {"num_shards": 1}
        for section in ("targets", "student"):  # of other prompts than the small run's
            raw[section].pop("from_run", None)
        raw["previews"]["every_samples"] = 0
    return raw


def probe_name(run: str) -> str:
    """The run that is made for the probe of a run, and removed."""
    return f"{run}{ENDING}"


def is_small_run(small: RunFolder) -> bool:
    """Whether a probe's settings are there, which are the first file of each small run."""
    try:
        return bool(read_json(small.probe).get("run") == small.path.name)
    except (OSError, ValueError):
        return False


def on_name(config: RunConfig, run: RunFolder) -> Iterator[Note]:
    """A run that the probe of another would remove."""
    if config.run.endswith(ENDING) and not is_small_run(run):
        yield error(
            f"run is {config.run!r}",
            f", and names with {ENDING} at the end are for what the probe of "
            f"{config.run.removesuffix(ENDING)!r} makes and removes",
            "choose another name",
        )


def prompts_needed(config: RunConfig) -> dict[str, int]:
    """Prompts of each split in the small run."""
    size = config.samples.batch_size
    images = NUM_BATCHES * (AUTO_BATCH if size == "auto" else size)
    needed = {"eval": -(-images // config.samples.images_per_prompt)}
    targets = getattr(config, "targets", None)
    if targets is not None:
        needed["train"] = -(-NUM_CHUNKS * targets.chunk_size // targets.samples_per_prompt)
    return needed


def kind_of_probe(config: RunConfig) -> str:
    """A hash of all that a rate depends on: two configurations that differ in how much they do have
    the same."""
    raw = probe_config(config)
    for name in ("run", "seed", "prompts", "evaluation"):
        raw.pop(name, None)
    for name in FOR_THE_PLAN:
        raw["hardware"].pop(name, None)
    return hash_json(raw)


def rates_of(attempts: Sequence[Attempt]) -> dict[str, Rate]:
    """The rate of each kind of job: a stage, and of samples each model's."""
    by_kind: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        by_kind.setdefault(_kind(attempt), []).append(attempt)
    return {kind: _rate(tries) for kind, tries in by_kind.items()}


def _kind(attempt: Attempt) -> str:
    found = SAMPLES_JOB.match(attempt.job)
    return f"samples-{found['model']}" if found else attempt.stage


def _rate(attempts: Sequence[Attempt]) -> Rate:
    """Of jobs of one kind; of a training's processes the first tells, they wait for each other."""
    first = [attempt for attempt in attempts if not RANK.search(attempt.job)]
    spans = [attempt.end_s - attempt.begin_s for attempt in first]
    counts = [sum(number for number, _ in _steps(attempt)) for attempt in first]
    steady = [step for attempt in first for step in _steps(attempt)[1:]]
    if steady:
        item_s = sum(seconds for _, seconds in steady) / sum(number for number, _ in steady)
    elif max(counts) > min(counts):  # jobs of one piece each: by the line through two of them
        (few, short_s), (many, long_s) = sorted(zip(counts, spans, strict=True))[:: len(first) - 1]
        item_s = max(0.0, (long_s - short_s) / (many - few))
    else:
        item_s = 0.0
    start_s = max(0.0, sum(spans) - item_s * sum(counts)) / len(first)
    return Rate(start_s, item_s, len(attempts) // len(first))


def _steps(attempt: Attempt) -> list[tuple[int, float]]:
    """Items and seconds of each piece of work; a training counts those of all processes."""
    seen, steps = 0, []
    for event in attempt.work:
        number = event.num_items
        if "samples_seen" in event.facts:
            number, seen = int(event.facts["samples_seen"]) - seen, int(event.facts["samples_seen"])
        steps.append((number, event.end_s - event.begin_s))
    return steps


@dataclass(frozen=True)
class Planned:
    """What is planned for one stage.

    Attributes:
        stage: as in the report.
        busy_s: of all its processes together.
        wall_s: with so many at once as the machine has room for.
        gpu_s: of all GPUs that its jobs hold together.
    """

    stage: str
    num_jobs: int
    busy_s: float
    wall_s: float
    gpu_s: float = 0.0


@dataclass(frozen=True)
class Amount:
    """Equal jobs of one kind.

    Attributes:
        kind: as of `Rate`.
        items: of all of them together, as the stage's telemetry counts them.
        turn: jobs of a stage wait for those of earlier turns.
    """

    kind: str
    num_jobs: int = 1
    items: int = 0
    turn: int = 0

    @property
    def stage(self) -> str:
        """That the jobs are of."""
        return "samples" if self.kind.startswith("samples-") else self.kind


def plan_times(rates: Mapping[str, Rate], amounts: Iterable[Amount], room: Room) -> list[Planned]:
    """The time of each stage.

    Args:
        amounts: of all jobs; kinds without a rate are left out.
    """
    by_stage: dict[str, list[tuple[Amount, Rate]]] = {}
    for amount in amounts:
        rate = rates.get(amount.kind)
        if rate is not None and amount.num_jobs:
            by_stage.setdefault(amount.stage, []).append((amount, rate))
    return [_plan_stage(stage, rows, room) for stage, rows in by_stage.items()]


def _plan_stage(stage: str, rows: Sequence[tuple[Amount, Rate]], room: Room) -> Planned:
    busy_s, turns = 0.0, dict[int, list[float]]()
    for amount, rate in rows:
        job_s = rate.start_s + amount.items / amount.num_jobs * rate.item_s
        turns.setdefault(amount.turn, []).extend([job_s] * amount.num_jobs)
        busy_s += amount.num_jobs * job_s * rate.num_processes
    places = room.at_once(stage)
    return Planned(
        stage,
        sum(map(len, turns.values())),
        busy_s,
        sum(wall_time(jobs_s, places) for jobs_s in turns.values()),
        sum(map(sum, turns.values())) * room.of(stage).gpus,
    )


def wall_time(jobs_s: Iterable[float], places: int) -> float:
    """Seconds until the last of some jobs ends, each begun when one of the places is free."""
    free_s = [0.0] * places
    for job_s in jobs_s:
        heapq.heapreplace(free_s, free_s[0] + job_s)
    return max(free_s)


def amounts_of(stages: Iterable[Stage], config: RunConfig, counts: Counts) -> list[Amount]:
    """All that a run does, for `plan_times`."""
    return [
        Amount(
            # Each sampled model has a rate of its own.
            f"{stage.name}-{keys[0]['model']}"
            if stage.loads and "model" in keys[0]
            else stage.name,
            len(keys),
            sum(stage.items(config, counts, key) for key in keys),
            turn if stage.in_turn else 0,
        )
        for stage in stages
        if not stage.is_short
        for turn, keys in enumerate(stage.of(config))
    ]
