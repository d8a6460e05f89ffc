"""The teacher of online targets, wherever it is."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import torch
import torch.distributed as dist

from distillery.config.jobs import TrainingJob
from distillery.config.training import Place, on_teacher_rank
from distillery.config.ways import Online
from distillery.generation.teacher_walk import TeacherWalk
from distillery.notes import refuse
from distillery.training.batches import Batches
from distillery.training.data import SegmentDataset
from distillery.training.distributed import RankInfo, from_main
from distillery.training.health import START_LIMIT_S, Watchdog
from distillery.training.own_teacher import OwnTeacher, Question, TargetTeacher
from distillery.training.teacher_process import TeacherProcess, Work, start_or_join


class TeachersInputs(Protocol):
    """What of a training's inputs a teacher in a process of its own reads itself."""

    @property
    def embeddings(self) -> Path:
        """Manifest of the train split."""
        ...

    @property
    def prompts(self) -> Path:
        """Table of the train split."""
        ...


@dataclass(frozen=True)
class TeacherOfOneRank(TargetTeacher):
    """A teacher in one process, which answers all: each rank gets the answers to its own states.

    Attributes:
        rank: that has the teacher.
        own: that teacher, on this rank; None on the others.
        num_ranks: how many there are.
        this_rank: this process's number.
        watchdog: of this process.
    """

    rank: int
    own: OwnTeacher | None
    num_ranks: int
    this_rank: int
    watchdog: Watchdog

    def advance_all(
        self, states: torch.Tensor, segment: int, prompt_rows: Sequence[int]
    ) -> torch.Tensor:
        """The teacher's rank for all."""
        ends = torch.empty_like(states)
        if self.own is not None:
            ends = self.own.advance_all(states, segment, prompt_rows)
        dist.broadcast(ends, src=self.rank)
        return ends

    def ask(
        self,
        question: Question,
        states: torch.Tensor,
        numbers: Sequence[int],
        prompt_rows: Sequence[int],
    ) -> torch.Tensor:
        """Gather all states, padded to the longest part, and scatter the teacher's answers."""
        about = torch.tensor(
            [list(numbers), list(prompt_rows)], dtype=torch.int64, device=states.device
        )
        self.watchdog.heartbeat("states for the teacher", waits=True)
        sizes = self._sizes(states)
        if not max(sizes):
            return states
        all_states = self._gather(states, sizes)
        all_about = self._gather(about.T.contiguous(), sizes)
        answers: list[torch.Tensor] | None = None
        if self.own is not None:
            assert all_states is not None
            assert all_about is not None
            self.watchdog.heartbeat("answers for all ranks", joint=True, limit_s=START_LIMIT_S)
            of_all = torch.cat(all_about).T.tolist()
            answer = self.own.ask(question, torch.cat(all_states), *of_all)
            answers = [_padded(part, max(sizes)) for part in torch.split(answer, sizes)]
        self.watchdog.heartbeat("answers of the teacher", waits=True, limit_s=START_LIMIT_S)
        received = _padded(torch.empty_like(states), max(sizes))
        dist.scatter(received, answers, src=self.rank)
        return received[: len(states)]

    def _sizes(self, states: torch.Tensor) -> list[int]:
        """How many states each rank has."""
        own = torch.tensor([len(states)], device=states.device)
        sizes = [torch.empty_like(own) for _ in range(self.num_ranks)]
        dist.all_gather(sizes, own)
        return [int(size) for size in torch.cat(sizes).tolist()]

    def _gather(self, values: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor] | None:
        """The values of every rank without their padding, on the teacher's rank."""
        padded, is_here = _padded(values, max(sizes)), self.this_rank == self.rank
        received = [torch.empty_like(padded) for _ in sizes] if is_here else None
        dist.gather(padded, received, dst=self.rank)
        if received is None:
            return None
        return [part[:size] for part, size in zip(received, sizes, strict=True)]


def _padded(values: torch.Tensor, size: int) -> torch.Tensor:
    """With as many rows as the largest part has."""
    missing = size - len(values)
    return torch.cat([values, values.new_zeros(missing, *values.shape[1:])])


def load_target_teacher(
    job: TrainingJob,
    dataset: SegmentDataset,
    inputs: TeachersInputs,
    batches: Batches,
    place: Place,
    device: torch.device,
    watchdog: Watchdog,
) -> TargetTeacher:
    """The teacher in its place; all ranks call it together.

    Args:
        job: of the training.
        dataset: whose targets it makes.
        inputs: what it reads itself where it is a process of its own.
        batches: of this process.
        place: see `residence.choose_place`.
        device: of this process.
        watchdog: of this process.

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
    inputs: TeachersInputs,
    batches: Batches,
    size: int,
    device: torch.device,
    watchdog: Watchdog,
) -> TeacherProcess:
    """The process of this node, started by its first rank."""
    ranks = batches.ranks
    local = next((node for node in ranks.nodes if ranks.rank in node), (ranks.rank,))
    # Other trainings, and on test clusters other nodes, share the folder of sockets.
    name = f"{from_main(uuid4().hex[:16], device)}-{local[0]}"
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
