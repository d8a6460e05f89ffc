"""A teacher in this process, which says where to go from states of several segments."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from distillery.generation.teacher_walk import TeacherWalk


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

    def close(self) -> None:
        """Nothing to do."""
