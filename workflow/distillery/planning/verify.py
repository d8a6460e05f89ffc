"""What is damaged of a run, file by file, and the commands that make it again."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from distillery.config.jobs import JOBS, RUNTIME, read_config, read_frozen
from distillery.files import read_sealed, repair_commands
from distillery.measures.vision import in_batches
from distillery.model_folder import find_changes, read_metadata
from distillery.planning.strangers import Damage, Item, other_settings, strangers
from distillery.planning.verify_files import (
    find_chunks,
    find_images,
    problem_of,
    problem_of_table,
    unreadable,
)
from distillery.run_folder import RunFolder
from distillery.store.chunks import (
    chunk_folder,
)
from distillery.student.export import CARD
from distillery.telemetry import Reporter
from distillery.training import checkpoint
from distillery.watched import TOLD, is_watched
from distillery.words import counted

MAX_THREADS = 8
MAX_NAMED = 5
"""Runs that a message names."""
AT_ONCE = 256
"""Files that threads read ahead."""
STUDENTS = ("initial", "trained", "pipeline", "untrained", "trained-*-rounds", "*-rounds")


@dataclass(frozen=True)
class Verified:
    """What was found of a run.

    Attributes:
        num_read: files and folders that were read and compared with what is known of them.
        num_unlisted: whole files beside them that no manifest lists.
        notes: what is whole, and follows other settings than the run's now are.
    """

    damages: list[Damage]
    num_read: int
    num_unlisted: int
    notes: list[str]


def verify(run: RunFolder, reporter: Reporter) -> Verified:
    """Read all there is of a run; a run that is not finished has less."""
    total, unlisted, damages = sum(1 for _ in _find_items(run)), 0, []
    with (
        reporter.progress(total, " files") as bar,
        ThreadPoolExecutor(MAX_THREADS) as threads,
    ):
        # A few at once: all of a million images would take gigabytes.
        for items in in_batches(_find_items(run), AT_ONCE):
            for item, why in zip(items, threads.map(_read, items), strict=True):
                if why is not None:
                    damages.append(Damage(item, why))
                unlisted += why is None and not item.is_listed
                bar.update()
    known = {damage.item.path for damage in damages}
    notes: list[str] = []
    try:
        config = read_config(run.config("run"))
    except (OSError, ValueError):  # none yet; a damaged one is told
        pass
    else:
        others = strangers(config, run, reporter, is_whole=not damages)
        damages += [each for each in others if each.item.path not in known]
        notes = other_settings(config, run)
    return Verified(damages, total - unlisted, unlisted, notes)


def commands(damages: Iterable[Damage], run: RunFolder) -> list[str]:
    """The shell commands that make again what is damaged."""
    damaged = [damage.item for damage in damages]
    removed = [((item.path,) if item.is_removed else (), item.manifests()) for item in damaged]
    paths = [path for own, manifests in removed for path in (*own, *manifests)]
    paths = [path for path in paths if not set(paths).intersection(path.parents)]
    named = [str(item.path) for item in damaged if not item.is_asked_for]
    return repair_commands(paths, run.config("run"), named)


def _read(item: Item) -> str | None:
    """Why an item is damaged or cannot be read; None if it is whole."""
    try:
        return item.find_problem()
    except OSError as error:
        return unreadable(error)


def _find_items(run: RunFolder) -> Iterator[Item]:
    for path in [*_matches(run.config("*"), run), *_matches(run.plan, run)]:
        yield Item(path, partial(problem_of, read_frozen, path), is_asked_for=False)
    rounds = (run.visited("*"), run.states_shard("*", "*"))
    for manifest in (run.embeddings("*"), run.targets, *rounds):
        for root in _matches(manifest.parent, run):
            yield from find_chunks(root)
    losses = (run.loss, run.loss_after("*"))
    for tables in (run.prompts("*"), run.samples("*").with_stem("*"), *losses, run.scores):
        for path in _matches(tables, run):
            yield Item(path, partial(problem_of_table, path))
    for folder in _matches(run.sample_folder / "*", run):
        yield from find_images(folder)
    yield from _find_students(run)
    for path in _matches(run.quality, run):
        yield Item(path, partial(problem_of, read_sealed, path))


def _matches(pattern: Path, run: RunFolder) -> list[Path]:
    """What there is of a path of the run, whose names may be `*`."""
    return sorted(run.path.glob(str(pattern.relative_to(run.path))))


def _find_students(run: RunFolder) -> Iterator[Item]:
    """The student's folders and checkpoints."""
    named = (folder for name in STUDENTS for folder in _matches(run.student(name), run))
    for folder in dict.fromkeys(named):
        if folder.is_dir():
            yield Item(folder, partial(_problem_of_student, folder))
    for folder in _matches(run.checkpoints / "*" / "samples-*", run):
        if checkpoint.is_one(folder):
            yield Item(folder, partial(_problem_of_checkpoint, folder))


