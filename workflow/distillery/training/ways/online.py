"""Targets that are made while the student learns, at the states that it visits itself.

Stored targets are of the teacher's trajectories; the student, whose every step is a little off,
soon stands elsewhere. Here it walks from the stored noise by its own steps (no gradient), and the
teacher says where to go from there: its guided steps to the next knot, or fewer of first order. The
target is the secant to that state, as with stored ones. It is DAgger (Ross et al. 2011,
arXiv:1011.0686) with the teacher as the expert.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

import torch

from distillery.config.phases import Span
from distillery.config.training import Place, on_teacher_rank
from distillery.config.ways import Online
from distillery.generation.teacher_walk import TeacherWalk
from distillery.notes import refuse
from distillery.schedule import add_noise, from_prediction
from distillery.store.trajectories import TrajectoryStore
from distillery.student.info import read_student_info
from distillery.teacher.folder import find_teacher
from distillery.teacher.loading import torch_dtype
from distillery.training import distributed
from distillery.training.batch import Batch, at_knots, rows
from distillery.training.data import SegmentDataset, Student
from distillery.training.execution import choose_place, demands, student_state_bytes
from distillery.training.health import START_LIMIT_S, Watchdog
from distillery.training.objectives import segment_target
from distillery.training.parallel import set_checkpointing, uses_checkpointing
from distillery.training.target_teacher import (
    OwnTeacher,
    TargetTeacher,
    TeacherOfOneRank,
    TeacherProcess,
    Work,
    start_or_join,
)
from distillery.training.update import inspecting, predict
from distillery.training.ways.matching import match, new_copy
from distillery.training.ways.way import Way

if TYPE_CHECKING:
    from pathlib import Path

    from distillery.config.jobs import TrainingJob
    from distillery.telemetry import Reporter
    from distillery.training.batches import Batches
    from distillery.training.distributed import RankInfo
    from distillery.training.run import Inputs, Run
    from distillery.training.state import Companion, TrainingState
    from distillery.training.ways.drawing import Drawing


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
        noisy = self.usual.scaled(noise, torch.zeros_like(segment))
        return Batch(
            items=list(items),
            segment=segment,
            noisy=noisy,
            timestep=self.usual.timesteps[segment],
            target=torch.zeros_like(noisy),
            weight=self.usual.weights[segment],
            conditioning=self._conditioning(trajectories),
            is_online=True,
        )

    def with_targets(self, batch: Batch, student: Student, size: int) -> Batch:
        """Walk by the student's steps, then ask the teacher; see `SegmentDataset`."""
        noisy = self._visit(batch, student, size)
        segments = [self._segment(item) for item in batch.items]
        rows_of_prompts = [
            self._trajectories.prompt_row(self._trajectory(item)) for item in batch.items
        ]
        first = torch.tensor(segments)
        states = noisy * at_knots(self.usual.grid.scales, first, noisy)
        ends = self.teacher.advance(states, segments, rows_of_prompts)
        ends = ends / at_knots(self.usual.grid.scales, first + 1, noisy)
        levels = (*self.usual.levels(first, noisy), *self.usual.levels(first + 1, noisy))
        kind = self.recipe.prediction_type
        return replace(batch, noisy=noisy, target=segment_target(kind, noisy, ends, *levels))

    def teachers_view(
        self, noisy: torch.Tensor, steps: list[int], items: list[int]
    ) -> torch.Tensor:
        """Ask the teacher; see `SegmentDataset`."""
        states = noisy * at_knots(
            self.usual.teacher_grid.scales, torch.tensor(steps, dtype=torch.int64), noisy
        )
        prompt_rows = [self._trajectories.prompt_row(self._trajectory(item)) for item in items]
        return self.teacher.clean(states, steps, prompt_rows)

    def begin(
        self,
        job: TrainingJob,
        inputs: Inputs,
        batches: Batches,
        device: torch.device,
        reporter: Reporter,
        watchdog: Watchdog,
    ) -> None:
        """Load the teacher, where it has room, and let it walk for the alarms."""
        ranks = batches.ranks
        place, reason = _choose_place(job, inputs.student, ranks, device)
        if ranks.is_main:
            reporter.info(f"teacher_residence: {place} ({reason})")
        self.teacher = load_target_teacher(job, self, inputs, batches, place, device, watchdog)
        self.walk_measured(device, watchdog)

    def walk_measured(self, device: torch.device, watchdog: Watchdog) -> None:
        """Walk with the teacher alone from the noise that the alarms look at; where no trajectories
        are stored they have its states from here. All ranks call it together."""
        if isinstance(self._trajectories, TrajectoryStore):
            return
        samples = self.measured()
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
                    timestep=self.usual.timesteps[here].to(noisy.device),
                )
                levels = self.usual.levels(here, part.noisy)
                clean, noise = from_prediction(kind, student(part).float(), part.noisy, *levels)
                noisy[wanted] = add_noise(clean, noise, *self.usual.levels(here + 1, part.noisy))
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


