"""Make the chunks of a work list that are not there yet: what embeddings and targets share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from distillery.files import hash_json
from distillery.store.chunks import (
    ChunkIdentity,
    chunk_folder,
    chunk_path,
    is_intact,
    write_chunk,
)
from distillery.store.shards import describe_chunk, write_shard
from distillery.telemetry import Reporter


@dataclass(frozen=True)
class ChunkPlan:
    """One chunk to make.

    Attributes:
        index: global number of the chunk.
        members: digest of who is in it and all they depend on.
        num_samples: how many they are.
        about: facts for people in its header.
    """

    index: int
    members: str
    num_samples: int
    about: Mapping[str, Any]


def make_chunks(
    root: Path,
    recipe: dict[str, Any],
    plans: Sequence[ChunkPlan],
    make: Callable[[ChunkPlan], Mapping[str, torch.Tensor]],
    shard: Path,
    reporter: Reporter,
    unit: str,
) -> None:
    """Make what is missing or damaged of `plans`, then write the shard's manifest.

    Args:
        root: folder of the stage; chunks go to a folder of the recipe in it.
        recipe: all that the bytes depend on, beside the members.
        plans: the chunks of this job.
        make: computes a chunk's tensors; called only for chunks that are not there.
        shard: the manifest to write at the end.
        reporter: of the job.
        unit: what a sample is called in the progress bar.
    """
    recipe_hash = hash_json(recipe)
    folder = chunk_folder(root, recipe_hash)
    total = sum(plan.num_samples for plan in plans)
    records = []
    num_kept = 0
    with reporter.progress(total, unit) as bar:
        for plan in plans:
            path = chunk_path(folder, plan.index)
            identity = ChunkIdentity(recipe_hash, plan.members)
            if is_intact(path, identity):
                num_kept += 1
            else:
                if path.exists():
                    reporter.warning(f"{path} is damaged or of other prompts: it is made again")
                with reporter.work(plan.num_samples, chunk=plan.index):
                    write_chunk(path, make(plan), identity, plan.about)
            records.append(describe_chunk(folder, plan.index, root, plan.members, plan.num_samples))
            bar.update(plan.num_samples)
    reporter.info(f"{len(plans)} chunks, {num_kept} of them were there already")
    write_shard(shard, recipe, recipe_hash, records)