def _problem_of_student(folder: Path) -> str | None:
    """Which files of a student's folder are not as they were written; of its card, if it is there.

    People may change the card of a pipeline, so it has no hash.
    """
    changes = find_changes(folder)
    is_exported = not changes and "call" in read_metadata(folder)
    if is_exported and not (folder / CARD).is_file():
        changes = [CARD]
    return f"not as they were written: {', '.join(changes)}" if changes else None


def _problem_of_checkpoint(folder: Path) -> str | None:
    """Why a training would not take it: it is damaged, or lies among those of another."""
    own = checkpoint.recipe_of(folder)
    if own is not None and chunk_folder(folder.parents[1], own) != folder.parent:
        return f"it is of recipe {own[:12]}"
    return checkpoint.find_problem(folder)


def tell(run: RunFolder, log: Path | None = None) -> bool:
    """Verify a run and print the result; True where nothing is damaged.

    Args:
        log: the job's log file, which gets what is damaged too; there may be none.

    Raises:
        ValueError: there is no such run.
    """
    _check_run(run)
    found = verify(run, Reporter(run.telemetry, "verify", "verify", "cpu"))
    damages, num_read = found.damages, found.num_read
    if not damages:
        print(f"{num_read} files and folders of {run} were read: all are as they were written")
        for line in found.notes:
            print(line)
        if found.num_unlisted:
            files = counted(found.num_unlisted, "file")
            print(f"and {files} that no manifest lists were left as they are")
        print("what is not there at all is not among them: snakemake -n lists what is to be made")
        return True
    count = f"{len(damages)} of {num_read} are damaged"
    lines = [f"{damage.item.path}: {damage.why}" for damage in damages] + found.notes
    lines.append(f"{count}; these commands make them again:")
    lines += [f"    {command}" for command in commands(damages, run)]
    print("\n".join(lines))
    if log is not None:
        lines += [TOLD] if is_watched() else []
        _append(log, [*lines, f"error: {count}; the log has the commands that make them again"])
    return False


def _check_run(run: RunFolder) -> None:
    """Raise ValueError for a folder that is no run, with the runs that are in it or around it."""
    if _is_run(run.path):
        return
    inner = sorted(run.path.iterdir()) if run.path.is_dir() else []
    near = [path for path in (*inner, *run.path.absolute().parents) if _is_run(path)]
    named = " or ".join(map(str, near[:MAX_NAMED])) or "results/NAME, NAME as `run` has it"
    more = f", or one of {len(near) - MAX_NAMED} more" if len(near) > MAX_NAMED else ""
    why = " (it has no config/ of a run)" if run.path.is_dir() else ""
    raise ValueError(f"there is no run in {run}{why}: give {named}{more}")


def _is_run(path: Path) -> bool:
    """Whether a folder has frozen configurations, which a run's first jobs write."""
    names = ("run", RUNTIME, *JOBS)
    return any(RunFolder(path).config(name).is_file() for name in names)


def _append(log: Path, lines: Iterable[str]) -> None:
    """Lines to a log; the terminal has them where it cannot be written."""
    with suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
