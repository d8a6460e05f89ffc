"""Times of a run: each stage, each worker, and seconds per image with an interval over batches."""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from distillery.measures.intervals import NORMAL_QUANTILE, ConfidenceInterval
from distillery.measures.manifests import ModelSamples
from distillery.report.roles import Roles
from distillery.report.timeline import (
    Attempt,
    RunClock,
    StageTime,
    Worker,
    find_workers,
    model_of,
    peak_memory_bytes,
    time_stages,
)
from distillery.telemetry import Event

MIN_BATCHES = 3
"""For an interval, and for a factor between two models."""
STUDENT_QUANTILES = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Of Student's t at 97.5 %, for 2, 3, ... 10 degrees of freedom."""


@dataclass(frozen=True)
class ImageTime:
    """How long one image of a model took on one device.

    Attributes:
        seconds: from a batch's beginning to its saved files.
        decode_s: of these seconds, the VAE's; None where it was not told.
        peak_memory_bytes: the most that one of its processes held; None where it was not told.
        low, high: the 95 % interval over batches; None for fewer than `MIN_BATCHES`.
    """

    seconds: float
    num_images: int
    devices: tuple[str, ...]
    decode_s: float | None = None
    peak_memory_bytes: int | None = None
    num_batches: int = 1
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> ConfidenceInterval:
        """The seconds, with their interval."""
        return ConfidenceInterval(self.seconds, self.low, self.high)


def time_images(
    attempts: Sequence[Attempt], recipes: Mapping[str, Container[str]]
) -> dict[str, ImageTime]:
    """Seconds per image of each sampled model, from batch to saved file, on one device.

    The first batch of an attempt loads the model and compiles, so it is left out; a model all of
    whose attempts had one batch is not in the answer.

    Args:
        recipes: the hashes of those of each model's present images; attempts of others are left
            out. All count of a model that is not among them, and those that tell none.
    """
    by_model: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        if attempt.stage == "samples" and attempt.work:
            model, recipe = model_of(attempt), attempt.work[0].facts.get("recipe")
            if recipe is None or model not in recipes or recipe in recipes[model]:
                by_model.setdefault(model, []).append(attempt)
    times = {model: _time_images(tries) for model, tries in by_model.items()}
    return {model: time for model, time in times.items() if time is not None}


def _time_images(attempts: Sequence[Attempt]) -> ImageTime | None:
    """Of one model; None where all its attempts had one batch."""
    events = [it for attempt in attempts for it in attempt.work[1:] if it.num_items]
    if not events:
        return None
    num_images = sum(event.num_items for event in events)
    told = [event.facts.get("decode_s") for event in events]
    decoding = [float(seconds) for seconds in told if seconds is not None]
    seconds = sum(event.end_s - event.begin_s for event in events) / num_images
    spread = _log_reach(events, seconds)
    return ImageTime(
        seconds=seconds,
        num_images=num_images,
        devices=tuple(sorted({f"{event.device} on {event.host}" for event in events})),
        decode_s=sum(decoding) / num_images if len(decoding) == len(events) else None,
        peak_memory_bytes=peak_memory_bytes(attempts),
        num_batches=len(events),
        low=seconds * math.exp(-spread) if spread else None,
        high=seconds * math.exp(spread) if spread else None,
    )


def _log_reach(events: Sequence[Event], seconds: float) -> float:
    """How far the interval of the logarithm of seconds per image reaches; 0 for too few batches.

    The standard error is that of a ratio of two sums over batches (Cochran 1977, eq. 6.13): the
    last batch of a chunk may hold fewer images.
    """
    number = len(events)
    if number < MIN_BATCHES or seconds <= 0:
        return 0.0
    images_b = np.array([event.num_items for event in events], dtype=np.float64)
    seconds_b = np.array([event.end_s - event.begin_s for event in events])
    squares = float(np.sum((seconds_b - seconds * images_b) ** 2))
    error = math.sqrt(squares * number / (number - 1)) / float(images_b.sum())
    # Times of day are told to a microsecond or so: a smaller spread is rounding.
    return 0.0 if error < 1e-6 * seconds else student_quantile(number - 1) * error / seconds


def student_quantile(freedom: int) -> float:
    """Of Student's t at 97.5 %; from 11 degrees of freedom on by its expansion, to 0.2 %."""
    if freedom - 2 < len(STUDENT_QUANTILES):
        return STUDENT_QUANTILES[freedom - 2]
    z = NORMAL_QUANTILE
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def speed_ratio(slow: ImageTime | None, fast: ImageTime | None) -> ConfidenceInterval | None:
    """How many times faster one model is than another; None where one has too few batches."""
    if slow is None or fast is None or min(slow.num_batches, fast.num_batches) < MIN_BATCHES:
        return None
    reach = math.hypot(*(math.log((it.high or it.seconds) / it.seconds) for it in (slow, fast)))
    ratio = slow.seconds / fast.seconds
    return ConfidenceInterval.of(ratio, ratio * math.exp(-reach), ratio * math.exp(reach))


# ---- all times ----------------------------------------------------------------------------------


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
    roles: Roles, samples: Mapping[str, ModelSamples], images: Mapping[str, ImageTime]
) -> dict[str, float | None] | None:
    """How many times faster the student is than the reference; None without both.

    Under `speeds.MIN_BATCHES` batches of each there is no factor.
    """
    student, reference = roles.student, roles.reference
    if student is None or not {student, reference} <= set(samples):
        return None
    calls = {name: samples[name].network_calls for name in (student, reference)}
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
