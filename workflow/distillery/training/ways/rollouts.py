"""Learn from whole walks: the student takes all its steps from the noise of a stored trajectory.

What is lost where it ends is `update.batch_losses`, which micro-batches share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distillery.config.phases import Span
from distillery.config.ways import Rollouts
from distillery.training.ways.way import Way

if TYPE_CHECKING:
    from distillery.training.batches import Batches


class RolloutsWay(Way[Rollouts]):
    """Whole trajectories, in an order of their own that begins with the phase."""

    def items(self, batches: Batches, span: Span, start: int, stop: int) -> list[int]:
        """The items of whole walks."""
        learned = batches.learned(1, start - span.begin, stop - span.begin)
        return [batches.dataset.first_rollout + trajectory for _, trajectory in learned]
