"""What a report says of a training: facts of the telemetry, and its log in short and as charts."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import pandas as pd

from distillery.config.training import Training
from distillery.measures.measure import PERCENT
from distillery.report.charts import Chart, Series, line_chart
from distillery.report.timeline import RANK
from distillery.student.flow_map import pairs_of
from distillery.telemetry import Event
from distillery.training.watchers.alarms import (
    COMPANIONS,
    HELD_OUT,
    KNOT,
    MAX_HELD_OUT,
    ROLLOUT,
    Alarm,
)
from distillery.words import counted

STAGE = "training"
LAST_SHARE = 0.1
"""Of a training's log, averaged to its final loss."""
DASHES = ((1, 0), (8, 3), (2, 2), (8, 3, 2, 3))
"""Of the segments' lines, in turn: who cannot tell two colours apart sees two lines."""
MAX_LOSS_POINTS = 600
"""Points of a curve; a longer log is averaged down to as many."""


@dataclass(frozen=True)
class Process:
    """One process of the training over all its attempts.

    Attributes:
        peak_memory_bytes: the most that it held.
        waiting_share: of its time, spent waiting for data.
    """

    rank: int
    peak_memory_bytes: int
    waiting_share: float


@dataclass(frozen=True)
class Saves:
    """The checkpoints: their number, how long each stopped the training, and their share of it."""

    number: int
    mean_stall_s: float
    longest_stall_s: float
    share: float


@dataclass(frozen=True)
class RaisedAlarm(Alarm):
    """An alarm, and when it rang."""

    samples_seen: int

    @property
    def title(self) -> str:
        """What rang, in words."""
        words = self.name.replace("_", " ")
        return f"{words}, {self.subject}" if self.subject else words


@dataclass(frozen=True)
class TrainingFacts:
    """The facts of one training.

    Attributes:
        speed: (samples seen, samples per second of all processes together), without drawing.
        saves: None where no checkpoint was reported.
        alarms: in the order they rang.
        taken_up: samples after which earlier trainings ended whose checkpoints it took up.
    """

    speed: Sequence[tuple[float, float]]
    processes: Sequence[Process]
    saves: Saves | None
    alarms: Sequence[RaisedAlarm]
    taken_up: Sequence[int] = ()

    def as_json(self) -> dict[str, Any]:
        """As metrics.json holds it."""
        return asdict(self)


def gather_training(events: Sequence[Event], recipes: Sequence[str]) -> TrainingFacts | None:
    """The facts of a training; None where the telemetry has none.

    An interval that was trained again after an interruption counts once, as it was the last time.

    Args:
        recipes: the hash of its recipe, and those of trainings that do a first part of it.
    """
    training_events = [event for event in events if event.facts.get("recipe") in recipes]
    work = {
        (_rank(event), event.facts["samples_seen"]): event
        for event in training_events
        if event.kind == "work" and event.stage == STAGE
    }
    if not work:
        return None
    rung = {_alarm_of(event): None for event in training_events if event.kind == "alarm"}
    total_s = sum(_seconds(event) for event in work.values() if _rank(event) == 0)
    stalls = [
        float(event.facts["stall_s"])
        for event in events
        if event.kind == "save" and event.begin_s >= min(event.begin_s for event in work.values())
    ]
    return TrainingFacts(
        speed=_speed(list(work.values())),
        processes=_processes(list(work.values())),
        saves=_saves(stalls, total_s),
        alarms=list(rung),
        taken_up=_taken_up(list(work.values()), recipes[1:]),
    )


def _rank(event: Event) -> int:
    """The process that reported; trainings before a round have names of their own."""
    found = RANK.search(event.job)
    return int(found[1]) if found else 0


def _taken_up(work: Sequence[Event], earlier: Sequence[str]) -> list[int]:
    """Where each of the earlier trainings ended that did a part of the work."""
    ends: dict[str, int] = {}
    for event in work:
        recipe, seen = event.facts["recipe"], int(event.facts["samples_seen"])
        if recipe in earlier:
            ends[recipe] = max(seen, ends.get(recipe, 0))
    return sorted(ends.values())


def _alarm_of(event: Event) -> RaisedAlarm:
    """An alarm; a resumed training may report it again, with equal facts."""
    return RaisedAlarm(**{name: event.facts[name] for name in RaisedAlarm.__dataclass_fields__})


def _seconds(event: Event) -> float:
    """Of an interval, without drawing."""
    return max(event.end_s - event.begin_s - float(event.facts.get("drawing_s", 0.0)), 1e-9)


def _speed(work: Sequence[Event]) -> list[tuple[float, float]]:
    """Samples of all processes over the longest of their times, by interval."""
    by_moment: dict[int, list[Event]] = {}
    for event in work:
        by_moment.setdefault(int(event.facts["samples_seen"]), []).append(event)
    return [
        (seen, sum(event.num_items for event in group) / max(map(_seconds, group)))
        for seen, group in sorted(by_moment.items())
    ]


