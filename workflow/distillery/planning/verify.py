"""What is damaged of a run, file by file, and the commands that make it again."""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from distillery.config.jobs import JOBS, RUNTIME, read_config, read_frozen
from distillery.files import hash_file, read_sealed, repair_commands
from distillery.generation.sample_folder import identity_in, member_of
from distillery.model_folder import find_changes, read_metadata
from distillery.noise import SampleId
from distillery.planning.strangers import Damage, Item, other_settings, strangers
from distillery.prompts import made_of_rows
from distillery.run_folder import RunFolder
from distillery.store.chunks import (
    ChunkIdentity,
    DamagedChunkError,
    chunk_folder,
    read_chunk,
    read_identity,
)
from distillery.store.lacking import tables_listing
from distillery.store.shards import Manifest, manifests_listing
from distillery.store.tables import find_problem, read_table
from distillery.student.export import CARD
from distillery.telemetry import Reporter
from distillery.training import checkpoint
from distillery.watched import TOLD, is_watched
from distillery.words import counted

MAX_THREADS = 8
MAX_NAMED = 5
"""Runs that a message names."""
STUDENTS = ("initial", "trained", "pipeline", "untrained", "trained-*-rounds", "*-rounds")
Claims = list[tuple[ChunkIdentity, str]]
"""What manifests say of one file: its identity, and its SHA-256."""


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
    items = list(_find_items(run))
    damages = []
    with (
        reporter.progress(len(items), " files") as bar,
        ThreadPoolExecutor(MAX_THREADS) as threads,
    ):
        for item, why in zip(items, threads.map(_read, items), strict=True):
            if why is not None:
                damages.append(Damage(item, why))
            bar.update()
    known = {damage.item.path for damage in damages}
    unlisted = sum(not item.is_listed and item.path not in known for item in items)
    notes: list[str] = []
    try:
        config = read_config(run.config("run"))
    except (OSError, ValueError):  # none yet; a damaged one is told
        pass
    else:
        others = strangers(config, run, reporter, is_whole=not damages)
        damages += [each for each in others if each.item.path not in known]
        notes = other_settings(config, run)
    return Verified(damages, len(items) - unlisted, unlisted, notes)


def commands(damages: Iterable[Damage], run: RunFolder) -> list[str]:
    """The shell commands that make again what is damaged."""
    damaged = [damage.item for damage in damages]
    paths = [path for item in damaged for path in (item.path, *item.manifests())]
    paths = [path for path in paths if not set(paths).intersection(path.parents)]
    named = [str(item.path) for item in damaged if not item.is_asked_for]
    return repair_commands(paths, run.config("run"), named)


def _read(item: Item) -> str | None:
    """Why an item is damaged or cannot be read; None if it is whole."""
    try:
        return item.find_problem()
    except OSError as error:
        return _unreadable(error)


def _find_items(run: RunFolder) -> Iterator[Item]:
    for path in [*_matches(run.config("*"), run), *_matches(run.plan, run)]:
        yield Item(path, partial(_problem_of, read_frozen, path), is_asked_for=False)
    rounds = (run.visited("*"), run.states_shard("*", "*"))
    for manifest in (run.embeddings("*"), run.targets, *rounds):
        for root in _matches(manifest.parent, run):
            yield from _find_chunks(root)
    losses = (run.loss, run.loss_after("*"))
    for tables in (run.prompts("*"), run.samples("*").with_stem("*"), *losses, run.scores):
        for path in _matches(tables, run):
            yield Item(path, partial(_problem_of_table, path))
    for folder in _matches(run.sample_folder / "*", run):
        yield from _find_images(folder)
    yield from _find_students(run)
    for path in _matches(run.quality, run):
        yield Item(path, partial(_problem_of, read_sealed, path))


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


