"""All that the next update depends on: one dataclass, and it is the checkpoint."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch

from distillery.families.protocol import Denoiser
from distillery.student.lora import load_trainable
from distillery.teacher.loading import torch_dtype
from distillery.training.network import arrange
from distillery.training.optimizer import make_optimizer
from distillery.training.run import Run


@dataclass
class Window:
    """Sums over the updates since the last row of the loss history.

    Attributes:
        losses: sum of the samples' losses by segment.
        counts: number of samples by segment.
        grad_norm: sum over the updates.
        num_updates: how many they are.
    """

    losses: list[float]
    counts: list[float]
    grad_norm: float = 0.0
    num_updates: int = 0

    @classmethod
    def empty(cls, num_segments: int) -> Self:
        """No updates yet."""
        return cls([0.0] * num_segments, [0.0] * num_segments)


@dataclass
class TrainingState:
    """All that the next update depends on, and all that is saved.

    Attributes:
        denoiser: the student with float32 weights where they learn, on the device.
        optimizer: over its trainable parameters, in their order.
        average: of these parameters by their names, in their order; empty without averaging.
        samples_seen: position in the stream, over all processes.
        window: losses since the last row.
        history: rows of loss.parquet.
    """

    denoiser: Denoiser
    optimizer: torch.optim.Optimizer
    average: dict[str, torch.Tensor]
    window: Window
    samples_seen: int = 0
    history: list[dict[str, float]] = field(default_factory=list)

    @property
    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that learn, by their names, in their order; all else stays as it was."""
        named = self.denoiser.named_parameters()
        return {name: parameter for name, parameter in named if parameter.requires_grad}


def new_state(student: Path, run: Run) -> TrainingState:
    """The state before the first update."""
    denoiser = load_trainable(student, torch_dtype(run.training.dtype))
    arrange(denoiser, run)
    trainable = (parameter for parameter in denoiser.parameters() if parameter.requires_grad)
    state = TrainingState(
        denoiser=denoiser,
        optimizer=make_optimizer(trainable, run.training, run.device),
        average={},
        window=Window.empty(run.num_losses),
    )
    if run.training.ema_half_life_samples > 0:
        state.average = {
            name: parameter.detach().clone() for name, parameter in state.trainable.items()
        }
    return state
