"""What the telemetry says of a training: speed, memory, saves, alarms; and its previews."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from distillery.images import find_moments, is_preview, thin_out
from distillery.report.image_grid import inline, link_to
from distillery.report.timeline import RANK
from distillery.run_folder import RunFolder
from distillery.store.tables import read_table
from distillery.telemetry import Event

STAGE = "training"
MAX_MOMENTS = 6
"""Columns of previews in the report."""
MAX_PROMPTS = 8
"""Rows of it."""


@dataclass(frozen=True)
class Process:
    """One process of the training over all its attempts.

    Attributes:
        rank: its number, from 0.
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
class RaisedAlarm:
    """An alarm as `training.alarms.Alarm` has it, and when it rang."""

    name: str
    subject: str
    value: float
    threshold: float
    meaning: str
    advice: str
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
        processes: by rank.
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
        events: of the run, in their order.
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


# ---- previews ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """One image of the sheet."""

    uri: str
    link: str
    width: int
    height: int


@dataclass(frozen=True)
class PreviewSheet:
    """Previews over time.

    Attributes:
        moments: samples seen, one a column.
        rows: prompt and its images, one a moment; and the teacher's, or None.
    """

    moments: Sequence[int]
    rows: Sequence[tuple[str, Sequence[Shown], Shown | None]]

    @property
    def has_teacher(self) -> bool:
        """Whether there is a last column."""
        return any(teacher is not None for *_, teacher in self.rows)


def gather_previews(
    run_folder: RunFolder, recipes: Sequence[str], teacher: str | None, output_folder: Path
) -> PreviewSheet | None:
    """The previews of this training, thinned out; None without any.

    Args:
        recipes: as for `gather_training`.
        teacher: the model whose samples have the same noise and many steps, for the last column.
        output_folder: where the report will lie; links are relative to it.
    """
    root, table = run_folder.previews, run_folder.prompts("eval")
    if not table.is_file():
        return None
    texts = read_table(table).set_index("prompt_id")["prompt"].head(MAX_PROMPTS)
    prompts = {
        str(name): str(text)
        for name, text in texts.items()
        if any(
            is_preview(path, recipe, text)
            for path in root.glob(f"samples-*/{name}.png")
            for recipe in recipes
        )
    }
    if not prompts:
        return None
    found = {moment for recipe in recipes for moment in find_moments(root, prompts, recipe)}
    moments = thin_out(sorted(found), MAX_MOMENTS)
    if not moments:
        return None
    rows = []
    for name, text in prompts.items():
        teacher_image = run_folder.sample_folder / str(teacher) / name / "0.png"
        shown = [_show(moment / f"{name}.png", output_folder) for moment in moments]
        last = _show(teacher_image, output_folder) if teacher_image.is_file() else None
        rows.append((text, shown, last))
    return PreviewSheet([int(moment.name.split("-")[1]) for moment in moments], rows)


def _show(path: Path, output_folder: Path) -> Shown:
    with Image.open(path) as image:
        uri, width, height = inline(path, image.convert("RGB"))
    return Shown(uri, link_to(path, output_folder), width, height)
