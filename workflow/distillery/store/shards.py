"""Work lists: which chunks a job makes, the manifest that lists them, and the merge of all."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

from distillery.files import (
    hash_file,
    hash_files,
    hash_json,
    read_sealed,
    repair_hint,
    write_sealed,
)
from distillery.store.chunks import (
    ChunkIdentity,
    DamagedChunkError,
    StaleChunkError,
    check_header,
    chunk_path,
)

_CHUNK_FILE = re.compile(r'"([^"]*\.safetensors)"')


@dataclass(frozen=True)
class ChunkRecord:
    """One chunk as a manifest lists it."""

    index: int
    file: str
    sha256: str
    members: str
    num_samples: int


@dataclass(frozen=True)
class Manifest:
    """A verified set of chunks of one recipe; `file`s are relative to its folder.

    Attributes:
        recipe: everything that the tensors depend on.
        recipe_hash: its hash, which every chunk carries.
        chunks: in the order of their index, without gaps.
        num_chunks: of the whole set that a shard is a part of; None: these are all.
    """

    recipe: dict[str, Any]
    recipe_hash: str
    chunks: tuple[ChunkRecord, ...]
    num_chunks: int | None = None

    @property
    def num_samples(self) -> int:
        """Samples in all chunks."""
        return sum(chunk.num_samples for chunk in self.chunks)

    def place(self, sample: int) -> tuple[int, int]:
        """The chunk and the row in it where a sample is, counted through all chunks."""
        chunk = bisect_right(self.ends, sample)
        return chunk, sample - (self.ends[chunk - 1] if chunk else 0)

    @cached_property
    def ends(self) -> list[int]:
        """How many samples there are up to the end of each chunk."""
        return list(accumulate(chunk.num_samples for chunk in self.chunks))

    @property
    def total(self) -> int:
        """Chunks of the whole set."""
        return len(self.chunks) if self.num_chunks is None else self.num_chunks

    def write(self, path: Path) -> None:
        """Write atomically; the same chunks give the same bytes (no times, no host names)."""
        write_sealed(
            path,
            {
                "recipe": self.recipe,
                "recipe_hash": self.recipe_hash,
                "num_samples": self.num_samples,
                "num_chunks": self.total,
                "chunks": [vars(chunk) for chunk in self.chunks],
            },
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote, a shard or all; raises ValueError for anything else."""
        raw = read_sealed(path)
        try:
            chunks = tuple(ChunkRecord(**chunk) for chunk in raw["chunks"])
            manifest = cls(raw["recipe"], raw["recipe_hash"], chunks, raw["num_chunks"])
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is no manifest of this version ({error}): {repair_hint(path)}"
            ) from error
        if hash_json(manifest.recipe) != manifest.recipe_hash:
            raise ValueError(
                f"{path} gives a recipe whose hash is not its recipe_hash: {repair_hint(path)}"
            )
        return manifest

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read a manifest and check that all its chunks are listed, present and of its recipe.

        Only headers are read; `merge_shards` verified the bytes of targets, readers of embeddings
        verify them.

        Raises:
            ValueError: a shard's manifest, which lists some of the chunks.
            DamagedChunkError, ForeignChunkError: see `chunks.check_header`; with the cure.
        """
        manifest = cls.read(path)
        if len(manifest.chunks) != manifest.total:
            raise ValueError(
                f"{path} lists {len(manifest.chunks)} of {manifest.total} chunks: give the "
                "manifest.json that is merged from all shards"
            )
        manifest.check_headers(path.parent)
        return manifest

    def check_headers(self, root: Path) -> None:
        """Check that all listed chunks are present and of its recipe; raises as `open`."""
        for chunk in self.chunks:
            try:
                check_header(root / chunk.file, ChunkIdentity(self.recipe_hash, chunk.members))
            except (DamagedChunkError, StaleChunkError) as error:
                raise type(error)(f"{error}: {chunk_repair_hint(root, chunk)}") from error


def chunk_repair_hint(root: Path, chunk: ChunkRecord) -> str:
    """The advice to make one chunk again: remove it, and all manifests that list it.

    Both the shard's and the merged one: when one file is asked for by name, and not `all`,
    Snakemake overlooks a missing shard behind a merged manifest that is there.
    """
    return repair_hint(root / chunk.file, *manifests_listing(root, chunk.file))


def manifests_listing(root: Path, *files: str) -> list[Path]:
    """The manifests in a folder that list any of some chunks' files, damaged ones too; merged one
    first."""
    paths = [path for path in sorted(root.glob("*.json")) if path.is_file()]
    return [path for path in paths if not set(files).isdisjoint(_chunks_named_in(path))]


def _chunks_named_in(manifest: Path) -> list[str]:
    """The chunks' files in a manifest, by its text: it may be damaged."""
    return _CHUNK_FILE.findall(manifest.read_text(encoding="utf-8", errors="replace"))


