"""The merge stages: many shards to one manifest, complete and verified."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from distillery.files import atomic_path, hash_file
from distillery.store.shards import merge_shards


def merge_targets(shards: Sequence[Path], output: Path) -> None:
    """Verify every chunk of every shard and write the one manifest that training reads."""
    merge_shards(shards, output.parent).write(output)


def merge_samples(shards: Sequence[Path], output: Path) -> None:
    """Join the shards' tables in the prompt table's order, after looking at every file.

    Raises:
        ValueError: a picture or its latents are missing or damaged, or stand in two shards.
    """
    parts = [pd.read_parquet(path) for path in shards]
    # An empty shard has no column types of its own to offer.
    table = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    duplicated = table.duplicated(["prompt_id", "index"])
    if duplicated.any():
        raise ValueError(
            f"{table.loc[duplicated, 'file'].iloc[0]} stands in two of the shards "
            f"{', '.join(map(str, shards))}: delete the stale one and rerun"
        )
    for row in table.to_dict("records"):
        for file, digest in (
            (row["file"], row["sha256"]),
            (row["latents_file"], row["latents_sha256"]),
        ):
            path = output.parent / file
            if not path.is_file() or hash_file(path) != digest:
                raise ValueError(
                    f"{path} is missing or damaged: delete {shards[row['shard']]} and rerun, "
                    "only what is missing is made again"
                )
    with atomic_path(output) as temporary:
        table.drop(columns="shard").to_parquet(temporary, index=False)
