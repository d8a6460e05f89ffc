"""Make the chunks of a work list that are not there yet: what embeddings and targets share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from distillery.config.section import Dtype
from distillery.files import hash_json
from distillery.stage import balanced_range
from distillery.store.chunks import (
    ChunkIdentity,
    chunk_folder,
    chunk_path,
    is_intact,
    write_chunk,
)
from distillery.store.shards import ChunkRecord, Manifest, describe_chunk
from distillery.telemetry import Reporter

MAX_NAMED = 5


class NotFiniteError(ValueError):
    """Values of a chunk are infinite or no numbers; the other chunks can still be made.

    Attributes:
        prompts: for which.
        advice: the end of the message.
    """

    def __init__(self, who: str, prompts: Sequence[str], advice: str) -> None:
        """The message names some of the prompts, each whole."""
        more = f" and {len(prompts) - MAX_NAMED:,} more" if len(prompts) > MAX_NAMED else ""
        named = f"{', '.join(prompts[:MAX_NAMED])}{more}"
        super().__init__(f"{who} gave values that are not finite for {named}: {advice}")
        self.who, self.prompts, self.advice = who, tuple(prompts), advice


def advise_not_finite(dtype: Dtype, weights: Sequence[Path]) -> str:
    """What to do about a teacher's values that are not finite.

    Args:
        weights: folders or files of the networks that gave them.
    """
    read = " or ".join(map(str, weights))
    if dtype != "float32":
        wider = "float32" if dtype == "bfloat16" else "bfloat16 or float32"
        return (
            f"teacher.dtype is {dtype}, try {wider}; if that changes nothing, the weights in "
            f"{read} may be damaged"
        )
    return f"teacher.dtype is float32, so the weights in {read} may be damaged: get them again"


def check_finite(values: torch.Tensor, prompt_ids: Sequence[str], who: str, advice: str) -> None:
    """Raise NotFiniteError that names the prompts whose values are not finite.

    Args:
        values: (b, ...).
        prompt_ids: of the b samples.
        advice: the end of the message.
    """
    finite = values.flatten(1).isfinite().all(dim=1).tolist()
    bad = [name for name, is_good in zip(prompt_ids, finite, strict=True) if not is_good]
    if bad:
        raise NotFiniteError(who, [f"prompt {name}" for name in bad], advice)


@dataclass(frozen=True)
class ChunkPlan:
    """One chunk to make.

    Attributes:
        index: global number of the chunk.
        members: digest of its members and all they depend on.
        rows: of its members, in the order of the whole work.
        about: facts for people in its header.
    """

    index: int
    members: str
    rows: Sequence[int]
    about: Mapping[str, Any]

    @property
    def num_samples(self) -> int:
        """Number of its members."""
        return len(self.rows)


def make_chunks(
    recipe: dict[str, Any],
    plans: Sequence[ChunkPlan],
    shard: tuple[int, int],
    make: Callable[[ChunkPlan], Mapping[str, torch.Tensor]],
    output: Path,
    reporter: Reporter,
    unit: str,
) -> None:
    """Make what is missing or damaged of one shard, then write the shard's manifest.

    Args:
        recipe: all that the bytes depend on, beside the members.
        plans: all chunks of the stage.
        shard: (i, n): the i-th of n balanced ranges of them is made.
        make: computes a chunk's tensors; called only for chunks that are not there.
        output: the manifest to write at the end; chunks go to a folder of the recipe beside it.
        unit: what a sample is called in the progress bar.

    Raises:
        NotFiniteError: `make` raised it for some chunks; all others were made first.
        ForeignChunkError: a chunk of another recipe lies where one of this should.
    """
    recipe_hash = hash_json(recipe)
    folder = chunk_folder(output.parent, recipe_hash)
    shard_plans = [plans[index] for index in balanced_range(len(plans), *shard)]
    records, failures, num_made = list[ChunkRecord](), list[NotFiniteError](), 0
    with reporter.progress(sum(plan.num_samples for plan in shard_plans), unit) as bar:
        for plan in shard_plans:
            identity = ChunkIdentity(recipe_hash, plan.members)
            try:
                is_made = _make_missing(plan, folder, identity, make, reporter)
                num_made += is_made
                records.append(
                    describe_chunk(
                        folder, plan.index, output.parent, plan.members, plan.num_samples
                    )
                )
            except NotFiniteError as error:
                reporter.info(f"chunk {plan.index}: {error}")  # told at the end, once
                failures.append(error)
                is_made = True
            (bar.update if is_made else bar.find)(plan.num_samples)
    reporter.info(what_was_made(num_made, len(failures), len(shard_plans), "chunks"))
    if failures:
        who = f"{len(failures)} of {len(shard_plans)} chunks could not be made: {failures[0].who}"
        prompts = [prompt for failure in failures for prompt in failure.prompts]
        raise NotFiniteError(who, prompts, failures[0].advice)
    Manifest(recipe, recipe_hash, tuple(records), len(plans)).write(output)


def what_was_made(num_made: int, num_failed: int, total: int, unit: str) -> str:
    """What a job tells of its work list at its end."""
    if not num_made and not num_failed:
        return f"all {total:,} {unit} were there, none was made"
    failed = f", {num_failed:,} failed" if num_failed else ""
    there = total - num_made - num_failed
    return f"{num_made:,} of {total:,} {unit} made, {there:,} were there{failed}"


def _make_missing(
    plan: ChunkPlan,
    folder: Path,
    identity: ChunkIdentity,
    make: Callable[[ChunkPlan], Mapping[str, torch.Tensor]],
    reporter: Reporter,
) -> bool:
    """Make one chunk unless it is there, whole; returns whether it was made."""
    path = chunk_path(folder, plan.index)
    if is_intact(path, identity):
        return False
    if path.exists():
        reporter.warning(f"{path} is damaged or of other prompts: it is made again")
    with reporter.work(plan.num_samples, chunk=plan.index):
        write_chunk(path, make(plan), identity, plan.about)
    return True
