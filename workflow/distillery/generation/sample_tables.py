"""The shards of one model's samples become one manifest, after every file was looked at."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd

from distillery.files import MAX_THREADS, repair_hint
from distillery.store.footers import recipe_in
from distillery.store.sample_files import IMAGE, LATENTS, SampleFile, sample_files
from distillery.store.tables import read_table, write_table

AT_ONCE = 64
"""Files that threads read and hash ahead."""


def merge_samples(shards: Sequence[Path], output: Path) -> None:
    """Join the shards' tables, one size after another, each in the prompt table's order, after
    looking at every file.

    Args:
        shards: the tables of all shards.
        output: the manifest to write.

    Raises:
        ValueError: a shard is missing or of another recipe; an image or its latents are missing or
            damaged, or stand in two shards.
    """
    parts = {path: read_table(path) for path in shards}
    # An empty shard has no column types of its own to offer.
    filled = sorted((path for path in shards if len(parts[path])), key=lambda p: _place(parts[p]))
    _check_set(parts, filled)
    table = pd.concat([parts[path] for path in filled], ignore_index=True)
    duplicated = table.duplicated(["prompt_id", "index"])
    if duplicated.any():
        raise ValueError(
            f"{table.loc[duplicated, 'file'].iloc[0]} stands in two of the shards "
            f"{', '.join(map(str, shards))}: {repair_hint(*shards)}"
        )
    for path in filled:
        _verify(path, parts[path], output.parent)
    made_with = {recipe_in(path) for path in shards}
    is_known = len(made_with) == 1
    write_table(table.drop(columns="shard"), output, made_with.pop() if is_known else None)


def _place(part: pd.DataFrame) -> tuple[int, int]:
    """(i, n) of a shard that is not empty."""
    shard, _, whole = str(part["shard"].iloc[0]).partition("/")
    return int(shard), int(whole)


def _check_set(parts: Mapping[Path, pd.DataFrame], filled: Sequence[Path]) -> None:
    """Raise ValueError unless these are all shards of one recipe."""
    if not filled:
        raise ValueError(f"there is no image in {', '.join(map(str, parts))}")
    wholes = sorted({_place(parts[path])[1] for path in filled})
    if wholes != [len(parts)]:
        raise ValueError(
            f"these are {len(parts)} shards of a set of {' and '.join(map(str, wholes))}: merge "
            "all shards of one run"
        )
    recipes = {recipe: path for path in filled for recipe in parts[path]["recipe"].unique()}
    if len(recipes) != 1:
        named = ", ".join(f"{path} has {recipe[:12]}" for recipe, path in recipes.items())
        raise ValueError(f"the shards are of different recipes ({named}): {repair_hint(*parts)}")


def _verify(shard: Path, part: pd.DataFrame, folder: Path) -> None:
    """Compare every file of a shard with its hash."""
    with ThreadPoolExecutor(MAX_THREADS) as threads:
        for kind in (IMAGE, LATENTS):
            for files in sample_files(folder, part, kind, AT_ONCE):
                for file, is_whole in zip(
                    files, threads.map(SampleFile.is_whole, files), strict=True
                ):
                    if not is_whole:
                        hint = repair_hint(*file.remade_without, shard)
                        raise ValueError(f"{file} is missing or damaged: {hint}")
