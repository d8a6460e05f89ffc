"""Record a stock pipeline's trajectory, or let it walk a part of one, at the one place that all
share: their scheduler."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch

from distillery.schedulers import Scheduler, with_methods


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


def joined(parts: Sequence[Trajectory]) -> Trajectory:
    """One trajectory of all samples of several calls of the same steps."""
    first = parts[0]
    return Trajectory(
        {at: torch.cat([part.states[at] for part in parts]) for at in first.states},
        {at: torch.cat([part.predictions[at] for part in parts]) for at in first.predictions},
        first.num_steps,
    )


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

    with with_methods(scheduler, step=step):
        yield trajectory


@dataclass
class Reached:
    """How far a part of a walk has come.

    Attributes:
        state: (b, *latent), after its last step; None before its first.
    """

    state: torch.Tensor | None = None


@contextmanager
def walking(scheduler: Scheduler, steps: range, follows_on: bool = False) -> Iterator[Reached]:
    """Let a stock pipeline with this scheduler instance take some steps alone.

    The call begins with the state before the first of them, see `Request.latents`. So guidance,
    negative prompts and the choice of a network are the stock call's own, whatever the family. A
    multistep solver begins with first order, as it does at the noise.

    Args:
        steps: of all that the call asks the scheduler for.
        follows_on: the scheduler has just taken the step before, and keeps what it knows of it.
    """
    reached = Reached()
    set_timesteps, step = scheduler.set_timesteps, scheduler.step
    begin = getattr(scheduler, "set_begin_index", None)
    whole: list[Any] = []

    @wraps(set_timesteps)  # pipelines look at its signature
    def set_part(*args: Any, **kwargs: Any) -> None:
        if whole:  # Allegro asks twice, the second time for as many steps as it was given
            return
        if not follows_on:
            set_timesteps(*args, **kwargs)
        whole[:] = [scheduler.timesteps]
        scheduler.timesteps = scheduler.timesteps[steps.start : steps.stop]
        if begin is not None:
            begin(steps.start)

    def step_in_whole(*args: Any, **kwargs: Any) -> Any:
        # Solvers count from the end of all timesteps; the pipeline holds its part already.
        (scheduler.timesteps,) = whole
        result = step(*args, **kwargs)
        reached.state = result[0]
        return result

    methods: dict[str, Callable[..., Any]] = {"set_timesteps": set_part, "step": step_in_whole}
    if begin is not None:
        methods["set_begin_index"] = lambda index=0: begin(steps.start + index)
    with with_methods(scheduler, **methods):
        yield reached
