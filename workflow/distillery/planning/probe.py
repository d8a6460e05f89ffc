"""A small run that measures how fast a large one will be: its configuration, and its rates.

It has the same teacher, sizes, batches, student and machine, and little of everything else, so that
every rate is taken from the real job.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distillery.config.run import Config, RunConfig
from distillery.evaluation.timeline import RANK, SAMPLES_JOB, Attempt
from distillery.files import hash_json
from distillery.planning.jobs import Room, count_exports, samples_before_rounds

NUM_CHUNKS, NUM_BATCHES, NUM_INTERVALS, UPDATES = 2, 3, 4, 4
"""Chunks of targets; batches of each model's images; intervals of the training's log, and updates
in each. The first of each loads and compiles, and counts as the job's start."""
AUTO_BATCH = 8
"""Images that stand for a batch whose size a GPU decides."""
WITHOUT = {
    "rounds": None, "adversarial": None, "distribution_matching": None, "finish_samples": None,
    "online_steps": None, "targets": "stored", "rollout_samples": 0, "perceptual_weight": 0.0,
    "held_out_prompts": 0,
}  # fmt: skip
"""Of the training, what is not measured: its plain updates are."""
FOR_THE_PLAN = ("gpu", "num_gpus", "gpu_memory_gib")
"""Of the hardware, what describes GPUs elsewhere: jobs here do not read it."""


@dataclass(frozen=True)
class Rate:
    """How long the jobs of one kind take: so long each, and so long for each of their items.

    Attributes:
        start_s: of one job: loading, compiling, saving.
        item_s: of one sample, image or prompt; 0 where none is counted.
        num_processes: that one job has.
    """

    start_s: float
    item_s: float
    num_processes: int = 1


def probe_config(config: RunConfig) -> dict[str, Any]:
    """The configuration of the small run, without its prompt files."""
    raw = copy.deepcopy(config.model_dump(mode="json"))
    raw["run"] = probe_name(config)
    raw["samples"] |= {"num_shards": 1, "num_prompts": None}
    # A chunk a batch: prompts are too few for two chunks of the usual size.
    raw["embeddings"]["chunk_size"] = raw["embeddings"]["batch_size"]
    if "training" in raw:
        size = raw["training"]["global_batch_size"]
        num_samples = NUM_INTERVALS * UPDATES * size
        raw["training"] |= WITHOUT | {
            "num_samples": num_samples,
            "log_every_samples": UPDATES * size,
            "save_every_samples": num_samples,
            "warmup_samples": min(raw["training"]["warmup_samples"], size),
            "ema_half_life_samples": min(raw["training"]["ema_half_life_samples"], size),
        }
        raw["targets"] |= {"num_shards": 1}
        raw["previews"]["every_samples"] = 0
    return raw


def probe_name(config: RunConfig) -> str:
    """The run that is made for it, and removed."""
    return f"{config.run}-probe"


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
        num_jobs: of it.
        busy_s: of all its processes together.
        wall_s: with so many at once as the machine has room for.
        gpu_s: of all GPUs that its jobs hold together.
    """

    stage: str
    num_jobs: int
    busy_s: float
    wall_s: float
    gpu_s: float = 0.0


def plan_times(
    rates: Mapping[str, Rate], amounts: Iterable[tuple[str, int, int]], room: Room
) -> list[Planned]:
    """The time of each stage.

    Args:
        rates: of the probe.
        amounts: kind, jobs and items in all; kinds without a rate are left out.
        room: what the jobs share.
    """
    rows: dict[str, Planned] = {}
    for kind, num_jobs, items in amounts:
        rate = rates.get(kind)
        if rate is None or not num_jobs:
            continue
        stage = "samples" if kind.startswith("samples-") else kind
        alone_s = num_jobs * rate.start_s + items * rate.item_s
        before = rows.get(stage, Planned(stage, 0, 0.0, 0.0))
        rows[stage] = Planned(
            stage,
            before.num_jobs + num_jobs,
            before.busy_s + alone_s * rate.num_processes,
            before.wall_s + alone_s / min(num_jobs, room.at_once(stage)),
            before.gpu_s + alone_s * room.of(stage).gpus,
        )
    return list(rows.values())


def amounts_of(config: RunConfig, num_prompts: dict[str, int]) -> list[tuple[str, int, int]]:
    """Kind, jobs and items of all that a run does, for `plan_times`."""
    samples = config.samples
    images = samples.num_images(num_prompts["eval"])
    amounts = [("embeddings", len(num_prompts), sum(num_prompts.values()))]
    drawn = [(f"samples-{name}", samples.num_shards, images) for name in samples.models]
    if not isinstance(config, Config):
        return [*amounts, *drawn]
    training, shards = config.training, config.targets.num_shards
    trajectories = num_prompts["train"] * config.targets.samples_per_prompt
    rounds, before = len(training.round_numbers), samples_before_rounds(config)
    return [
        *amounts,
        ("targets", shards, trajectories * training.reads_trajectories),
        ("student", 1, 0),
        ("training_before_round", rounds, before),
        ("round_states", rounds * shards, rounds * trajectories),
        ("round_targets", rounds * shards, rounds * trajectories),
        ("training", 1, training.num_samples - before),
        ("export", count_exports(config), 0),
        *drawn,
        ("evaluation", 1, images * len(samples.models)),
        ("report", 1, 0),
    ]