def _choose_place(
    job: TrainingJob, student: Path, ranks: RankInfo, device: torch.device
) -> tuple[Place, str]:
    """Where the teacher of online targets goes, and why."""
    machine, folder = distributed.machine_of(ranks, device), find_teacher(job.teacher)
    info = read_student_info(student)
    whole = student_state_bytes(job.training, info) if info else 0
    needed = demands(job.teacher, folder, whole, machine)
    return choose_place(job.training, job.teacher.num_gpus, needed, machine)


def load_target_teacher(
    job: TrainingJob,
    dataset: SegmentDataset,
    inputs: Inputs,
    batches: Batches,
    place: Place,
    device: torch.device,
    watchdog: Watchdog,
) -> TargetTeacher:
    """The teacher in its place; all ranks call it together.

    Args:
        inputs: what it reads itself where it is a process of its own.

    Raises:
        ValueError: it is not the one that the targets were made with, or no process has the number
            `training.teacher_rank`.
    """
    ranks, training, teacher = batches.ranks, job.training, job.teacher
    online = training.of(Online)
    assert online is not None
    refuse(on_teacher_rank(training, ranks.world_size))
    size = dataset.recipe.batch_size
    if size == "auto":
        size = batches.largest_local_batch
    if place == "own_gpus":
        check_own_gpus(teacher.num_gpus, ranks, device)
        return _in_its_own_process(job, online, dataset, inputs, batches, size, device, watchdog)
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
            online.steps,
            torch.device("cpu") if place == "cpu" else device,
        )
        own = OwnTeacher(walk, size)
    if not is_of_one:
        assert own is not None
        return own
    return TeacherOfOneRank(training.teacher_rank, own, ranks.world_size, ranks.rank, watchdog)


def _in_its_own_process(
    job: TrainingJob,
    online: Online,
    dataset: SegmentDataset,
    inputs: Inputs,
    batches: Batches,
    size: int,
    device: torch.device,
    watchdog: Watchdog,
) -> TeacherProcess:
    """The process of this node, started by its first rank."""
    ranks = batches.ranks
    local = next((node for node in ranks.nodes if ranks.rank in node), (ranks.rank,))
    # Other trainings, and on test clusters other nodes, share the folder of sockets.
    name = f"{distributed.from_main(uuid4().hex[:16], device)}-{local[0]}"
    work = Work(
        teacher=job.teacher,
        recipe=dataset.recipe,
        embeddings=inputs.embeddings,
        prompts=inputs.prompts,
        segments=dataset.steps,
        steps=online.steps,
        size=size,
        num_clients=len(local),
        cpu_threads=torch.get_num_threads(),
    )
    return start_or_join(work, name, ranks.rank == local[0], device, watchdog)


def check_own_gpus(num_gpus: int, ranks: RankInfo, device: torch.device) -> None:
    """Raise ValueError where ranks train on the GPUs that the teacher is to have."""
    if device.type != "cuda":
        return
    training, there = ranks.world_size // ranks.num_nodes, torch.cuda.device_count()
    if training + num_gpus > there:
        raise ValueError(
            f"training.teacher_residence is own_gpus: of this node's {there} GPUs {training} train "
            f"and the teacher wants {num_gpus} (teacher.num_gpus): start {there - num_gpus} "
            "processes, or use more GPUs"
        )
