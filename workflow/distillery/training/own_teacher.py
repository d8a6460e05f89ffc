"""A teacher in this process, which answers for states of several segments or noise levels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from distillery.generation.teacher_walk import TeacherWalk

Question = Literal["advance", "clean"]
"""What is asked about states; see `target_teacher.TargetTeacher`."""


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
        """Where it goes."""
        return self._in_calls(self.walk.advance, states, segments, prompt_rows)

    def clean(
        self, states: torch.Tensor, steps: Sequence[int], prompt_rows: Sequence[int]
    ) -> torch.Tensor:
        """What it sees."""
        return self._in_calls(self.walk.clean, states, steps, prompt_rows)

    def advance_all(
        self, states: torch.Tensor, segment: int, prompt_rows: Sequence[int]
    ) -> torch.Tensor:
        """Each rank for itself."""
        return self.advance(states, [segment] * len(states), prompt_rows)

    def close(self) -> None:
        """Nothing to do."""

    def _in_calls(
        self,
        ask: Callable[[torch.Tensor, int, Sequence[int]], torch.Tensor],
        states: torch.Tensor,
        numbers: Sequence[int],
        prompt_rows: Sequence[int],
    ) -> torch.Tensor:
        """In calls of one number each, since a stock call has one timestep for all."""
        answers = torch.empty_like(states)
        for number in sorted(set(numbers)):
            wanted = [row for row, own in enumerate(numbers) if own == number]
            for start in range(0, len(wanted), self.size):
                part = wanted[start : start + self.size]
                prompts = [prompt_rows[row] for row in part]
                answers[part] = ask(states[part], number, prompts).to(answers.device)
        return answers
