"""Stored targets at states that the student visited itself, beside those of trajectories.

What `online` asks a teacher beside the student, jobs of their own have asked here: round after
round they stored where the student of the round before stands, one state a trajectory, and where
the teacher goes from there. All rounds so far are learned from (DAgger, Ross et al. 2011,
arXiv:1011.0686, which aggregates them too). Here are the training's part and these jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import torch

from distillery.config.jobs import RoundsJob
from distillery.config.phases import Span
from distillery.config.section import Compile
from distillery.config.ways import Rounds
from distillery.families import Setting, Size
from distillery.files import repair_hint
from distillery.generation.chunked import ChunkPlan, advise_not_finite, check_finite, make_chunks
from distillery.generation.generator import Generator
from distillery.generation.targets import (
    calls_of,
    plan_of_targets,
    prompt_rows_of,
    targets_recipe,
)
from distillery.generation.teacher_walk import TeacherWalk
from distillery.generation.trajectory import record
from distillery.model_folder import check_student
from distillery.noise import seed_of
from distillery.run_folder import RunFolder, round_manifest
from distillery.store.belonging import check_student_of
from distillery.store.chunks import ChunkIdentity, read_chunk
from distillery.store.embeddings import EmbeddingStore
from distillery.store.recipes import StatesRecipe, TargetsRecipe, VisitedRecipe
from distillery.store.shards import Manifest
from distillery.store.tables import read_table
from distillery.store.visited import VisitedStore
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.loading import load_exact_student, torch_dtype
from distillery.telemetry import Reporter
from distillery.training.data import SegmentDataset
from distillery.training.target_teacher import OwnTeacher
from distillery.training.ways.drawing import with_what_fits
from distillery.training.ways.way import Way

if TYPE_CHECKING:
    from distillery.config.training import Training
    from distillery.training.batches import Batches
    from distillery.training.run import Inputs


class RoundsDataset(SegmentDataset):
    """The stored trajectories, and from `first_visited` on the states of round after round."""

    def open_more(self, inputs: Inputs, training: Training) -> None:
        """The rounds' stores, see `add`."""
        if inputs.rounds is None:
            raise ValueError(
                "training.phases has rounds and there are no --rounds: give their folder"
            )
        self.add([round_manifest(inputs.rounds, number) for number in training.round_numbers])

    def add(self, manifests: Sequence[Path]) -> None:
        """Open the rounds' stores.

        Raises:
            ValueError: one is of other trajectories than this data set's, or of a student of other
                steps.
            DamagedChunkError: a chunk is missing or truncated.
        """
        self.rounds = [VisitedStore(path) for path in manifests]
        for path, store in zip(manifests, self.rounds, strict=True):
            if (store.recipe.targets, store.recipe.steps) != (self.recipe_hash, self.steps):
                raise ValueError(
                    f"{path} is of trajectories {store.recipe.targets[:12]} and a student of "
                    f"{store.recipe.steps} steps, this training of {self.recipe_hash[:12]} and "
                    f"{self.steps}: restore the configuration, or {repair_hint(path)}"
                )

    def name(self, item: int) -> str:
        """An item in words."""
        if item < self.first_visited:
            return super().name(item)
        number, trajectory = self._visited(item)
        of_trajectory = super().name(trajectory * self.steps + self._segment(item))
        return f"{of_trajectory} (round {number + 1})"

    def _pair(self, item: int, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        if item < self.first_visited:
            return super()._pair(item, first, last)
        number, trajectory = self._visited(item)
        return self.rounds[number].pair(trajectory)

    def _segment(self, item: int) -> int:
        if item < self.first_visited:
            return super()._segment(item)
        number, trajectory = self._visited(item)
        return self.rounds[number].segment(trajectory)

    def _trajectory(self, item: int) -> int:
        if item < self.first_visited:
            return super()._trajectory(item)
        return self._visited(item)[1]

    def _visited(self, item: int) -> tuple[int, int]:
        """An item's round, from 0, and its trajectory."""
        return divmod(item - self.first_visited, self.num_trajectories)


def visited_segment(seed: int, number: int, sample: str, steps: int) -> int:
    """Before which of the student's `steps` a round takes a sample's state: any but the first,
    which begins at noise, where the trajectory is."""
    return 1 + seed_of(f"round\n{seed}\n{number}\n{sample}") % (steps - 1)


def places_in_round(span: Span, start: int, stop: int) -> tuple[range, range, range]:
    """What the positions [start, stop) of the stream are, which lie in one round.

    A round's even places are of trajectories, whose order goes on from before the rounds, its odd
    ones of visited states, in an order of their own.

    Returns:
        The places in the round; the positions of the even ones in the stream of trajectories, and
        of the odd ones in the round's stream of states.
    """
    first, last = start - span.begin, stop - span.begin
    done = span.since + (span.number - 1) * -(-span.phase.samples // 2)
    of_trajectories = range(done + -(-first // 2), done + -(-last // 2))
    return range(first, last), of_trajectories, range(first // 2, last // 2)


class RoundsWay(Way[Rounds]):
    """Half of each batch is of trajectories, half of states that the student visited."""

    source = RoundsDataset

    def items(self, batches: Batches, span: Span, start: int, stop: int) -> list[int]:
        """At positions that lie in one round: see `places_in_round`."""
        dataset = batches.dataset
        places, of_trajectories, of_states = places_in_round(span, start, stop)
        next_known = iter(batches.segments(of_trajectories.start, of_trajectories.stop))
        next_visited = (
            earlier * dataset.num_trajectories + trajectory
            for earlier, trajectory in batches.learned(span.number, of_states.start, of_states.stop)
        )
        return [
            dataset.first_visited + next(next_visited) if place % 2 else next(next_known)
            for place in places
        ]


# ---- the jobs of a round: where the student stands, and where the teacher goes on ---------------


def make_round_states(
    job: RoundsJob,
    prompts: Path,
    embeddings: Path,
    pipeline: Path,
    number: int,
    shard: tuple[int, int],
    output: Path,
    device: torch.device,
    reporter: Reporter,
    compile_: Compile = "auto",
    run_folder: RunFolder | None = None,
) -> None:
    """Make one shard's chunks of states.

    Args:
        job: frozen configuration.
        prompts: table of the train split.
        embeddings: manifest of the train split.
        pipeline: folder of the student's pipeline, as it was before this round.
        number: of the round, from 1.
        shard: the i-th of n balanced ranges of chunks, from 0.
        output: the shard's manifest to write; the chunks go to a folder beside it.
        device: for the student.
        reporter: of this job.
        compile_: networks on a GPU; auto: large ones in long runs.
        run_folder: that the student has to belong to; None: to any.
    """
    if run_folder is not None:
        check_student_of(run_folder, pipeline, is_trained=True)
    check_student(pipeline)
    table = read_table(prompts)
    store = EmbeddingStore(embeddings, table)
    teacher = find_teacher(job.teacher)
    of_targets = targets_recipe(job.targets_job, teacher, store.recipe_hash).hash
    student = PipelineFolder(pipeline)
    maker = StateMaker(job, table, store, student, number, of_targets, device, reporter, compile_)
    plans = plan_of_targets(job.targets_job, teacher, table)
    make_chunks(maker.recipe.to_json(), plans, shard, maker.make, output, reporter, " states")


class StateMaker:
    """Walks with a student that is loaded when the first missing chunk asks for it."""

    def __init__(
        self,
        job: RoundsJob,
        table: pd.DataFrame,
        store: EmbeddingStore,
        folder: PipelineFolder,
        number: int,
        of_targets: str,
        device: torch.device,
        reporter: Reporter,
        compiling: Compile,
    ) -> None:
        """Nothing heavy is loaded here.

        Args: as for `make_round_states`; `folder` is the student's pipeline, `of_targets` the hash
        of the trajectories' recipe.
        """
        self.job, self.number = job, number
        targets, steps = job.targets, job.student.steps
        self.recipe = StatesRecipe(
            kind="states",
            version=job.rounds_version,
            number=number,
            targets=of_targets,
            pipeline=folder.fingerprint(),
            steps=steps,
            dtype=job.teacher.dtype,
            stored_dtype=targets.dtype,
            batch_size=targets.batch_size,
            chunk_size=targets.chunk_size,
        )
        is_guided_by_input = folder.family.has_guidance_embedding(folder.denoiser_config)
        setting = Setting(
            Size.of(job.teacher),
            targets.guidance_scale if is_guided_by_input else 1.0,
        )
        calls = calls_of(job, folder.family, table, store, steps, setting)
        absent = folder.family.text_components
        self._generator = Generator(
            calls,
            lambda: load_exact_student(job.teacher, folder, device, absent),
            targets.batch_size,
            targets.chunk_size,
            device,
            reporter,
            compiling,
        )

    def make(self, plan: ChunkPlan) -> dict[str, torch.Tensor]:
        """The tensors of one chunk: see `store.visited`."""
        targets, rows = self.job.targets, plan.rows
        segments = torch.tensor([self._segment(row) for row in rows])
        states = torch.cat([states for _, states in self._generator.map(rows, self._run)])
        # The first of them is that before the second step.
        chosen = states[torch.arange(len(rows)), segments - 1].unsqueeze(1)
        return {
            "noisy": chosen.to(torch_dtype(targets.dtype)),
            "segment": segments,
            "prompt_row": prompt_rows_of(rows, targets),
        }

    def _segment(self, row: int) -> int:
        """Before which step a sample's state is taken."""
        sample = str(self._generator.calls.samples[row])
        return visited_segment(self.job.seed, self.number, sample, self.job.student.steps)

    def _run(self, rows: Sequence[int], size: int) -> torch.Tensor:
        """One walk: all its states but the noise and the end, (b, steps - 1, *latent) float32."""
        generator, knots = self._generator, range(1, self.job.student.steps)
        with record(generator.pipeline.scheduler, knots) as trajectory:
            generator.run(rows, size)
        states = trajectory.stack(knots)[: len(rows)].cpu()
        ids = [generator.calls.samples[row].prompt_id for row in rows]
        who = f"the student after {self.number - 1} rounds"
        check_finite(states, ids, who, "look at its images and at the alarms of its training")
        return states


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
    weights = [folder.read_from(name) for name in folder.denoisers]
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
