"""Targets that are made while the student learns, at the states that it visits itself.

Stored targets are of the teacher's trajectories; the student, whose every step is a little off,
soon stands elsewhere. Here it walks from the stored noise by its own steps (no gradient), and the
teacher says where to go from there: its guided steps to the next knot, or fewer of first order. The
target is the secant to that state, as with stored ones. It is DAgger (Ross et al. 2011,
arXiv:1011.0686) with the teacher as the expert.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.distributed as dist

from distillery.config.jobs import TrainingJob
from distillery.config.training import Place, check_teacher_rank
from distillery.generation.teacher_walk import TeacherWalk
from distillery.schedule import add_noise, from_prediction
from distillery.store.trajectories import TrajectoryStore
from distillery.training.batches import Batches
from distillery.training.data import Batch, SegmentDataset, Student, rows
from distillery.training.health import START_LIMIT_S, Watchdog
from distillery.training.objectives import segment_target


class TargetTeacher(Protocol):
    """A teacher, wherever it is."""

    def advance(
        self, states: torch.Tensor, segments: Sequence[int], prompt_rows: Sequence[int]
    ) -> torch.Tensor:
        """The states (b, *latent) float32 at the ends of segments; all ranks call it together.

        Args:
            states: (b, *latent) float32 at their beginnings, with their scale.
            segments: b of the student's.
            prompt_rows: b rows of the prompt table.
        """
        ...

    def advance_all(
        self, states: torch.Tensor, segment: int, prompt_rows: Sequence[int]
    ) -> torch.Tensor:
        """As `advance`, for the same states of one segment on every rank."""
        ...


@dataclass(frozen=True)
class OwnTeacher:
    """A teacher in this process.

    Attributes:
        walk: of it.
        size: samples of one call.
    """

    walk: TeacherWalk
    size: int

    def advance(
        self, states: torch.Tensor, segments: Sequence[int], prompt_rows: Sequence[int]
    ) -> torch.Tensor:
        """In calls of one segment each, since a stock call has one timestep for all."""
        ends = torch.empty_like(states)
        for segment in sorted(set(segments)):
            wanted = [row for row, own in enumerate(segments) if own == segment]
            for start in range(0, len(wanted), self.size):
                part = wanted[start : start + self.size]
                prompts = [prompt_rows[row] for row in part]
                ends[part] = self.walk.advance(states[part], segment, prompts).to(ends.device)
        return ends

    def advance_all(
        self, states: torch.Tensor, segment: int, prompt_rows: Sequence[int]
    ) -> torch.Tensor:
        """Each rank for itself."""
        return self.advance(states, [segment] * len(states), prompt_rows)


@dataclass(frozen=True)
class TeacherOfOneRank:
    """A teacher in one process, which answers all: each rank gets the targets of its own states.

    Attributes:
        rank: that has the teacher.
        own: that teacher, on this rank; None on the others.
        sizes: samples of each rank in an update.
        this_rank: this process's number.
        watchdog: of this process.
    """

    rank: int
    own: OwnTeacher | None
    sizes: Sequence[int]
    this_rank: int
    watchdog: Watchdog

    def advance(
        self, states: torch.Tensor, segments: Sequence[int], prompt_rows: Sequence[int]
    ) -> torch.Tensor:
        """Gather all states, padded to the longest batch, and scatter where the teacher goes."""
        numbers = torch.tensor([segments, prompt_rows], device=states.device).T.contiguous()
        self.watchdog.heartbeat("states for the teacher", waits=True)
        all_states = self._gather(states)
        all_numbers = self._gather(numbers)
        ends: list[torch.Tensor] | None = None
        if self.own is not None:
            assert all_states is not None
            assert all_numbers is not None
            self.watchdog.heartbeat("targets of all ranks", joint=True, limit_s=START_LIMIT_S)
            of_all = torch.cat(all_numbers).T.tolist()
            answers = self.own.advance(torch.cat(all_states), *of_all)
            ends = [self._padded(part) for part in torch.split(answers, list(self.sizes))]
        self.watchdog.heartbeat("targets from the teacher", waits=True, limit_s=START_LIMIT_S)
        received = self._padded(torch.empty_like(states))
        dist.scatter(received, ends, src=self.rank)
        return received[: len(states)]

    def advance_all(
        self, states: torch.Tensor, segment: int, prompt_rows: Sequence[int]
    ) -> torch.Tensor:
        """The teacher's rank for all."""
        ends = torch.empty_like(states)
        if self.own is not None:
            ends = self.own.advance_all(states, segment, prompt_rows)
        dist.broadcast(ends, src=self.rank)
        return ends

    def _gather(self, values: torch.Tensor) -> list[torch.Tensor] | None:
        """The values of every rank without their padding, on the teacher's rank."""
        padded, is_here = self._padded(values), self.this_rank == self.rank
        received = [torch.empty_like(padded) for _ in self.sizes] if is_here else None
        dist.gather(padded, received, dst=self.rank)
        if received is None:
            return None
        return [part[:size] for part, size in zip(received, self.sizes, strict=True)]

    def _padded(self, values: torch.Tensor) -> torch.Tensor:
        """As many rows as the largest part has."""
        missing = max(self.sizes) - len(values)
        return torch.cat([values, values.new_zeros(missing, *values.shape[1:])])