def describe_chunk(
    folder: Path, index: int, root: Path, members: str, num_samples: int
) -> ChunkRecord:
    """The record of a finished chunk, with the hash of the file as it lies on the disk."""
    path = chunk_path(folder, index)
    return ChunkRecord(
        index, path.relative_to(root).as_posix(), hash_file(path), members, num_samples
    )


def merge_targets(shards: Sequence[Path], output: Path) -> None:
    """Verify every chunk of every shard and write the one manifest that training reads.

    Args:
        shards: the manifests of all shards.
        output: the manifest to write.
    """
    merge_shards(shards, output.parent).write(output)


def merge_shards(shards: Iterable[Path], root: Path) -> Manifest:
    """Merge all shards: one recipe, no gap, every byte of every chunk verified.

    Args:
        root: the folder that the chunks' `file`s are relative to.

    Raises:
        ValueError: shards of different recipes or prompt tables, or a missing chunk index.
        DamagedChunkError, ForeignChunkError: see `chunks`.
    """
    parts = {path: Manifest.read(path) for path in shards}
    recipes = {part.recipe_hash: path for path, part in parts.items()}
    if len(recipes) != 1:
        named = ", ".join(f"{path} has {recipe[:12]}" for recipe, path in recipes.items())
        raise ValueError(f"the shards are of different recipes ({named}): {repair_hint(*parts)}")
    chunks = sorted((c for part in parts.values() for c in part.chunks), key=lambda c: c.index)
    _check_cover(chunks, parts)
    first = next(iter(parts.values()))
    for path, part in parts.items():
        _verify(path, part, root)
    return Manifest(first.recipe, first.recipe_hash, tuple(chunks))


def _check_cover(chunks: Sequence[ChunkRecord], parts: Mapping[Path, Manifest]) -> None:
    """Raise ValueError unless all shards are parts of one set and hold each chunk of it once."""
    indices = [chunk.index for chunk in chunks]
    totals = {part.total for part in parts.values()}
    if len(totals) != 1:
        raise ValueError(
            f"the shards are parts of sets of {' and '.join(map(str, sorted(totals)))} chunks, the "
            f"prompts changed between them: {repair_hint(*parts)}"
        )
    missing = sorted(set(range(*totals)) - set(indices))
    twice = sorted(index for index, count in Counter(indices).items() if count > 1)
    if missing or twice:
        raise ValueError(
            f"the shards do not hold every chunk once (missing: {missing or 'none'}, twice: "
            f"{twice or 'none'}): merge all shards of one run; if it is all of them, "
            f"{repair_hint(*parts)}"
        )


def _verify(path: Path, part: Manifest, root: Path) -> None:
    """Read every byte of a shard's chunks; a bad one is named with how to repair it."""
    part.check_headers(root)
    digests = hash_files(root / chunk.file for chunk in part.chunks)
    for chunk in part.chunks:
        if digests[root / chunk.file] != chunk.sha256:
            raise DamagedChunkError(
                f"{root / chunk.file} is not what {path} lists: {chunk_repair_hint(root, chunk)}"
            )