def _find_chunks(root: Path) -> Iterator[Item]:
    """A store's manifests, and all chunks that they list or that lie there."""
    claims: dict[str, Claims] = defaultdict(list)
    needed: set[str] = set()
    merged = root / "manifest.json"
    for path in sorted(root.glob("*.json")):
        yield Item(path, partial(_problem_of, Manifest.read, path))
        if _problem_of(Manifest.read, path) is not None:
            continue
        manifest = Manifest.read(path)
        for chunk in manifest.chunks:
            identity = ChunkIdentity(manifest.recipe_hash, chunk.members)
            claims[chunk.file].append((identity, chunk.sha256))
        if path == merged or not merged.is_file():  # a shard may be of an earlier configuration
            needed |= {chunk.file for chunk in manifest.chunks}
    there = {path.relative_to(root).as_posix() for path in root.glob("*/chunk-*.safetensors")}
    listed = _identities(claims)
    for file in sorted(needed | there):
        check = partial(_problem_of_file, root / file, claims[file], listed, _identify_chunk)
        listing = partial(manifests_listing, root, file)
        yield Item(root / file, check, listing, is_listed=bool(claims[file]))


def _find_images(folder: Path) -> Iterator[Item]:
    """A model's images and latents that its tables list, or that lie there."""
    claims: dict[str, Claims] = defaultdict(list)
    needed: set[str] = set()
    merged = folder / "manifest.parquet"
    for path in sorted(folder.glob("*.parquet")):
        if _problem_of_table(path) is not None:
            continue
        table = read_table(path)
        # A table does not say whether its images were guided by negative prompts, or whose their
        # sizes were.
        for guided, sized in product((False, True), repeat=2):
            made_of = made_of_rows(table, guided, sized)
            for row, parts in zip(table.to_dict("records"), made_of, strict=True):
                member = member_of(SampleId(row["prompt_id"], row["index"]), parts)
                identity = ChunkIdentity(row["recipe"], member)
                claims[row["file"]].append((identity, row["sha256"]))
                claims[row["latents_file"]].append((identity, row["latents_sha256"]))
        if path == merged or not merged.is_file():
            needed |= {*table["file"], *table["latents_file"]}
    there = [*folder.glob("*/*.png"), *folder.glob("*/*.safetensors")]
    listed = _identities(claims)
    for file in sorted(needed | {path.relative_to(folder).as_posix() for path in there}):
        path = folder / file
        identify = identity_in if path.suffix == ".png" else _identify_chunk
        check = partial(_problem_of_file, path, claims[file], listed, identify)
        listing = partial(tables_listing, folder, file)
        yield Item(path, check, listing, is_listed=bool(claims[file]))


def _identities(claims: Mapping[str, Claims]) -> set[ChunkIdentity]:
    return {identity for listed in claims.values() for identity, _ in listed}


def _problem_of_file(
    path: Path,
    claims: Claims,
    listed: Container[ChunkIdentity],
    identify: Callable[[Path], ChunkIdentity | None],
) -> str | None:
    """Why a chunk, an image or its latents is damaged.

    A whole one that no manifest lists is not damaged: the job that makes it has not ended yet.

    Args:
        claims: what manifests say of it.
        listed: the identities of all files that they list.
        identify: reads a file's identity.
    """
    if not path.is_file():
        return "it is missing"
    digest = hash_file(path)
    if any(digest == expected for _, expected in claims):
        return None
    identity = identify(path)
    if identity is None:
        return "its bytes do not match its checksums"
    if any(identity == expected for expected, _ in claims):
        return "its bytes are not those that its manifests list"
    if not claims:
        return None
    if identity in listed:
        return "it is another file's content"
    return "it is whole, but not what its manifests list: it is of other settings or another run"


def _identify_chunk(path: Path) -> ChunkIdentity | None:
    """The identity of a chunk's file; None where it is no chunk, or damaged."""
    try:
        identity = read_identity(path)
        read_chunk(path, identity)
    except DamagedChunkError:
        return None
    return identity


def _problem_of(read: Callable[[Path], object], path: Path) -> str | None:
    """Why a JSON file is damaged."""
    try:
        read(path)
    except ValueError:
        return "it is not what was written"
    except OSError as error:
        return _unreadable(error)
    return None


def _problem_of_table(path: Path) -> str | None:
    try:
        return find_problem(path.read_bytes())
    except OSError as error:
        return _unreadable(error)


def _unreadable(error: OSError) -> str:
    """As of a folder in a file's place, or a bad disk."""
    return f"it cannot be read: {error.strerror or error}"


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
