"""A teacher that answers for states of several segments or noise levels: here, or on one rank."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

from distillery.generation.teacher_walk import TeacherWalk
from distillery.training.health import START_LIMIT_S, Watchdog

Question = Literal["advance", "clean"]
"""What is asked about states; a method of `TeacherWalk`."""


class TargetTeacher(ABC):
    """A teacher, wherever it is."""

    @abstractmethod
    def ask(
        self,
        question: Question,
        states: torch.Tensor,
        numbers: Sequence[int],
        prompt_rows: Sequence[int],
    ) -> torch.Tensor:
        """Answers (b, *latent) float32; all ranks call it together, with as many states as each
        has, maybe none.

        Args:
            question: see `advance` and `clean`.
            states: (b, *latent) float32, with their scale.
            numbers: b of the student's segments, or of the teacher's steps.
            prompt_rows: b rows of the prompt table.
        """

    def advance(
        self, states: torch.Tensor, segments: Sequence[int], prompt_rows: Sequence[int]
    ) -> torch.Tensor:
        """The states at the ends of segments, from those at their beginnings; see `ask`."""
        return self.ask("advance", states, segments, prompt_rows)

    def clean(
        self, states: torch.Tensor, steps: Sequence[int], prompt_rows: Sequence[int]
    ) -> torch.Tensor:
        """The clean latents that the guided teacher sees in states at the noise levels of its
        steps; see `ask`."""
        return self.ask("clean", states, steps, prompt_rows)

    def advance_all(
        self, states: torch.Tensor, segment: int, prompt_rows: Sequence[int]
    ) -> torch.Tensor:
        """As `advance`, for the same states of one segment on every rank: each for itself."""
        return self.advance(states, [segment] * len(states), prompt_rows)

    def close(self) -> None:  # noqa: B027 (most have nothing to do)
        """No more will be asked."""


@dataclass(frozen=True)
class OwnTeacher(TargetTeacher):
    """A teacher in this process.

    Attributes:
        walk: of it.
        size: samples of one call.
    """

    walk: TeacherWalk
    size: int

    def ask(
        self,
        question: Question,
        states: torch.Tensor,
        numbers: Sequence[int],
        prompt_rows: Sequence[int],
    ) -> torch.Tensor:
        """In calls of one number each, since a stock call has one timestep for all."""
        answer = self.walk.advance if question == "advance" else self.walk.clean
        answers = torch.empty_like(states)
        for number in sorted(set(numbers)):
            wanted = [row for row, own in enumerate(numbers) if own == number]
            for start in range(0, len(wanted), self.size):
                part = wanted[start : start + self.size]
                prompts = [prompt_rows[row] for row in part]
                answers[part] = answer(states[part], number, prompts).to(answers.device)
        return answers


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
