"""A teacher that answers for states of several segments or noise levels; one in this process."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from distillery.generation.teacher_walk import TeacherWalk

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
