"""Let the teacher walk on from states that a student visited: one shard of a round.

python -m distillery.stages.round_targets --config results/demo/config/rounds.json \\
    --prompts results/demo/prompts/train.parquet \\
    --embeddings results/demo/embeddings/train/manifest.json \\
    --states results/demo/rounds/1/states/shard-0-of-4.json --number 1 \\
    --shard 0/4 --output results/demo/rounds/1/shard-0-of-4.json

From each state it takes its own steps to the student's next knot: for a student of n steps a state
costs an n-th of a trajectory.
"""

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

import pandas as pd
import torch

from distillery import cli
from distillery.config.jobs import RoundsJob
from distillery.generation.chunked import ChunkPlan, advise_not_finite, check_finite, make_chunks
from distillery.generation.targets import plan_of_targets, targets_recipe
from distillery.generation.teacher_walk import TeacherWalk
from distillery.store.chunks import ChunkIdentity, read_chunk
from distillery.store.embeddings import EmbeddingStore
from distillery.store.recipes import TargetsRecipe, VisitedRecipe
from distillery.store.shards import Manifest
from distillery.store.tables import read_table
from distillery.teacher.folder import find_teacher
from distillery.teacher.loading import torch_dtype
from distillery.telemetry import Reporter
from distillery.training.drawing import with_what_fits
from distillery.training.own_teacher import OwnTeacher


def make_round_targets(
    job: RoundsJob,
    prompts: Path,
    embeddings: Path,
    states: Path,
    number: int,
    shard: tuple[int, int],
    output: Path,
    device: torch.device,
    reporter: Reporter,
) -> None:
    """Make one shard's chunks of states and where the teacher goes from them.

    Args:
        job: frozen configuration.
        prompts: table of the train split.
        embeddings: manifest of the train split.
        states: manifest of the same shard's states.
        number: of the round, from 1.
        shard: the i-th of n balanced ranges of chunks, from 0.
        output: the shard's manifest to write; the chunks go to a folder beside it.
        device: for the teacher.
        reporter: of this job.
    """
    table = read_table(prompts)
    store = EmbeddingStore(embeddings, table)
    folder = find_teacher(job.teacher)
    recipe = targets_recipe(job.targets_job, folder, store.recipe_hash)
    plans = plan_of_targets(job.targets_job, folder, table)
    weights = [folder.path / name for name in folder.denoisers]
    maker = VisitedMaker(job, recipe, table, store, states, device, weights)
    reporter.info(f"round {number}: the teacher walks on from {states}")
    make_chunks(maker.recipe.to_json(), plans, shard, maker.make, output, reporter, " states")


class VisitedMaker:
    """Asks a teacher that is loaded when the first missing chunk asks for it."""

    def __init__(
        self,
        job: RoundsJob,
        of_targets: TargetsRecipe,
        table: pd.DataFrame,
        store: EmbeddingStore,
        states: Path,
        device: torch.device,
        weights: Sequence[Path],
    ) -> None:
        """Read the states' manifest; see `make_round_targets` for the arguments."""
        self.job, self.of_targets, self.device = job, of_targets, device
        self.table, self.store, self._weights = table, store, weights
        self.states, self.folder = Manifest.read(states), states.parent
        self.recipe = VisitedRecipe(
            kind="visited",
            version=job.rounds_version,
            states=self.states.recipe_hash,
            targets=of_targets.hash,
            steps=job.student.steps,
        )

    def make(self, plan: ChunkPlan) -> dict[str, torch.Tensor]:
        """The tensors of one chunk: see `store.visited`."""
        listed = next(chunk for chunk in self.states.chunks if chunk.index == plan.index)
        identity = ChunkIdentity(self.states.recipe_hash, plan.members)
        stored = read_chunk(self.folder / listed.file, identity)
        before = stored["noisy"][:, 0].float().to(self.device)
        segments, prompt_rows = stored["segment"].tolist(), stored["prompt_row"].tolist()
        ask = partial(self._ask, before, segments, prompt_rows)
        after = with_what_fits(ask, self._batch_size(len(before)), self.device)
        ids = [str(self.table["prompt_id"].iloc[row]) for row in prompt_rows]
        advice = advise_not_finite(self.job.teacher.dtype, self._weights)
        check_finite(after, ids, "the teacher, from the student's states,", advice)
        ends = after.cpu().to(torch_dtype(self.job.targets.dtype))
        return stored | {"noisy": torch.stack([stored["noisy"][:, 0], ends], dim=1)}

    def _ask(
        self, states: torch.Tensor, segments: list[int], prompt_rows: list[int], size: int
    ) -> torch.Tensor:
        return OwnTeacher(self._walk, size).advance(states, segments, prompt_rows)

    def _batch_size(self, num_samples: int) -> int:
        """Samples of a call at first; fewer where they do not fit."""
        chosen = self.job.targets.batch_size
        return num_samples if chosen == "auto" else chosen

    @cached_property
    def _walk(self) -> TeacherWalk:
        job = self.job
        return TeacherWalk.load(
            job.teacher, self.of_targets, self.store, job.student.steps, None, self.device
        )


def main(argv: list[str] | None = None) -> int:
    """The command line of this stage."""
    name = "round-targets-{number}-{shard[0]}-of-{shard[1]}"
    return cli.run(make_round_targets, __doc__, argv, job=name)


if __name__ == "__main__":
    raise SystemExit(main())
