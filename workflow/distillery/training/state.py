"""All that the next update depends on: weights, moments, their average, and where it stands."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from distillery.config.training import Training
from distillery.families.protocol import Denoiser
from distillery.student.on_disk import load_trainable
from distillery.teacher.loading import torch_dtype
from distillery.training.parallel import arrange

if TYPE_CHECKING:  # a run is made from ways to learn, which need these functions
    from distillery.training.run import Run


def make_optimizer(
    parameters: Iterable[torch.nn.Parameter], training: Training, device: torch.device
) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101), fused on CUDA, over all parameters."""
    return torch.optim.AdamW(
        list(parameters),
        lr=training.learning_rate,
        betas=training.betas,
        weight_decay=training.weight_decay,
        fused=device.type == "cuda",
    )


def learning_rate_at(samples_seen: int, training: Training) -> float:
    """The learning rate of the update that begins after `samples_seen` samples.

    A linear rise over `warmup_samples`, times 1 or half a cosine from 1 to 0 over `num_samples`.
    Both are taken in the middle of the batch, so that neither the first nor the last update is
    wasted. Each round and a finish have a cosine of their own (warm restart, Loshchilov and
    Hutter 2017, arXiv:1608.03983), so that what is before it is a whole training.
    """
    middle = samples_seen + training.global_batch_size / 2
    rise = min(1.0, middle / training.warmup_samples) if training.warmup_samples else 1.0
    fall = 1.0
    if training.schedule == "cosine":
        ends = [*training.restarts, training.num_samples]
        number = bisect_right(ends, samples_seen)
        begin, end = [0, *ends][number], ends[number]
        fall = 0.5 * (1.0 + math.cos(math.pi * (middle - begin) / (end - begin)))
    return training.learning_rate * rise * fall


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Use this learning rate in the next update."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def ema_decay(training: Training) -> float:
    """What is left of the old average after one update: one half after the half-life."""
    return float(0.5 ** (training.global_batch_size / training.ema_half_life_samples))


@torch.no_grad()
def update_ema(averages: list[torch.Tensor], parameters: list[torch.Tensor], decay: float) -> None:
    """`average = decay * average + (1 - decay) * parameter`, in place.

    The average begins at the initial weights and is not corrected for that: after num_samples a
    share of 2^(-num_samples / half-life) of it is still these weights. The plan names a large one.
    """
    torch._foreach_lerp_(averages, parameters, 1.0 - decay)


@dataclass
class Window:
    """Sums over the updates since the last row of the loss history.

    Attributes:
        losses: sum of the samples' losses by segment.
        counts: number of samples by segment.
        grad_norm: sum over the updates.
        num_updates: how many they are.
        companion_loss, companion_count: sum of the companion's losses, and of how many samples.
    """

    losses: list[float]
    counts: list[float]
    grad_norm: float = 0.0
    num_updates: int = 0
    companion_loss: float = 0.0
    companion_count: float = 0.0

    @classmethod
    def empty(cls, num_segments: int) -> Self:
        """No updates yet."""
        return cls([0.0] * num_segments, [0.0] * num_segments)


def make_moments(optimizer: torch.optim.Optimizer) -> None:
    """Make AdamW's state before the first update, so that the first checkpoint has it all."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    rates = [group["lr"] for group in optimizer.param_groups]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    set_learning_rate(optimizer, 0.0)
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for parameter in parameters:
        optimizer.state[parameter]["step"].zero_()
    optimizer.zero_grad(set_to_none=True)


@dataclass
class Companion:
    """A network that learns from what the student draws, and says where to draw it; see
    `ways.add_directions`.

    Attributes:
        name: "copy" or "heads"; its loss has this name in the history.
        network: on the device.
        optimizer: over its trainable parameters, in their order.
        losses: (2,) of its last update, over all processes: their sum, and of how many samples.
    """

    name: str
    network: Any
    optimizer: torch.optim.Optimizer
    losses: torch.Tensor

    @property
    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that learn, by their names, in their order."""
        return trainable_of(self.network)


def trainable_of(network: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters that learn, by their names, in their order; all else stays as it was."""
    named = network.named_parameters()
    return {name: parameter for name, parameter in named if parameter.requires_grad}


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
        companion: that learns beside the student, in a finish that has one.
    """

    denoiser: Denoiser
    optimizer: torch.optim.Optimizer
    average: dict[str, torch.Tensor]
    window: Window
    samples_seen: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    companion: Companion | None = None

    @property
    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """The student's parameters that learn, by their names, in their order."""
        return trainable_of(self.denoiser)


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


def update_average(state: TrainingState, training: Training) -> None:
    """Move the averaged weights, if there are any."""
    if state.average:
        parameters = [parameter.data for parameter in state.trainable.values()]
        update_ema(list(state.average.values()), parameters, ema_decay(training))
