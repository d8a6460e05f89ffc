"""Which files are gone though a store's manifests list them: by names and sizes, without reading.

A listing per folder answers it for all files in it; contents are for the jobs and for `verify`.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pandas as pd

from distillery.store.sample_files import IMAGE, LATENTS, SPAN_COLUMNS, paths_listed
from distillery.store.shards import Manifest, manifests_listing
from distillery.store.tables import read_table


@dataclass(frozen=True)
class Lacking:
    """What one store lacks.

    Attributes:
        files: listed ones that are gone or empty, in the order of their names.
        num_listed: how many are listed.
        manifests: those that list any of them; removed too, they make Snakemake make the files.
    """

    files: tuple[Path, ...] = ()
    num_listed: int = 0
    manifests: tuple[Path, ...] = ()


def lacking_chunks(root: Path, recipe_hash: str) -> Lacking:
    """What a store of chunks lacks.

    Args:
        root: the folder of its manifests.
        recipe_hash: nothing is looked for where manifests are of another.
    """

    def listed_by(path: Path) -> Iterable[str]:
        manifest = Manifest.read(path)
        is_ours = manifest.recipe_hash == recipe_hash
        return [chunk.file for chunk in manifest.chunks] if is_ours else []

    return _lacking(root, "json", listed_by, manifests_listing)


def lacking_images(folder: Path) -> Lacking:
    """What a model's samples lack, images and latents."""

    return _lacking(
        folder, "parquet", lambda table: paths_listed(_read_names(table)), tables_listing
    )


def tables_listing(folder: Path, *files: str) -> list[Path]:
    """The tables in a folder that list any of some images, latents or tars; unreadable ones
    count."""
    return [table for table in sorted(folder.glob("*.parquet")) if _lists(table, set(files))]


def _lists(table: Path, files: set[str]) -> bool:
    try:
        listed = _read_names(table)
        names = (*(set(listed[kind]) for kind in (IMAGE, LATENTS)), paths_listed(listed))
        return not all(files.isdisjoint(each) for each in names)
    except (ValueError, KeyError, OSError):
        return True


def _read_names(table: Path) -> pd.DataFrame:
    return read_table(table, (IMAGE, LATENTS, *SPAN_COLUMNS))


def _lacking(
    root: Path,
    suffix: str,
    listed_by: Callable[[Path], Iterable[str]],
    manifests_of: Callable[..., list[Path]],
) -> Lacking:
    """Of the merged manifest's files, or, before the merge, of those of all shards.

    A shard beside a merged manifest may be of an earlier configuration. Of a damaged manifest
    nothing is told: the job that reads it says so.
    """
    merged = root / f"manifest.{suffix}"
    listed: set[str] = set()
    for path in [merged] if merged.is_file() else sorted(root.glob(f"*.{suffix}")):
        try:
            listed |= set(listed_by(path))
        except (ValueError, KeyError, OSError):
            continue
    gone = sorted(_gone(root, listed))
    files = tuple(root / file for file in gone)
    return Lacking(files, len(listed), tuple(manifests_of(root, *gone)) if gone else ())


def _gone(root: Path, listed: Iterable[str]) -> set[str]:
    """Those of some files, relative to a folder, that are not there or empty."""
    by_folder: dict[PurePosixPath, set[str]] = defaultdict(set)
    for file in listed:
        path = PurePosixPath(file)
        by_folder[path.parent].add(path.name)
    return {
        (folder / name).as_posix()
        for folder, names in by_folder.items()
        for name in names - _filled(root / folder)
    }


def _filled(folder: Path) -> set[str]:
    """The names of a folder's files that hold anything; none where there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if _size(entry)}
    except OSError:
        return set()


def _size(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat().st_size if entry.is_file() else 0
    except OSError:  # a link to nothing
        return 0