def _processes(work: Sequence[Event]) -> list[Process]:
    """Each process's peak memory, and its share of waiting; rank 0 first."""
    by_rank: dict[int, list[Event]] = {}
    for event in work:
        by_rank.setdefault(_rank(event), []).append(event)
    return [
        Process(
            rank,
            max(int(event.facts["peak_memory_bytes"]) for event in group),
            sum(float(event.facts.get("waiting_s", 0.0)) for event in group)
            / sum(map(_seconds, group)),
        )
        for rank, group in sorted(by_rank.items())
    ]


def _saves(stalls: Sequence[float], total_s: float) -> Saves | None:
    if not stalls:
        return None
    return Saves(len(stalls), sum(stalls) / len(stalls), max(stalls), sum(stalls) / total_s)


# ---- the log in short ---------------------------------------------------------------------------


def summarise_training(
    loss: pd.DataFrame | None, facts: TrainingFacts | None = None
) -> dict[str, Any] | None:
    """First and last of the training's log; the last is the mean of the final tenth.

    A finishing phase of rollouts has a loss of another kind, and so its own first and last.
    `facts` of the telemetry come under their own key.
    """
    if loss is None or loss.empty:
        return None
    is_rollout = find_rollouts(loss)
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


NEAR_LEAST = 1.01
"""A loss within 1 % of the least is level with it: held-out losses are measured to that."""
LATE = 0.9
"""Of the samples: what was still falling then had not ended."""


@dataclass(frozen=True)
class HeldOut:
    """What the losses on trajectories that were never learned from say.

    Attributes:
        least: the lowest, and after how many samples.
        text: in words, with what would help.
    """

    least: float
    least_at: int
    text: str


def find_held_out(loss: pd.DataFrame | None) -> HeldOut | None:
    """Read the curve of held-out losses; None with fewer than three that are finite."""
    if loss is None or HELD_OUT not in loss.columns:
        return None
    kept = loss[loss[HELD_OUT].notna()]
    kept = kept[kept[HELD_OUT].map(math.isfinite)]
    if len(kept) < 3:
        return None
    seen_s, values_s = kept["samples_seen"].to_numpy(), kept[HELD_OUT].to_numpy()
    lowest = int(values_s.argmin())
    least, last = float(values_s[lowest]), float(values_s[-1])
    level_at = int(seen_s[int((values_s <= NEAR_LEAST * least).argmax())])
    text = (
        f"On trajectories that were never learned from the loss was lowest, {least:.4g}, after "
        f"{int(seen_s[lowest]):,} samples"
    )
    if last > MAX_HELD_OUT * least:
        text += (
            f", and rose to {last:.4g} by the end: the student learns its trajectories by heart. "
            "More trajectories would help, more updates would not."
        )
    elif level_at < LATE * seen_s[-1]:
        text += (
            f", and came within {PERCENT(NEAR_LEAST - 1)} of that after {level_at:,}: more updates "
            "alone would help little."
        )
    else:
        text += ": it was still falling, so more samples would help."
    return HeldOut(least, int(seen_s[lowest]), text)


def _finite(value: float) -> float | None:
    """A number that JSON can hold."""
    return float(value) if math.isfinite(value) else None


# ---- the log as charts --------------------------------------------------------------------------


def training_parts(training: Training) -> str:
    """What the samples of a training are, in their order; empty if all are stored segments."""
    return "" if training.is_plain else training.words


def restarts(training: Training) -> list[tuple[int, str]]:
    """After how many samples the learning rate begins anew, and what begins there."""
    if training.schedule == "constant":
        return []
    spans = [span for span in training.spans if span.phase.restarts]
    return [(span.begin, span.title) for span in spans if span.begin > 0]


def loss_charts(
    loss: pd.DataFrame | None, training: Training, timesteps: Sequence[float] = ()
) -> list[Chart]:
    """Loss with its segments, gradient norm and learning rate; empty without training.

    Args:
        timesteps: of the student's steps, for the names of its segments; empty if not known.
    """
    if loss is None or loss.empty:
        return []
    axis = "training samples seen"
    held_out = find_held_out(loss)
    lowest = [(held_out.least_at, "lowest held out")] if held_out else []
    charts = [
        line_chart(
            _losses(loss, timesteps),
            axis,
            "loss",
            "Loss",
            is_wide=True,
            log_from=1.0,
            marks=lowest,
        ),
        line_chart(
            _errors(loss),
            axis,
            "mean square of latents",
            "Distance from the teacher, step by step",
            is_wide=True,
            log_from=1.0,
        ),
        line_chart([_series(loss, "grad_norm", "gradient norm")], axis, "", "Gradient norm"),
        line_chart(
            [_series(loss, "learning_rate", "learning rate")],
            axis,
            "",
            "Learning rate",
            log_from=math.inf,
            marks=restarts(training),
        ),
        *(
            line_chart([_series(loss, f"loss_{name}", "loss")], axis, "", f"Loss of the {name}")
            for name in COMPANIONS
        ),
    ]
    return [chart for chart in charts if chart]


