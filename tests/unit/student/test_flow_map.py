"""Pairs of knots that an any-step student joins, and the names that its scheduler gives them."""

from collections import Counter

import pytest
from diffusers import DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler

from distillery.families import family_named, grid_of
from distillery.schedulers import Scheduler
from distillery.student.flow_map import (
    NAME_TOLERANCE,
    flow_map_grid,
    flow_map_scheduler,
    pairs_of,
    shares_of,
)
from tiny import LATENT_SHAPE, tiny_scheduler

TEACHER_STEPS = 24


def scheduler_for(teacher: Scheduler, steps: int) -> Scheduler:
    """Of a student of so many steps at most."""
    whole = grid_of(family_named("wan"), teacher, TEACHER_STEPS, LATENT_SHAPE)
    knots = range(0, TEACHER_STEPS + 1, TEACHER_STEPS // steps)
    return flow_map_scheduler(teacher, whole.subset(knots))


def test_pairs_are_the_steps_of_every_number_that_divides() -> None:
    of_one_and_two = [(0, 4), (0, 2), (2, 4)]
    assert pairs_of(4) == (*of_one_and_two, *[(knot, knot + 1) for knot in range(4)])
    assert len(pairs_of(6)) == 1 + 2 + 3 + 6


@pytest.mark.parametrize("steps", [2, 4, 6, 8, 12])
def test_each_number_of_steps_has_the_same_share(steps: int) -> None:
    """And each step of one number the same share of that."""
    pairs, counts = pairs_of(steps), Counter(shares_of(steps))
    assert set(counts) == set(range(len(pairs)))
    for number, count in counts.items():
        first, last = pairs[number]
        assert count == last - first, "a number n has n steps, of steps / n knots each"


@pytest.mark.parametrize("shift", [1.0, 3.0, 5.0, 8.0])
@pytest.mark.parametrize("steps", [2, 4, 6, 8, 12])
def test_with_every_number_of_steps_the_student_visits_its_knots(shift: float, steps: int) -> None:
    """Bit for bit, as the stock pipeline asks for them."""
    teacher = type(tiny_scheduler()).from_config(tiny_scheduler().config, flow_shift=shift)
    scheduler = scheduler_for(teacher, steps)
    knots = flow_map_grid(scheduler, steps)
    for number in (each for each in range(1, steps + 1) if steps % each == 0):
        assert flow_map_grid(scheduler, number) == knots.subset(
            range(0, steps + 1, steps // number)
        )
    whole = grid_of(family_named("wan"), teacher, TEACHER_STEPS, LATENT_SHAPE)
    true = whole.sigmas[:: TEACHER_STEPS // steps]
    furthest = max(abs(name - level) for name, level in zip(knots.sigmas, true, strict=True))
    assert furthest < shift / 1000, "a thousandth of the unshifted levels"


def test_the_names_of_other_solvers_are_near_or_refused() -> None:
    dpm = DPMSolverMultistepScheduler(
        use_flow_sigmas=True, flow_shift=3.0, prediction_type="flow_prediction"
    )
    assert scheduler_for(dpm, 4).config.shift == 3.0
    euler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    with pytest.raises(ValueError, match=r"FlowMatchEulerDiscreteScheduler has \[1\.0, 0\.8"):
        scheduler_for(euler, 4)
    assert NAME_TOLERANCE < 0.02