class OnlineDataset(SegmentDataset):
    """The stored trajectories, and from `first_online` on the same steps with online targets.

    Attributes:
        teacher: set where targets are to be made.
    """

    teacher: TargetTeacher

    def __getitems__(self, items: list[int]) -> Batch:
        """Read stored items; of online ones only the noise, the prompt and the step."""
        if items[0] < self.first_online:
            return super().__getitems__(items)
        trajectories = [self._trajectory(item) for item in items]
        segment = torch.tensor([self._segment(item) for item in items])
        noise = [self._states(trajectory, 0, 0)[0] for trajectory in trajectories]
        noisy = self._scaled(noise, torch.zeros_like(segment))
        return Batch(
            items=list(items),
            segment=segment,
            noisy=noisy,
            timestep=self._timesteps[segment],
            target=torch.zeros_like(noisy),
            weight=self._weights[segment],
            conditioning=self._conditioning(trajectories),
            is_online=True,
        )

    def with_targets(self, batch: Batch, student: Student, size: int) -> Batch:
        """Walk by the student's steps, then ask the teacher; see `TargetSource`."""
        noisy = self._visit(batch, student, size)
        segments = [self._segment(item) for item in batch.items]
        rows_of_prompts = [
            self._trajectories.prompt_row(self._trajectory(item)) for item in batch.items
        ]
        first = torch.tensor(segments)
        states = noisy * self._at(self.grid.scales, first, noisy)
        ends = self.teacher.advance(states, segments, rows_of_prompts)
        ends = ends / self._at(self.grid.scales, first + 1, noisy)
        levels = (*self._levels(first, noisy), *self._levels(first + 1, noisy))
        kind = self.recipe.prediction_type
        return replace(batch, noisy=noisy, target=segment_target(kind, noisy, ends, *levels))

    def walk_measured(self, device: torch.device, watchdog: Watchdog) -> None:
        """Walk with the teacher alone from the noise that the alarms look at; where no trajectories
        are stored they have its states from here. All ranks call it together."""
        if isinstance(self._trajectories, TrajectoryStore):
            return
        samples = self.measured_trajectories
        prompts = [self._trajectories.prompt_row(sample) for sample in samples]
        states = torch.stack([self._states(sample, 0, 0)[0] for sample in samples])
        states = states.float().to(device)
        for segment in range(self.steps):
            watchdog.heartbeat(
                f"the teacher's step {segment + 1} of {self.steps} for the alarms",
                joint=True,
                limit_s=START_LIMIT_S,
            )
            states = self.teacher.advance_all(states, segment, prompts)
            knot = (segment + 1) * self._stride
            for sample, state in zip(samples, states.cpu(), strict=True):
                self._trajectories.known[sample, knot] = state

    def name(self, item: int) -> str:
        """An item in words."""
        if item < self.first_online:
            return super().name(item)
        return f"{super().name(item - self.first_online)} (online)"

    def _visit(self, batch: Batch, student: Student, size: int) -> torch.Tensor:
        """The states (b, *latent) where the student stands before each item's step."""
        noisy, kind = batch.noisy.clone(), self.recipe.prediction_type
        segments = [self._segment(item) for item in batch.items]
        for step in range(max(segments)):
            walking = [row for row, segment in enumerate(segments) if segment > step]
            for start in range(0, len(walking), size):
                wanted = walking[start : start + size]
                here = torch.full((len(wanted),), step)
                part = replace(
                    rows(batch, wanted),
                    noisy=noisy[wanted],
                    timestep=self._timesteps[here].to(noisy.device),
                )
                levels = self._levels(here, part.noisy)
                clean, noise = from_prediction(kind, student(part).float(), part.noisy, *levels)
                noisy[wanted] = add_noise(clean, noise, *self._levels(here + 1, part.noisy))
        return noisy

    def _segment(self, item: int) -> int:
        """The student's step that an online item is."""
        return (item - self.first_online) % self.steps

    def _trajectory(self, item: int) -> int:
        is_online = item >= self.first_online
        return super()._trajectory(item - self.first_online if is_online else item)


def load_target_teacher(
    job: TrainingJob,
    dataset: OnlineDataset,
    batches: Batches,
    place: Place,
    device: torch.device,
    watchdog: Watchdog,
) -> TargetTeacher:
    """The teacher in its place.

    Args:
        job: of the training.
        dataset: whose targets it makes.
        batches: of this process.
        place: see `residence.choose_place`.
        device: of this process.
        watchdog: of this process.

    Raises:
        ValueError: it is not the one that the targets were made with, or no process has the number
            `training.teacher_rank`.
    """
    ranks, training, teacher = batches.ranks, job.training, job.teacher
    check_teacher_rank(training, ranks.world_size)
    is_of_one = place == "one_rank" and ranks.world_size > 1
    if place == "shared" and device.type == "cuda":
        teacher = teacher.model_copy(update={"offload": "sequential"})
    if place == "cpu" and device.type == "cuda":
        teacher = teacher.model_copy(update={"offload": "none"})
        cores = len(os.sched_getaffinity(0)) * ranks.num_nodes // ranks.world_size
        torch.set_num_threads(max(1, cores))
    own = None
    if not is_of_one or ranks.rank == training.teacher_rank:
        watchdog.heartbeat("teacher onto the device", limit_s=START_LIMIT_S)
        walk = TeacherWalk.load(
            teacher,
            dataset.recipe,
            dataset.embeddings,
            dataset.steps,
            training.online_steps,
            torch.device("cpu") if place == "cpu" else device,
        )
        size = dataset.recipe.batch_size
        own = OwnTeacher(walk, batches.largest_local_batch if size == "auto" else size)
    if not is_of_one:
        assert own is not None
        return own
    return TeacherOfOneRank(training.teacher_rank, own, batches.sizes(), ranks.rank, watchdog)