def _losses(loss: pd.DataFrame, timesteps: Sequence[float]) -> list[Series]:
    """All kinds of loss in a training's log: of segments, of all of them, held out, of rollouts."""
    segments = segments_of(loss)
    lines = [
        replace(
            _series(loss, name, title, is_main=False, colour=1 + number % 6),
            dash=DASHES[number % len(DASHES)],
        )
        for number, (name, title) in enumerate(segment_titles(segments, timesteps).items())
    ]
    of_segments = loss.assign(loss=loss["loss"].mask(find_rollouts(loss)))
    name = "all segments" if segments else "loss"
    return [
        *lines,
        _series(of_segments, "loss", name, colour=0),
        _series(loss, HELD_OUT, "held out", has_dots=True, colour=0),
        _series(loss, ROLLOUT, "rollout", colour=7),
    ]


def _errors(loss: pd.DataFrame) -> list[Series]:
    """How far the student's own walks from held-out noise are from the teacher's, by knot."""
    columns = _numbered(loss, KNOT)
    titles = [f"after step {number}" for number in range(1, len(columns))] + ["at the clean end"]
    return [
        _series(loss, column, title, has_dots=True, colour=number % 7)
        for number, (column, title) in enumerate(zip(columns, titles, strict=False))
    ]


def segments_of(loss: pd.DataFrame) -> list[str]:
    """The columns of the segments' losses, in order."""
    return _numbered(loss, "loss_segment_")


def _numbered(loss: pd.DataFrame, beginning: str) -> list[str]:
    """The columns with such a beginning, in the order of the numbers at their ends."""
    names = (name for name in loss.columns if name.startswith(beginning))
    return sorted(names, key=lambda name: int(name.rsplit("_", 1)[1]))


def segment_titles(segments: Sequence[str], timesteps: Sequence[float]) -> dict[str, str]:
    """What each segment is called: its number and, where known, its first and last timestep."""
    names = [f"segment {number}" for number in range(len(segments))]
    pairs = pairs_of(len(timesteps)) if timesteps else ()
    if len(segments) == len(pairs) > len(timesteps):
        names = _names_of_pairs(pairs, timesteps)
    if len(timesteps) == len(segments):
        ends = [f"{timestep:g}" for timestep in timesteps] + ["clean"]
        names = [
            f"{it}, t {begin} to {end}"
            for it, (begin, end) in zip(names, pairwise(ends), strict=True)
        ]
    return dict(zip(segments, names, strict=True))


def _names_of_pairs(pairs: Sequence[tuple[int, int]], timesteps: Sequence[float]) -> list[str]:
    """What the steps of an any-step student are called: from where to where, and of how many."""
    ends = [f"{timestep:g}" for timestep in timesteps] + ["clean"]
    return [
        f"t {ends[first]} to {ends[last]}, of {counted(len(timesteps) // (last - first), 'step')}"
        for first, last in pairs
    ]


def find_rollouts(loss: pd.DataFrame) -> "pd.Series[bool]":
    """Which rows of the log are of the finishing phase, whose loss is of another kind."""
    if ROLLOUT not in loss.columns:
        return pd.Series(False, index=loss.index)
    return loss[ROLLOUT].notna()


def speed_chart(speed: Sequence[tuple[float, float]]) -> Chart | None:
    """Samples per second over the samples seen; None for fewer than two intervals."""
    if len(speed) < 2:
        return None
    table = pd.DataFrame(speed, columns=["samples_seen", "speed"])
    series = _series(table, "speed", "samples per second")
    return line_chart([series], "training samples seen", "", "Training speed, samples per second")


def _series(
    loss: pd.DataFrame,
    column: str,
    name: str,
    is_main: bool = True,
    has_dots: bool = False,
    colour: int | None = None,
) -> Series:
    """A column of the log over the samples seen; without points where there is none.

    Averaged down to `MAX_LOSS_POINTS`, of what was measured.
    """
    if column not in loss.columns:
        return Series(name, ())
    kept = loss[["samples_seen", column]].astype(float)
    size = -(-len(kept) // MAX_LOSS_POINTS)
    if size > 1:
        kept = kept.groupby([number // size for number in range(len(kept))]).mean()
    points = list(zip(kept["samples_seen"].tolist(), kept[column].tolist(), strict=True))
    return Series(name, points, is_main, has_dots, colour)
