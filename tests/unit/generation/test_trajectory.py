"""What is recorded while a scheduler walks: states and predictions at the knots asked for."""

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from distillery.generation.trajectory import Trajectory, record

STEPS, SHAPE = 4, (2, 3, 4, 4)
KNOTS = (0, 2, 4)


def walk(
    knots: tuple[int, ...], **options: bool
) -> tuple[Trajectory, list[torch.Tensor], list[torch.Tensor]]:
    """What is recorded, all states and all predictions; these are in bfloat16."""
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(STEPS)
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(SHAPE, generator=generator)]
    predictions = [torch.randn(SHAPE, generator=generator).bfloat16() for _ in range(STEPS)]
    with record(scheduler, knots, **options) as trajectory:
        for timestep, prediction in zip(scheduler.timesteps, predictions, strict=True):
            states.append(scheduler.step(prediction, timestep, states[-1], return_dict=False)[0])
    assert "step" not in vars(scheduler), "the scheduler is as it was"
    return trajectory, states, predictions


def test_states_are_kept_at_the_knots_alone() -> None:
    trajectory, states, _ = walk(KNOTS)
    assert trajectory.num_steps == STEPS
    assert trajectory.states.keys() == set(KNOTS)
    assert trajectory.predictions == {}
    assert trajectory.stack(KNOTS).equal(torch.stack([states[knot] for knot in KNOTS], dim=1))


def test_predictions_are_kept_in_float32_where_they_are_asked_for() -> None:
    trajectory, _, predictions = walk(KNOTS, with_predictions=True)
    assert trajectory.predictions.keys() == {0, 2}, "none is made at the end"
    kept = torch.stack([trajectory.predictions[knot] for knot in (0, 2)], dim=1)
    assert kept.dtype == torch.float32
    assert kept.equal(torch.stack([predictions[knot].float() for knot in (0, 2)], dim=1))


def test_nothing_is_kept_of_a_state_that_changes_later() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(STEPS)
    noisy = torch.ones(SHAPE)
    with record(scheduler, [0]) as trajectory:
        scheduler.step(torch.ones(SHAPE), scheduler.timesteps[0], noisy)
    noisy.zero_()
    assert trajectory.states[0].equal(torch.ones(SHAPE))


def test_the_scheduler_is_as_it_was_after_an_error() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler()
    with pytest.raises(KeyboardInterrupt), record(scheduler, KNOTS):
        raise KeyboardInterrupt
    assert "step" not in vars(scheduler)
