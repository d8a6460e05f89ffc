"""What a phase does in a training; what most ways to learn do stands here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from distillery.config.phases import Span
from distillery.config.ways import Phase
from distillery.training.data import SegmentDataset
from distillery.training.objectives import sample_losses
from distillery.training.update import end_of_last_step, predict

if TYPE_CHECKING:  # a run is made from ways to learn
    from pathlib import Path

    import torch

    from distillery.training.batch import Batch
    from distillery.training.batches import Batches
    from distillery.training.run import Run
    from distillery.training.state import Companion, TrainingState
    from distillery.training.ways.drawing import Drawing

Kind = TypeVar("Kind", bound=Phase)


class Way(Generic[Kind]):
    """One way to learn, from the teacher's stored trajectories unless a subclass says otherwise.

    Attributes:
        phase: its settings.
        source: what reads its items.
    """

    source: type[SegmentDataset] = SegmentDataset

    def __init__(self, phase: Kind) -> None:
        """Of a training's phase."""
        self.phase = phase

    def items(self, batches: Batches, span: Span, start: int, stop: int) -> list[int]:
        """The items at the positions [start, stop) of the stream, which lie in one span.

        Args:
            start, stop: in samples since the training's beginning.
        """
        return batches.segments(start, stop)

    def complete(self, batch: Batch, state: TrainingState, size: int, run: Run) -> Batch:
        """This rank's batch with its targets, where they are not stored.

        Args:
            state: whose student walks; its whole weights are on the device.
            size: samples that the student may take at once.
        """
        return batch

    def losses(self, model: torch.nn.Module, batch: Batch, run: Run) -> torch.Tensor:
        """The loss (b,) of each sample of a micro-batch, with its graph, without its weight.

        Args:
            batch: on the device, complete, with the companion's directions if there are any.
        """
        output = predict(model, batch, run)
        loss_b = target_losses(output, batch, run)
        if batch.direction is None:
            return loss_b
        return along(batch.direction, self.drawn(output, batch, run), loss_b)

    @property
    def directs_all(self) -> bool:
        """Whether its companion looks at where all steps end, not at the last one's alone."""
        return False

    def drawn(self, output: torch.Tensor, batch: Batch, run: Run) -> torch.Tensor:
        """What a companion looks at, (b, *latent) float32; where a step is another than the last
        one it has a meaning only with `directs_all`."""
        return end_of_last_step(output, batch.noisy, run)

    def companion(self, student: Path, run: Run) -> Companion | None:
        """What learns beside the student from here to the training's end, if anything does."""
        return None

    def direct(
        self, drawing: Drawing, state: TrainingState, companion: Companion, begin: int, run: Run
    ) -> torch.Tensor:
        """Where the student should draw, (b, *latent) float32, asked of a way with a companion;
        which then learns.

        Args:
            drawing: of this process; maybe of nothing.
            companion: that has learned from earlier ones.
            begin: samples seen before the phase.
        """
        raise NotImplementedError


def target_losses(output: torch.Tensor, batch: Batch, run: Run) -> torch.Tensor:
    """How far each output is from its target, (b,), as `training.loss` measures it."""
    return sample_losses(output, batch.target, run.training.loss, run.training.huber_width)


def along(direction: torch.Tensor, drawn: torch.Tensor, loss_b: torch.Tensor) -> torch.Tensor:
    """Losses (b,) of the same numbers, whose gradient in what is drawn has the direction added."""
    along_b = (drawn * direction).flatten(1).mean(dim=1)
    return loss_b + (along_b - along_b.detach())
