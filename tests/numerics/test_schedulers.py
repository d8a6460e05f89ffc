"""The student's scheduler walks on the teacher's states, exactly, for every solver allowed."""

from typing import Any

import numpy as np
import pytest
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    HeunDiscreteScheduler,
    PNDMScheduler,
    UniPCMultistepScheduler,
)

from distillery.schedule import Schedule
from distillery.schedulers import (
    GRID_TOLERANCE,
    first_order,
    is_flow,
    make_scheduler,
    plain_config,
    prediction_type,
    schedule_of,
)
from solvers import secant_miss

SD = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
DYNAMIC = {"use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15}
SCHEDULERS = {
    "ddim-leading": DDIMScheduler(**SD, clip_sample=False, set_alpha_to_one=False, steps_offset=1),
    "ddim-trailing": DDIMScheduler(**SD, clip_sample=False, timestep_spacing="trailing"),
    "ddim-v": DDIMScheduler(
        **SD, clip_sample=False, prediction_type="v_prediction", timestep_spacing="trailing"
    ),
    "ddim-sample": DDIMScheduler(
        **SD, clip_sample=False, prediction_type="sample", timestep_spacing="trailing"
    ),
    "euler-leading": EulerDiscreteScheduler(**SD, timestep_spacing="leading", steps_offset=1),
    "euler-trailing": EulerDiscreteScheduler(**SD, timestep_spacing="trailing"),
    "euler-v": EulerDiscreteScheduler(
        **SD, timestep_spacing="trailing", prediction_type="v_prediction"
    ),
    "dpm-flow": DPMSolverMultistepScheduler(**FLOW, flow_shift=3.0),
    "dpm-trailing": DPMSolverMultistepScheduler(**SD, timestep_spacing="trailing"),
    "dpm-linspace": DPMSolverMultistepScheduler(),
    "unipc-flow": UniPCMultistepScheduler(**FLOW, flow_shift=3.0),
    "unipc-trailing": UniPCMultistepScheduler(**SD, timestep_spacing="trailing"),
    "flow-shift-3": FlowMatchEulerDiscreteScheduler(shift=3.0),
    "flow-shift-1": FlowMatchEulerDiscreteScheduler(),
    "flow-shift-12": FlowMatchEulerDiscreteScheduler(shift=12.0),
    "flow-dynamic": FlowMatchEulerDiscreteScheduler(**DYNAMIC),
    "flow-terminal": FlowMatchEulerDiscreteScheduler(**DYNAMIC, shift_terminal=0.02),
}
MU = 0.8


def set_timesteps(scheduler: Any, steps: int) -> Any:
    """As pipelines do: those with dynamic shifting give sigmas and mu themselves."""
    if scheduler.config.get("use_dynamic_shifting"):
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=MU)
    else:
        scheduler.set_timesteps(steps)
    return scheduler


def walk(scheduler: Any, steps: int) -> Schedule:
    return schedule_of(set_timesteps(type(scheduler).from_config(scheduler.config), steps))


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize(
    ("teacher_steps", "steps"), [(20, 1), (20, 2), (20, 4), (20, 5), (20, 20), (40, 8), (8, 4)]
)
def test_the_students_grid_is_part_of_the_teachers(
    name: str, teacher_steps: int, steps: int
) -> None:
    teacher = SCHEDULERS[name]
    grid = walk(teacher, teacher_steps)
    student = walk(first_order(teacher, grid, steps), steps)
    knots = range(0, teacher_steps + 1, teacher_steps // steps)
    assert student.distance(grid.subset(knots)) <= GRID_TOLERANCE
    levels = np.array(student.alphas) ** (1 if is_flow(teacher) else 2)
    rest = np.array(student.sigmas) ** (1 if is_flow(teacher) else 2)
    assert np.allclose(levels + rest, 1.0)


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_step_with_the_secant_lands_on_the_next_state(name: str, steps: int) -> None:
    """Every first-order scheduler, from states of nothing in particular: any two have a secant."""
    teacher = SCHEDULERS[name]
    grid = walk(teacher, 20)
    scheduler = set_timesteps(first_order(teacher, grid, steps), steps)
    assert secant_miss(scheduler, schedule_of(scheduler), prediction_type(teacher)) < 1e-4


@pytest.mark.parametrize(
    ("scheduler", "problem"),
    [
        (PNDMScheduler(), "is PNDMScheduler, known are DDIM.*teacher.scheduler"),
        (HeunDiscreteScheduler(), "is HeunDiscreteScheduler"),
        (DDIMScheduler(timestep_spacing="linspace"), "not its next ones.*'trailing'"),
    ],
)
def test_a_scheduler_that_cannot_be_followed_is_refused(scheduler: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        walk(scheduler, 20)


@pytest.mark.parametrize(
    "scheduler",
    [
        DPMSolverMultistepScheduler(algorithm_type="sde-dpmsolver++"),
        FlowMatchEulerDiscreteScheduler(stochastic_sampling=True),
    ],
)
def test_a_solver_that_adds_noise_is_refused(scheduler: Any) -> None:
    with pytest.raises(ValueError, match="adds noise while it samples"):
        first_order(scheduler, walk(scheduler, 20), 4)


@pytest.mark.parametrize(
    ("scheduler", "setting"),
    [
        (DDIMScheduler(**SD), "clip_sample"),
        (DDIMScheduler(**SD, clip_sample=False, thresholding=True), "thresholding"),
        (DPMSolverMultistepScheduler(**SD, thresholding=True), "thresholding"),
        (UniPCMultistepScheduler(**SD, thresholding=True), "thresholding"),
    ],
    ids=lambda value: getattr(type(value), "__name__", value),
)
def test_a_scheduler_that_clips_is_refused(scheduler: Any, setting: str) -> None:
    problem = f"has {setting}: true.*set teacher.scheduler: {{{setting}: false}}"
    with pytest.raises(ValueError, match=problem):
        first_order(scheduler, walk(scheduler, 20), 4)


def test_a_grid_that_is_not_nested_is_far_from_the_students() -> None:
    teacher = EulerDiscreteScheduler(**SD, timestep_spacing="trailing", use_karras_sigmas=True)
    grid = walk(teacher, 20)
    student = walk(first_order(teacher, grid, 4), 4)
    assert student.distance(grid.subset(range(0, 21, 5))) > 1e-2


@pytest.mark.parametrize(
    ("scheduler", "found"),
    [
        (DDIMScheduler(), "epsilon"),
        (DDIMScheduler(prediction_type="v_prediction"), "v_prediction"),
        (FlowMatchEulerDiscreteScheduler(), "flow_prediction"),
        (UniPCMultistepScheduler(**FLOW), "flow_prediction"),
    ],
)
def test_the_prediction_type_is_the_schedulers(scheduler: Any, found: str) -> None:
    assert prediction_type(scheduler) == found


def test_a_prediction_type_that_contradicts_the_states_is_refused() -> None:
    with pytest.raises(ValueError, match="'epsilon' on flow states: flow_prediction goes with"):
        prediction_type(UniPCMultistepScheduler(use_flow_sigmas=True))


def test_a_scheduler_is_made_again_from_its_plain_configuration() -> None:
    for scheduler in SCHEDULERS.values():
        config = plain_config(scheduler)
        again = make_scheduler(config.pop("class"), config)
        assert walk(again, 20) == walk(scheduler, 20)


def test_an_unknown_scheduler_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match="no scheduler 'Euler'; supported for a distillation: DDIMScheduler"
    ):
        make_scheduler("Euler", {})
