"""What of a run may be deleted, what it took to make, and what is lost without it."""

import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from distillery.config.jobs import read_config
from distillery.config.run import Config, RunConfig
from distillery.files import readable
from distillery.locks import hold_run
from distillery.report.timeline import find_attempts
from distillery.run_folder import RunFolder
from distillery.telemetry import read_events
from distillery.words import duration, listed


@dataclass(frozen=True)
class Kind:
    """Files of a run that go together.

    Attributes:
        paths: patterns below the run's folder.
        stages: whose jobs made them.
        serves: what cannot be done without them.
    """

    name: str
    paths: tuple[str, ...]
    stages: tuple[str, ...]
    serves: str


KINDS = (
    Kind("targets", ("targets",), ("targets",), "train this student anew, or another"),
    Kind("embeddings", ("embeddings",), ("embeddings",), "the same; more images"),
    Kind(
        "rounds",
        ("rounds", "student/*-rounds", "student/loss-*-rounds.parquet"),
        ("round_states", "round_targets", "training_before_round"),
        "train this student anew",
    ),
    Kind("checkpoints", ("student/checkpoints",), ("training",), "resume, lengthen, go back"),
    Kind("previews", ("student/previews",), (), "look at them"),
    Kind(
        "untrained",
        ("student/initial", "student/untrained"),
        ("student",),
        "compare with the student before its training",
    ),
    Kind(
        "student",
        ("student/trained", "student/pipeline", "student/loss.parquet"),
        ("training", "export"),
        "draw, judge and publish it",
    ),
    Kind("images", ("samples", "dataset"), ("samples",), "look at them, score them anew"),
    Kind(
        "report",
        ("report", "gallery", "evaluation"),
        ("evaluation", "report"),
        "read it; compare runs",
    ),
)
"""The configurations, prompts, plan, logs and telemetry of a run are small, and stay."""
NAMES = tuple(kind.name for kind in KINDS)


@dataclass(frozen=True)
class Found:
    """What is there of a kind.

    Attributes:
        took_s: seconds of all jobs that made it, by the telemetry; 0 where that does not tell.
    """

    kind: Kind
    paths: Sequence[Path]
    num_bytes: int
    took_s: float


def clean(run: RunFolder, keep: Collection[str] | None, insist: bool = False) -> list[str]:
    """Delete all kinds but those to keep; returns lines that tell it.

    Args:
        run: its folder.
        keep: names of kinds; None: nothing is deleted, and all are listed.
        insist: delete also what could not be made again, or that other runs read.

    Raises:
        ValueError: there is no such run or kind, another process is at work on the run, or more
            would be lost than time, and nobody insists.
    """
    if not run.config("run").is_file():
        raise ValueError(f"there is no run in {run}: give results/RUN")
    config = read_config(run.config("run"))
    there = find_kinds(run)
    if keep is None:
        return [*_table(there), "", "delete all but what you name: --keep student,report"]
    unknown = [name for name in keep if name not in NAMES]
    if unknown:
        raise ValueError(f"--keep names {listed(unknown)}: the kinds are {listed(NAMES)}")
    gone = [found for found in there if found.kind.name not in keep]
    losses = list(_losses(config, run, {found.kind.name for found in gone}))
    if losses and not insist:
        told = "".join(f"\n  {loss}" for loss in losses)
        raise ValueError(f"nothing was deleted:{told}\n  keep these kinds too, or add --insist")
    hold_run(run.path)
    for path in (path for found in gone for path in found.paths):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    freed = readable(sum(found.num_bytes for found in gone))
    return [
        f"deleted {listed([found.kind.name for found in gone]) or 'nothing'}, {freed}",
        "a run of the same configuration would make again what is gone; distillery evaluate and "
        "distillery draw need the student alone",
    ]


def find_kinds(run: RunFolder) -> list[Found]:
    """What there is of a run, by kind."""
    attempts = find_attempts(read_events(run.telemetry))
    found = []
    for kind in KINDS:
        paths = [path for pattern in kind.paths for path in sorted(run.path.glob(pattern))]
        took = sum(it.end_s - it.begin_s for it in attempts if it.stage in kind.stages)
        if paths:
            found.append(Found(kind, paths, _size(paths), took))
    return found


def _size(paths: Sequence[Path]) -> int:
    """Bytes that are freed with some files and folders; what is linked elsewhere stays."""
    links: dict[tuple[int, int], list[os.stat_result]] = {}
    for path in paths:
        files = path.rglob("*") if path.is_dir() else [path]
        for status in (file.lstat() for file in files if file.is_file()):
            links.setdefault((status.st_dev, status.st_ino), []).append(status)
    return sum(it[0].st_size for it in links.values() if it[0].st_nlink <= len(it))


def _table(there: Sequence[Found]) -> list[str]:
    """A line for each kind, in columns."""
    heads = ("kind", "size", "took", "without it you cannot")
    rows = [
        (
            it.kind.name,
            readable(it.num_bytes),
            duration(it.took_s) if it.took_s else "?",
            it.kind.serves,
        )
        for it in there
    ]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *rows)
    ]


def _losses(config: RunConfig, run: RunFolder, gone: Collection[str]) -> Iterator[str]:
    """What would be lost for good, or for others."""
    if "student" in gone:
        yield "student: only another training makes it again"
    if "checkpoints" in gone and not (run.student("trained") / "distillery.json").is_file():
        yield "checkpoints: the training is not finished, and would begin anew"
    made = [name for name in ("targets", "embeddings", "images") if name in gone]
    lost = [path for path in (*config.prompts.files, config.teacher.path) if _is_lost(path)]
    if made and lost:
        yield f"{listed(made)}: {listed(lost)}, of which they are made, is not there any more"
    yield from _read_by_others(run, gone)


def _is_lost(path: str) -> bool:
    """Whether a file or folder is gone; what may be an id on the hub is there."""
    is_hub_id = not path.startswith((".", "/")) and path.count("/") == 1 and not Path(path).suffix
    return not Path(path).exists() and not is_hub_id


def _read_by_others(run: RunFolder, gone: Collection[str]) -> Iterator[str]:
    """Kinds that another run beside this one reads."""
    for frozen in sorted(run.path.parent.glob("*/config/run.json")):
        try:
            other = read_config(frozen)
        except (OSError, ValueError):  # damaged, or of another release
            continue
        if not isinstance(other, Config):
            continue
        reads = {
            "targets": other.targets.from_run,
            "embeddings": other.targets.from_run,
            "student": other.student.from_run,
            "untrained": other.student.from_run,
        }
        named = [
            name
            for name, source in reads.items()
            if name in gone and source and Path(source).resolve() == run.path.resolve()
        ]
        if named:
            yield f"{listed(named)}: {RunFolder.of_config(frozen)} reads this run's"
