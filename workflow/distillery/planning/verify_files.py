"""The chunks, images and latents of a run to verify: what is listed, and what lies beside it."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from distillery.files import hash_file
from distillery.generation.sample_folder import identity_in
from distillery.generation.sample_store import member_of
from distillery.generation.sample_tars import SUFFIXES, read_about
from distillery.noise import SampleId
from distillery.planning.strangers import Item
from distillery.prompts import made_of_rows
from distillery.store.chunks import ChunkIdentity, DamagedChunkError, read_chunk, read_identity
from distillery.store.lacking import tables_listing
from distillery.store.sample_files import (
    HASHES,
    IMAGE,
    LATENTS,
    SPAN_COLUMNS,
    TarFile,
    is_of_tars,
    sample_files,
)
from distillery.store.shards import Manifest, manifests_listing
from distillery.store.tables import find_problem, read_table
from distillery.store.tars import PART, TARS, samples_in
from distillery.words import counted

KINDS = (IMAGE, LATENTS)
ROWS_AT_ONCE = 10_000
Claims = list[tuple[ChunkIdentity, str]]
"""What manifests say of one file: its identity, and its SHA-256."""


def find_chunks(root: Path) -> Iterator[Item]:
    """A store's manifests, and all chunks that they list or that lie there."""
    claims: dict[str, Claims] = defaultdict(list)
    needed: set[str] = set()
    merged = root / "manifest.json"
    for path in sorted(root.glob("*.json")):
        yield Item(path, partial(problem_of, Manifest.read, path))
        if problem_of(Manifest.read, path) is not None:
            continue
        manifest = Manifest.read(path)
        for chunk in manifest.chunks:
            identity = ChunkIdentity(manifest.recipe_hash, chunk.members)
            claims[chunk.file].append((identity, chunk.sha256))
        if path == merged or not merged.is_file():  # a shard may be of an earlier configuration
            needed |= {chunk.file for chunk in manifest.chunks}
    there = {path.relative_to(root).as_posix() for path in root.glob("*/chunk-*.safetensors")}
    for file in sorted(needed | there):
        check = partial(_problem_of_file, root / file, "", lambda: claims, file, _identify_chunk)
        listing = partial(manifests_listing, root, file)
        yield Item(root / file, check, listing, is_listed=bool(claims[file]))


def find_images(folder: Path) -> Iterator[Item]:
    """A model's images and latents that its tables list, or that lie there."""
    whole = [path for path in sorted(folder.glob("*.parquet")) if problem_of_table(path) is None]
    tables, tars = Tables(folder, whole), set[Path]()
    for table in map(tables.read, tables.needed):
        if is_of_tars(table):
            for name, rows in table.groupby(table[IMAGE].str.partition("/")[0]):
                tar = folder / str(name)
                listing = partial(tables_listing, folder, tar.name)
                check = partial(_problem_of_tar, tar, rows)
                yield Item(tar, check, listing, is_removed=False)
                tars.add(tar)
            continue
        for kind in KINDS:
            for files in sample_files(folder, table, kind, ROWS_AT_ONCE):
                yield from (tables.item(file.name, file.sha256) for file in files)
    for tar in sorted({*folder.glob(TARS), *folder.glob(TARS + PART)} - tars):
        yield Item(tar, lambda: None, is_listed=False)
    beside = _files_beside(folder)
    yield from (tables.item(name, "") for name in beside if not tables.needs(name))


