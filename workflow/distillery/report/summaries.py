"""The numbers of a report that are no scores: times, speed and the training in short."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from distillery.measures.manifests import ModelSamples
from distillery.report import figures
from distillery.report.findings import Findings
from distillery.report.speeds import ImageTime, speed_ratio, time_images
from distillery.report.timeline import (
    Attempt,
    RunClock,
    StageTime,
    Worker,
    find_workers,
    time_stages,
)
from distillery.report.training_facts import TrainingFacts
from distillery.training.watchers.alarms import HELD_OUT

LAST_SHARE = 0.1
"""Of a training's log, averaged to its final loss."""


@dataclass(frozen=True)
class Timings:
    """What the telemetry says."""

    clock: RunClock
    stages: Sequence[StageTime]
    workers: Sequence[Worker]
    images: Mapping[str, ImageTime]

    def as_json(self) -> dict[str, Any]:
        """Without the single events; the whole time is None where no telemetry is there."""
        return {
            "total_s": self.clock.total_s if self.clock.active else None,
            "stages": [asdict(stage) | {"items_per_s": stage.items_per_s} for stage in self.stages],
            "workers": [
                {
                    "host": worker.host,
                    "device": worker.device,
                    "busy_s": worker.busy_s,
                    "span_s": worker.span_s,
                    "utilisation": worker.utilisation,
                    "peak_memory_bytes": worker.peak_memory_bytes,
                }
                for worker in self.workers
            ],
            "seconds_per_image": {model: asdict(time) for model, time in self.images.items()},
        }


def summarise_timings(attempts: Sequence[Attempt], samples: Mapping[str, ModelSamples]) -> Timings:
    """All times of a run; seconds per image are those of its present images."""
    clock = RunClock.of(attempts)
    tables = {name: found.table for name, found in samples.items()}
    recipes = {name: set(it["recipe"]) for name, it in tables.items() if "recipe" in it}
    images = time_images(attempts, recipes)
    return Timings(clock, time_stages(attempts), find_workers(attempts, clock), images)


def summarise_speed(
    findings: Findings, images: Mapping[str, ImageTime]
) -> dict[str, float | None] | None:
    """How many times faster the student is than the reference; None without both.

    Under `speeds.MIN_BATCHES` batches of each there is no factor.
    """
    student, reference = findings.roles.student, findings.roles.reference
    if student is None or not {student, reference} <= set(findings.samples):
        return None
    calls = {name: findings.samples[name].network_calls for name in (student, reference)}
    own, other = images.get(student), images.get(reference)
    ratio = speed_ratio(other, own)
    return {
        "student_network_calls": calls[student],
        "reference_network_calls": calls[reference],
        "network_calls_ratio": calls[reference] / calls[student],
        "student_seconds_per_image": own.seconds if own else None,
        "reference_seconds_per_image": other.seconds if other else None,
        "student_batches": own.num_batches if own else 0,
        "reference_batches": other.num_batches if other else 0,
        "seconds_ratio": ratio.mean if ratio else None,
        "seconds_ratio_low": ratio.low if ratio else None,
        "seconds_ratio_high": ratio.high if ratio else None,
    }


def summarise_training(
    loss: pd.DataFrame | None, facts: TrainingFacts | None = None
) -> dict[str, Any] | None:
    """First and last of the training's log; the last is the mean of the final tenth.

    A finishing phase of rollouts has a loss of another kind, and so its own first and last.
    `facts` of the telemetry come under their own key.
    """
    if loss is None or loss.empty:
        return None
    is_rollout = figures.find_rollouts(loss)
    of_segments, for_rollouts = loss["loss"][~is_rollout], loss["loss"][is_rollout]
    is_mixed = not of_segments.empty and not for_rollouts.empty
    return {
        "num_samples": int(loss["samples_seen"].iloc[-1]),
        **_first_and_last(of_segments if is_mixed else loss["loss"]),
        "rollout": _first_and_last(for_rollouts) if is_mixed else None,
        "held_out_loss": _last_measured(loss, HELD_OUT),
        "max_grad_norm": _finite(loss["grad_norm"].max()),
        "telemetry": facts.as_json() if facts else None,
    }


def _first_and_last(losses: "pd.Series[float]") -> dict[str, float | None]:
    """Of one phase of the training."""
    num_last = max(1, round(len(losses) * LAST_SHARE))
    return {
        "first_loss": _finite(losses.iloc[0]),
        "final_loss": _finite(losses.iloc[-num_last:].mean()),
    }


def _last_measured(loss: pd.DataFrame, column: str) -> dict[str, float | None] | None:
    """The last value of a column that is measured now and then, and after how many samples."""
    if column not in loss.columns or loss[column].dropna().empty:
        return None
    last = loss[loss[column].notna()].iloc[-1]
    return {"samples_seen": int(last["samples_seen"]), "loss": _finite(last[column])}


def _finite(value: float) -> float | None:
    """A number that JSON can hold."""
    return float(value) if math.isfinite(value) else None
