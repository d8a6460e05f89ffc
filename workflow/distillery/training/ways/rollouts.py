"""Learn from whole walks: the student takes all its steps from the noise of a stored trajectory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distillery.config.phases import Span
from distillery.config.ways import Rollouts
from distillery.training.update import roll_out_student
from distillery.training.ways.way import Way, along, target_losses

if TYPE_CHECKING:
    import torch

    from distillery.training.batch import Batch
    from distillery.training.batches import Batches
    from distillery.training.run import Run


class RolloutsWay(Way[Rollouts]):
    """Whole trajectories, in an order of their own that begins with the phase."""

    def items(self, batches: Batches, span: Span, start: int, stop: int) -> list[int]:
        """The items of whole walks."""
        learned = batches.learned(1, start - span.begin, stop - span.begin)
        return [batches.dataset.first_rollout + trajectory for _, trajectory in learned]

    def losses(self, model: torch.nn.Module, batch: Batch, run: Run) -> torch.Tensor:
        """Where the walks end, in latents and, if it counts, in features of the decoder."""
        drawn = roll_out_student(model, batch, run)
        loss_b = target_losses(drawn, batch, run)
        if run.perceptual is not None:
            loss_b = loss_b + self.phase.perceptual_weight * run.perceptual(drawn, batch.target)
        return loss_b if batch.direction is None else along(batch.direction, drawn, loss_b)
