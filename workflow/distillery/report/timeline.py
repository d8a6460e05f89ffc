"""What the telemetry says: time of each stage, utilisation of each worker, seconds per image.

All times are wall-clock seconds. Hosts of a cluster are trusted to agree on the time of day.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from distillery.telemetry import Event

Spans = Sequence[tuple[float, float]]
"""Intervals (begin, end) in seconds."""

MAX_PAUSE_S = 60.0
"""A longer time without any job (a run interrupted at night) is no part of the run."""
SAMPLES_JOB = re.compile(r"^samples-(?P<model>.+?)(-\d+-of-\d+)?$")
RANK = re.compile(r"-rank-(\d+)$")
"""What the processes of a job but the first put behind the job's name."""
BEFORE_ROUND = re.compile(r"^training-\d+-rounds(-rank-\d+)?$")
"""Jobs that the plan has a row of its own for; all trainings report as one stage."""


@dataclass
class Attempt:
    """One try of one job: from its start event to its end, or to its last sign of life."""

    stage: str
    job: str
    host: str
    device: str
    begin_s: float
    end_s: float
    work: list[Event] = field(default_factory=list)
    finished: bool = False

    @property
    def busy(self) -> Spans:
        """Intervals in which it worked."""
        return [(event.begin_s, event.end_s) for event in self.work]


@dataclass(frozen=True)
class StageTime:
    """One stage over all its jobs.

    Attributes:
        num_jobs: distinct jobs; num_processes: of all of them, each counted once.
        num_attempts: starts of the jobs, more than there are jobs if some were interrupted.
        wall_s: time in which at least one of its jobs ran.
        busy_s: work of all its workers added up.
        num_items: samples, images or prompts done; those that were done again count again.
    """

    stage: str
    num_jobs: int
    num_processes: int
    num_attempts: int
    wall_s: float
    busy_s: float
    num_items: int

    @property
    def items_per_s(self) -> float | None:
        """Throughput of all workers together."""
        return self.num_items / self.wall_s if self.num_items and self.wall_s else None


@dataclass(frozen=True)
class Worker:
    """One device of one host.

    Attributes:
        lanes: its attempts, in rows that do not overlap (processes may share a CPU).
        busy_s: time in which at least one of them worked.
        span_s: from its first sign of life to its last, without the run's pauses.
        peak_memory_bytes: the most that one of its processes reported; None if none did.
    """

    host: str
    device: str
    lanes: tuple[tuple[Attempt, ...], ...]
    busy_s: float
    span_s: float
    peak_memory_bytes: int | None

    @property
    def utilisation(self) -> float | None:
        """Share of its span that it worked."""
        return self.busy_s / self.span_s if self.span_s else None


def find_attempts(events: Iterable[Event]) -> list[Attempt]:
    """Sort the events of all jobs into attempts, in the order of their begin."""
    by_job: dict[tuple[str, str, str], list[Event]] = {}
    for event in sorted(events, key=lambda event: (event.begin_s, event.kind != "start")):
        by_job.setdefault((event.job, event.host, event.device), []).append(event)
    attempts = [attempt for job in by_job.values() for attempt in _attempts_of(job)]
    return sorted(attempts, key=lambda attempt: attempt.begin_s)


def _attempts_of(events: Iterable[Event]) -> list[Attempt]:
    """Split the events of one job at its start events."""
    attempts: list[Attempt] = []
    for event in events:
        if event.kind == "start" or not attempts:
            attempts.append(
                Attempt(
                    event.stage, event.job, event.host, event.device, event.begin_s, event.end_s
                )
            )
        current = attempts[-1]
        current.end_s = max(current.end_s, event.end_s)
        current.finished |= event.kind == "end"
        if event.kind == "work":
            current.work.append(event)
    return attempts


def union(
    spans: Iterable[tuple[float, float]], tolerance_s: float = 0.0
) -> list[tuple[float, float]]:
    """Merge overlapping intervals, and those not more than `tolerance_s` apart."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1] + tolerance_s:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def length(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds covered by intervals, each second counted once."""
    return sum(end - begin for begin, end in union(spans))


@dataclass(frozen=True)
class RunClock:
    """Time since the run's begin with long pauses cut out."""

    active: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, attempts: Sequence[Attempt]) -> "RunClock":
        """The clock of a run: pauses of more than `MAX_PAUSE_S` without any job do not count."""
        spans = ((attempt.begin_s, attempt.end_s) for attempt in attempts)
        return cls(tuple(union(spans, MAX_PAUSE_S)))

    def at(self, time_s: float) -> float:
        """Active seconds before a Unix time."""
        return sum(max(0.0, min(time_s, end) - begin) for begin, end in self.active)

    @property
    def total_s(self) -> float:
        """Active seconds of the whole run."""
        return sum(end - begin for begin, end in self.active)

    @property
    def pauses(self) -> list[tuple[float, float]]:
        """(active seconds at which a pause was cut out, its length in seconds)."""
        return [
            (self.at(before[1]), after[0] - before[1]) for before, after in pairwise(self.active)
        ]


def time_stages(attempts: Sequence[Attempt]) -> list[StageTime]:
    """One entry a stage, in the order in which they began."""
    by_stage: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        by_stage.setdefault(attempt.stage, []).append(attempt)
    return [_time_stage(stage, tries) for stage, tries in by_stage.items()]


