"""Work lists: which chunks a job makes, what it vouches for, and the merge of all vouchers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from distillery.files import hash_file, read_json, write_json
from distillery.store.chunks import ChunkIdentity, DamagedChunkError, chunk_path, read_chunk


def balanced_range(num_items: int, part: int, num_parts: int) -> range:
    """The items of one part when `num_items` are dealt in order, sizes differing by at most one.

    Five items on four parts are 2, 1, 1, 1; a part may be empty.
    """
    if not 0 <= part < num_parts:
        raise ValueError(f"part is {part}: it must be from 0 to {num_parts - 1}")
    size, extra = divmod(num_items, num_parts)
    start = part * size + min(part, extra)
    return range(start, start + size + (part < extra))


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
    """A complete, verified set of chunks of one recipe; `file`s are relative to its folder.

    Attributes:
        recipe: everything that the tensors depend on.
        recipe_hash: its hash, which every chunk carries.
        chunks: in the order of their index, without gaps.
    """

    recipe: dict[str, Any]
    recipe_hash: str
    chunks: tuple[ChunkRecord, ...]

    @property
    def num_samples(self) -> int:
        """Samples in all chunks."""
        return sum(chunk.num_samples for chunk in self.chunks)

    def write(self, path: Path) -> None:
        """Write atomically; the same chunks give the same bytes (no times, no host names)."""
        write_json(
            path,
            {
                "recipe": self.recipe,
                "recipe_hash": self.recipe_hash,
                "num_samples": self.num_samples,
                "chunks": [vars(chunk) for chunk in self.chunks],
            },
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a manifest that `write` wrote."""
        raw = read_json(path)
        chunks = tuple(ChunkRecord(**chunk) for chunk in raw["chunks"])
        return cls(raw["recipe"], raw["recipe_hash"], chunks)


def describe_chunk(
    folder: Path, index: int, root: Path, members: str, num_samples: int
) -> ChunkRecord:
    """The record of a finished chunk, with the hash of the file as it lies on the disk."""
    path = chunk_path(folder, index)
    return ChunkRecord(
        index, path.relative_to(root).as_posix(), hash_file(path), members, num_samples
    )


def write_shard(
    path: Path, recipe: dict[str, Any], recipe_hash: str, chunks: Sequence[ChunkRecord]
) -> None:
    """Write what one job vouches for: its part of the manifest, in the same form."""
    Manifest(recipe, recipe_hash, tuple(chunks)).write(path)


def merge_shards(shards: Iterable[Path], root: Path) -> Manifest:
    """Merge all shards: one recipe, no gap, every byte of every chunk verified.

    Args:
        shards: the shard manifests.
        root: the folder that the chunks' `file`s are relative to.

    Raises:
        ValueError: shards of different recipes, or a missing chunk index.
        DamagedChunkError, ForeignChunkError: see `chunks`.
    """
    parts = {path: Manifest.read(path) for path in shards}
    recipes = {part.recipe_hash: path for path, part in parts.items()}
    if len(recipes) != 1:
        named = ", ".join(f"{path} has {recipe[:12]}" for recipe, path in recipes.items())
        raise ValueError(f"the shards are of different recipes ({named}): delete the stale one")
    chunks = sorted((c for part in parts.values() for c in part.chunks), key=lambda c: c.index)
    if [chunk.index for chunk in chunks] != list(range(len(chunks))):
        raise ValueError(
            f"the shards do not cover every chunk once: {[chunk.index for chunk in chunks]}; "
            "delete the shard files and rerun, finished chunks are kept"
        )
    first = next(iter(parts.values()))
    for path, part in parts.items():
        _verify(path, part, root)
    return Manifest(first.recipe, first.recipe_hash, tuple(chunks))


def _verify(path: Path, part: Manifest, root: Path) -> None:
    """Read every chunk of a shard; a damaged one is named with the way to mend it."""
    for chunk in part.chunks:
        try:
            read_chunk(root / chunk.file, ChunkIdentity(part.recipe_hash, chunk.members))
        except DamagedChunkError as error:
            raise DamagedChunkError(
                f"{error}. To do that: delete {path} and rerun; finished chunks are kept"
            ) from error
