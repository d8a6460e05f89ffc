"""Record a stock pipeline's trajectory at the one place all share: the scheduler's `step`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from distillery.schedulers import Scheduler


@dataclass
class Trajectory:
    """The states that one pipeline call went through.

    Attributes:
        states: step index to (b, *latent) float32; the state *before* that step. The state after
            the last step has the index `num_steps`.
        predictions: step index to (b, *latent) float32; what `step` was given for that state, which
            is the network's output after guidance. Empty unless asked for.
        num_steps: steps taken so far.
    """

    states: dict[int, torch.Tensor] = field(default_factory=dict)
    predictions: dict[int, torch.Tensor] = field(default_factory=dict)
    num_steps: int = 0

    def stack(self, knots: Sequence[int]) -> torch.Tensor:
        """The states at the knots, as (b, k, *latent)."""
        return torch.stack([self.states[knot] for knot in knots], dim=1)

    def stack_predictions(self, knots: Sequence[int]) -> torch.Tensor:
        """The predictions at the knots, as (b, k, *latent)."""
        return torch.stack([self.predictions[knot] for knot in knots], dim=1)


@contextmanager
def record(
    scheduler: Scheduler, knots: Sequence[int], with_predictions: bool = False
) -> Iterator[Trajectory]:
    """Record the states at `knots` while a pipeline runs with this scheduler instance.

    Model outputs reach `step` after guidance and in the network's own type, before the scheduler
    converts, clips or scales anything: that is what a student's network should output there, to a
    scheduler that treats it alike. They are kept if `with_predictions`. The pipeline's results do
    not change: the wrapper only looks. Diffusers' step callbacks would do for the states after each
    step, but the first state and the pipelines without callbacks would be missing.
    """
    trajectory = Trajectory()
    wanted = frozenset(knots)
    original = scheduler.step

    def step(
        model_output: torch.Tensor, timestep: Any, sample: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        index = trajectory.num_steps
        if index in wanted:
            trajectory.states[index] = sample.detach().float().clone()
        if with_predictions and index in wanted:
            trajectory.predictions[index] = model_output.detach().float().clone()
        result = original(model_output, timestep, sample, *args, **kwargs)
        trajectory.num_steps = index + 1
        if index + 1 in wanted:
            # Overwritten by the next step's input, which is the same state; kept for the last one.
            trajectory.states[index + 1] = result[0].detach().float().clone()
        return result

    scheduler.step = step
    try:
        yield trajectory
    finally:
        del scheduler.step