def _time_stage(stage: str, attempts: Sequence[Attempt]) -> StageTime:
    """One stage; a job has as many attempts as its most often started process."""
    processes = Counter(attempt.job for attempt in attempts)
    starts: dict[str, int] = {}
    for process, number in processes.items():
        job = RANK.sub("", process)
        starts[job] = max(number, starts.get(job, 0))
    return StageTime(
        stage=stage,
        num_jobs=len(starts),
        num_processes=len(processes),
        num_attempts=sum(starts.values()),
        wall_s=length((attempt.begin_s, attempt.end_s) for attempt in attempts),
        busy_s=sum(end - begin for attempt in attempts for begin, end in attempt.busy),
        num_items=sum(event.num_items for attempt in attempts for event in attempt.work),
    )


@dataclass(frozen=True)
class Origin:
    """When, by which commands and on which GPUs a run was made.

    Attributes:
        begin_s, end_s: Unix time of its first and its last sign of life.
        commands: as they were typed, in their order.
        gpus: name of each kind, with how many were used.
        gpu_hours: that its processes held them, one each.
    """

    begin_s: float
    end_s: float
    commands: tuple[str, ...]
    gpus: Mapping[str, int]
    gpu_hours: float


def find_origin(events: Iterable[Event]) -> Origin | None:
    """What the telemetry says of a run's origin; None without any."""
    events = list(events)
    if not events:
        return None
    starts = [event for event in events if event.kind == "start"]
    typed = [event.facts.get("command") for event in starts]
    devices = {
        (event.host, event.device): str(event.facts["gpu"])
        for event in starts
        if event.facts.get("gpu")
    }
    on_gpu = (it for it in find_attempts(events) if it.device.startswith("cuda"))
    return Origin(
        min(event.begin_s for event in events),
        max(event.end_s for event in events),
        tuple(dict.fromkeys(command for command in typed if command)),
        dict(Counter(devices.values())),  # asdict would count a counter's pairs
        sum(attempt.end_s - attempt.begin_s for attempt in on_gpu) / 3600,
    )


@dataclass(frozen=True)
class PlannedTime:
    """What was planned for a stage, and what it took: of all its processes together."""

    stage: str
    planned_s: float
    measured_s: float

    @property
    def ratio(self) -> float:
        """Measured over planned."""
        return self.measured_s / self.planned_s if self.planned_s else math.nan


def hold_against_plan(
    attempts: Sequence[Attempt], plan: Mapping[str, Any] | None
) -> list[PlannedTime]:
    """Planned and measured time of each stage that was planned and ran; empty without a probe.

    Args:
        attempts: of the run, those that were interrupted among them.
    """
    spans: dict[str, float] = {}
    for attempt in attempts:
        seconds = attempt.end_s - attempt.begin_s
        stage = "training_before_round" if BEFORE_ROUND.match(attempt.job) else attempt.stage
        spans[stage] = spans.get(stage, 0.0) + seconds
    stages = (plan or {}).get("time", {}).get("stages", ())
    return [
        PlannedTime(row["stage"], float(row["busy_s"]), spans[row["stage"]])
        for row in stages
        if row["stage"] in spans
    ]


def find_workers(attempts: Sequence[Attempt], clock: RunClock) -> list[Worker]:
    """One entry for each (host, device), sorted by name."""
    by_device: dict[tuple[str, str], list[Attempt]] = {}
    for attempt in attempts:
        by_device.setdefault((attempt.host, attempt.device), []).append(attempt)
    return [
        Worker(
            host,
            device,
            lanes=_lanes(tries),
            busy_s=length(span for attempt in tries for span in attempt.busy),
            span_s=clock.at(max(attempt.end_s for attempt in tries))
            - clock.at(min(attempt.begin_s for attempt in tries)),
            peak_memory_bytes=peak_memory_bytes(tries),
        )
        for (host, device), tries in sorted(by_device.items())
    ]


def peak_memory_bytes(attempts: Iterable[Attempt]) -> int | None:
    """The largest `peak_memory_bytes` among the events' facts."""
    events = (event for attempt in attempts for event in attempt.work)
    said = [
        event.facts["peak_memory_bytes"] for event in events if event.facts.get("peak_memory_bytes")
    ]
    return max((int(number) for number in said), default=None)


def _lanes(attempts: Iterable[Attempt]) -> tuple[tuple[Attempt, ...], ...]:
    """Put each attempt in the first row that is free when it begins."""
    lanes: list[list[Attempt]] = []
    for attempt in sorted(attempts, key=lambda attempt: attempt.begin_s):
        free = [lane for lane in lanes if lane[-1].end_s <= attempt.begin_s]
        if free:
            free[0].append(attempt)
        else:
            lanes.append([attempt])
    return tuple(tuple(lane) for lane in lanes)


def model_of(attempt: Attempt) -> str:
    """The model that a samples job drew for: as its events say, else by the job's name."""
    said = attempt.work[0].facts.get("model")
    match = SAMPLES_JOB.match(attempt.job)
    return str(said) if said else match["model"] if match else attempt.job