@dataclass(frozen=True)
class Tables:
    """A model's whole tables. Their rows are read as often as it takes, and not held as objects.

    Attributes:
        paths: of all of them.
    """

    folder: Path
    paths: Sequence[Path]

    @property
    def needed(self) -> Sequence[Path]:
        """The merged one, or, before the merge, those of all shards; a shard beside a merged one
        may be of an earlier configuration."""
        merged = self.folder / "manifest.parquet"
        return [it for it in self.paths if it == merged] if merged.is_file() else self.paths

    def read(self, path: Path) -> pd.DataFrame:
        """What a table says of files."""
        return read_table(path, (*KINDS, *HASHES.values(), *SPAN_COLUMNS))

    def item(self, file: str, sha256: str) -> Item:
        """An image or latents; `sha256` is what the table that needs it says."""
        path = self.folder / file
        is_listed = bool(sha256) or _has(self._listed, file)
        identify = identity_in if path.suffix == ".png" else _identify_chunk
        claims = (lambda: self.claims) if is_listed else dict
        check = partial(_problem_of_file, path, sha256, claims, file, identify)
        listing = partial(tables_listing, self.folder, file)
        return Item(path, check, listing, is_listed=is_listed)

    def needs(self, file: str) -> bool:
        """Whether a file is one of those that `needed` list."""
        return _has(self._needed, file)

    @cached_property
    def _needed(self) -> npt.NDArray[np.int64]:
        return self._names(self.needed)

    @cached_property
    def _listed(self) -> npt.NDArray[np.int64]:
        return self._names(self.paths)

    def _names(self, paths: Iterable[Path]) -> npt.NDArray[np.int64]:
        """Hashes of the files' names, in order: a set of a million names would take 0.2 GB."""
        tables = map(self.read, paths)
        found = [np.fromiter(map(hash, it[kind]), np.int64) for it in tables for kind in KINDS]
        return np.unique(np.concatenate([*found, np.array([], np.int64)]))

    @cached_property
    def claims(self) -> dict[str, Claims]:
        """By file, of all tables; asked for where a file is not what its table says."""
        claims: dict[str, Claims] = defaultdict(list)
        for path in self.paths:
            table = read_table(path)
            # A table does not say whether its images were guided by negative prompts, or whose
            # their sizes were.
            for guided, sized in product((False, True), repeat=2):
                made_of = made_of_rows(table, guided, sized)
                for row, parts in zip(table.to_dict("records"), made_of, strict=True):
                    member = member_of(SampleId(row["prompt_id"], row["index"]), parts)
                    identity = ChunkIdentity(row["recipe"], member)
                    for kind in KINDS:
                        claims[row[kind]].append((identity, row[HASHES[kind]]))
        return claims


def _has(names: npt.NDArray[np.int64], name: str) -> bool:
    """Whether a name is among those of `Tables._names`."""
    place = np.searchsorted(names, hash(name))
    return bool(place < len(names) and names[place] == hash(name))


def _files_beside(folder: Path) -> Iterator[str]:
    """Images and latents in files of their own, in the order of their names."""
    for inner in sorted(path for path in folder.glob("*") if path.is_dir()):
        for name in sorted(path.name for path in inner.iterdir()):
            if name.endswith((".png", ".safetensors")):
                yield f"{inner.name}/{name}"


def _problem_of_tar(tar: Path, rows: pd.DataFrame) -> str | None:
    """Which of the files that a tar should have are not there, whole; None where all are.

    Args:
        rows: of the table that needs it.
    """
    if not tar.is_file():
        return "it is missing"
    files = (it for kind in KINDS for it in sample_files(tar.parent, rows, kind, ROWS_AT_ONCE))
    missing = {it.name: it for each in files for it in each}
    for sample in samples_in(tar):
        about = read_about(tar, sample)
        if about is None:
            continue
        for kind, suffix in SUFFIXES.items():
            name = f"{tar.name}/{sample.name}.{suffix}"
            found = TarFile(tar.parent, name, about[HASHES[kind]], sample.files[suffix])
            if missing.get(name) == found:
                del missing[name]
    if not missing:
        return None
    count = f"{len(missing):,} of {counted(2 * len(rows), 'file')}"
    first = next(iter(missing)).partition("/")[2]
    return f"{count} in it are not what its table lists, such as {first}"


def _problem_of_file(
    path: Path,
    sha256: str,
    claims: Callable[[], Mapping[str, Claims]],
    file: str,
    identify: Callable[[Path], ChunkIdentity | None],
) -> str | None:
    """Why a chunk, an image or its latents is damaged.

    A whole one that no manifest lists is not damaged: the job that makes it has not ended yet.

    Args:
        sha256: as the manifest that needs it says; empty: see the claims.
        claims: what all manifests say, by file; asked for where that is not enough.
        file: its name in the manifests.
        identify: reads a file's identity.
    """
    if not path.is_file():
        return "it is missing"
    digest = hash_file(path)
    if digest == sha256:
        return None
    everything = claims()
    own = everything.get(file, [])
    if any(digest == expected for _, expected in own):
        return None
    identity = identify(path)
    if identity is None:
        return "its bytes do not match its checksums"
    if any(identity == expected for expected, _ in own):
        return "its bytes are not those that its manifests list"
    if not own:
        return None
    if any(identity == expected for listed in everything.values() for expected, _ in listed):
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


def problem_of(read: Callable[[Path], object], path: Path) -> str | None:
    """Why a JSON file is damaged."""
    try:
        read(path)
    except ValueError:
        return "it is not what was written"
    except OSError as error:
        return unreadable(error)
    return None


def problem_of_table(path: Path) -> str | None:
    """Why a table is damaged."""
    try:
        return find_problem(path)
    except OSError as error:
        return unreadable(error)


def unreadable(error: OSError) -> str:
    """As of a folder in a file's place, or a bad disk."""
    return f"it cannot be read: {error.strerror or error}"
