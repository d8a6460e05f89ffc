"""Targets that are made while the student learns, at the states that it visits itself.

Stored targets are of the teacher's trajectories; the student, whose every step is a little off,
soon stands elsewhere. Here it walks from the stored noise by its own steps (no gradient), and the
teacher says where to go from there: its guided steps to the next knot, or fewer of first order. The
target is the secant to that state, as with stored ones. It is DAgger (Ross et al. 2011,
arXiv:1011.0686) with the teacher as the expert.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from distillery.config.phases import Span
from distillery.config.ways import Online
from distillery.schedule import add_noise, from_prediction
from distillery.store.trajectories import TrajectoryStore
from distillery.teacher.loading import torch_dtype
from distillery.training.batch import Batch, at_knots, rows
from distillery.training.data import SegmentDataset, Student
from distillery.training.health import START_LIMIT_S, Watchdog
from distillery.training.matching import match, new_copy
from distillery.training.objectives import segment_target
from distillery.training.own_teacher import TargetTeacher
from distillery.training.parallel import set_checkpointing, uses_checkpointing
from distillery.training.update import inspecting, predict
from distillery.training.ways.way import Way

if TYPE_CHECKING:
    from pathlib import Path

    from distillery.training.batches import Batches
    from distillery.training.drawing import Drawing
    from distillery.training.run import Run
    from distillery.training.state import Companion, TrainingState


class OnlineDataset(SegmentDataset):
    """The stored trajectories, and from `first_visited` on the same steps with online targets.

    Attributes:
        teacher: set where targets are to be made.
    """

    teacher: TargetTeacher

    def __getitems__(self, items: list[int]) -> Batch:
        """Read stored items; of online ones only the noise, the prompt and the step."""
        if items[0] < self.first_visited:
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
        states = noisy * at_knots(self.grid.scales, first, noisy)
        ends = self.teacher.advance(states, segments, rows_of_prompts)
        ends = ends / at_knots(self.grid.scales, first + 1, noisy)
        levels = (*self._levels(first, noisy), *self._levels(first + 1, noisy))
        kind = self.recipe.prediction_type
        return replace(batch, noisy=noisy, target=segment_target(kind, noisy, ends, *levels))

    def teachers_view(
        self, noisy: torch.Tensor, steps: list[int], items: list[int]
    ) -> torch.Tensor:
        """Ask the teacher; see `TargetSource`."""
        states = noisy * at_knots(
            self.teacher_grid.scales, torch.tensor(steps, dtype=torch.int64), noisy
        )
        prompt_rows = [self._trajectories.prompt_row(self._trajectory(item)) for item in items]
        return self.teacher.clean(states, steps, prompt_rows)

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

    def close(self) -> None:
        """Let the teacher go."""
        self.teacher.close()

    def name(self, item: int) -> str:
        """An item in words."""
        if item < self.first_visited:
            return super().name(item)
        return f"{super().name(item - self.first_visited)} (online)"

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
        """The student's step that an item is."""
        return super()._segment(item - self.first_visited if item >= self.first_visited else item)

    def _trajectory(self, item: int) -> int:
        is_online = item >= self.first_visited
        return super()._trajectory(item - self.first_visited if is_online else item)


class OnlineWay(Way[Online]):
    """The next segments of the stream, with targets by the teacher; and distribution matching."""

    source = OnlineDataset

    def items(self, batches: Batches, span: Span, start: int, stop: int) -> list[int]:
        """The same steps as of stored trajectories."""
        first = batches.dataset.first_visited
        return [first + item for item in batches.segments(start, stop)]

    def complete(self, batch: Batch, state: TrainingState, size: int, run: Run) -> Batch:
        """Walk, and ask the teacher."""

        def student(part: Batch) -> torch.Tensor:
            with inspecting(state.denoiser, run.device, torch_dtype(run.training.dtype)):
                return predict(state.denoiser, part, run)

        run.watchdog.heartbeat("states that the student visits", joint=True)
        with torch.no_grad():
            complete = run.dataset.with_targets(batch.to(run.device), student, size)
        # On the host again, as stored ones: on the device they would split the blocks that
        # activations need, which ended a training that filled its GPU.
        return replace(batch, noisy=complete.noisy.cpu(), target=complete.target.cpu())

    def companion(self, student: Path, run: Run) -> Companion | None:
        """A copy, with distribution matching."""
        matching = self.phase.distribution_matching
        return new_copy(student, matching, run) if matching else None

    def direct(
        self, drawing: Drawing, state: TrainingState, companion: Companion, begin: int, run: Run
    ) -> torch.Tensor:
        """Towards the teacher's images, and away from what the copy sees."""
        assert self.phase.distribution_matching is not None
        set_checkpointing(companion.network, uses_checkpointing(state.denoiser))
        return match(drawing, companion, self.phase.distribution_matching, run)
