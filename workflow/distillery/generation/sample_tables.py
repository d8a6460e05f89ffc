"""The shards of one model's samples become one manifest, after every file was looked at."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd

from distillery.files import MAX_THREADS, repair_hint
from distillery.store.footers import recipe_in
from distillery.store.sample_files import IMAGE, LATENTS, SampleFile, sample_files
from distillery.store.tables import read_table, write_parts

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
    heads = {path: read_table(path, ("shard", "recipe")) for path in shards}
    # An empty shard has no column types of its own to offer.
    filled = sorted((path for path in shards if len(heads[path])), key=lambda p: _place(heads[p]))
    _check_set(heads, filled)
    made_with = {recipe_in(path) for path in shards}
    is_known = len(made_with) == 1
    recipe = made_with.pop() if is_known else None
    write_parts(_whole_parts(filled, output.parent), filled, output, recipe)


def _whole_parts(shards: Sequence[Path], folder: Path) -> Iterator[pd.DataFrame]:
    """The rows of each shard, whose files were looked at; one shard at a time is in memory."""
    keys = np.array([], np.uint64)
    for path in shards:
        part = read_table(path)
        own = pd.util.hash_pandas_object(part[["prompt_id", "index"]], index=False).to_numpy()
        is_twice = np.isin(own, keys) | pd.Series(own).duplicated().to_numpy()
        if is_twice.any():
            raise ValueError(
                f"{part.loc[is_twice, 'file'].iloc[0]} stands in two of the shards "
                f"{', '.join(map(str, shards))}: {repair_hint(*shards)}"
            )
        keys = np.concatenate([keys, own])
        _verify(path, part, folder)
        yield part.drop(columns="shard")


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
