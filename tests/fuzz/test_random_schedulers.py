"""Random schedulers with random settings for every family: exact, or refused by the key's name."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from distillery.families import grid_of
from distillery.generation.walk import solver_of
from distillery.schedulers import (
    GRID_TOLERANCE,
    first_order,
    has_levels,
    is_flow,
    make_scheduler,
    plain_config,
    prediction_type,
    settings_of,
)
from distillery.student.schedule import check_student_grid
from distillery.teacher.solver import load_scheduler
from fuzzing import seeds
from solvers import (
    CLASSES,
    TEACHERS,
    kind_of_teacher,
    perfect_miss,
    secant_miss,
    teacher_folder,
    walk_of,
    with_scheduler,
)

MULTISTEP = ("DPMSolverMultistepScheduler", "UniPCMultistepScheduler")
DIFFUSIONS = ("DDIMScheduler", "EulerDiscreteScheduler", *MULTISTEP)
FLOWS = ("FlowMatchEulerDiscreteScheduler", *MULTISTEP)
LIKELY = (*DIFFUSIONS, *FLOWS)
SLOW_TO_MAKE = ("KDPM2DiscreteScheduler", "KDPM2AncestralDiscreteScheduler")
VALUES: dict[str, tuple[Any, ...]] = {
    "timestep_spacing": ("trailing", "leading", "linspace", "other"),
    "prediction_type": ("epsilon", "v_prediction", "sample", "flow_prediction", "other"),
    "algorithm_type": ("dpmsolver++", "dpmsolver", "sde-dpmsolver++", "deis"),
    "solver_type": ("midpoint", "heun", "bh1", "bh2", "logrho"),
    "final_sigmas_type": ("zero", "sigma_min"),
    "beta_schedule": ("linear", "scaled_linear", "squaredcos_cap_v2", "other"),
    "time_shift_type": ("exponential", "linear"),
    "interpolation_type": ("linear", "log_linear"),
    "timestep_type": ("discrete", "continuous"),
    "shift": (1.0, 3.0, 0.5, 12),
    "flow_shift": (1.0, 3.0, 5, 12.0),
    "shift_terminal": (0.02, 0.1),
    "num_train_timesteps": (1000, 500, 10),
    "steps_offset": (0, 1, 2),
    "solver_order": (1, 2, 3),
    "sigma_min": (0.01, 0.03),
    "sigma_max": (10.0, 14.6),
    "lambda_min_clipped": (-5.1,),
}
DIFFUSION_LIKE = {"timestep_spacing": "trailing", "clip_sample": False}
FLOW_LIKE = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
LANDED = 1e-3
ROUNDED = 4e-7
AT_THE_IMAGE = 0.15


def asked(draw: random.Random, is_flow_network: bool) -> dict[str, Any]:
    """A section `teacher.scheduler`, most of which could be meant."""
    usual = [name for name in CLASSES if name not in SLOW_TO_MAKE]
    fits = FLOWS if is_flow_network else DIFFUSIONS
    name = draw.choice(draw.choice([fits, fits, fits, LIKELY, usual]))
    try:
        known = settings_of(name)
    except ValueError:
        return {"class": name}
    meant = FLOW_LIKE if is_flow_network else DIFFUSION_LIKE
    likely = draw.choice([meant, meant, meant, {}, DIFFUSION_LIKE, FLOW_LIKE])
    chosen = {setting: value for setting, value in likely.items() if setting in known}
    for setting in draw.sample(sorted(known), min(len(known), draw.choice([0, 0, 1, 2, 3]))):
        default = known[setting]
        switch = (True, False) if isinstance(default, bool) else (default,)
        value = draw.choice(VALUES.get(setting, switch))
        if isinstance(value, bool | int | float | str):
            chosen[setting] = value
    return {"class": name, **chosen}


@pytest.mark.parametrize("seed", seeds(40))
def test_a_scheduler_is_exact_or_refused(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    name = draw.choice(sorted(TEACHERS))
    scheduler = asked(draw, is_flow(TEACHERS[name][1]))
    steps, segments = draw.choice([(4, 4), (8, 4), (8, 2), (20, 4), (20, 1), (28, 4), (30, 5)])
    case = f"{name} {scheduler} {steps} {segments}"
    folder, shape = teacher_folder(tmp_path, name), TEACHERS[name][2]
    family = folder.family
    with refusing(case):
        chosen = load_scheduler(folder, with_scheduler(scheduler))
        solver = solver_of(family, chosen, steps, shape)
        check_generated(name, family, chosen, solver, steps, case)
        if has_levels(chosen):
            check_distilled(family, chosen, steps, segments, shape, case)


@contextmanager
def refusing(case: str) -> Iterator[None]:
    """A refusal names the key."""
    try:
        yield
    except ValueError as error:
        if "teacher.scheduler" not in str(error):
            raise AssertionError(case) from error


def check_generated(
    name: str, family: Any, chosen: Any, solver: Any, steps: int, case: str
) -> None:
    """A solver that generates is deterministic, and of the network's kind."""
    shape = TEACHERS[name][2]
    kind = kind_of_teacher(name)
    assert is_flow(chosen) == (kind == "flow_prediction"), case
    assert prediction_type(chosen) == kind, case
    again = solver_of(family, chosen, steps, shape)
    assert torch.equal(walk_of(solver, 1), walk_of(again, 2)), case
    if steps >= 20:
        end = perfect_miss(solver_of(family, chosen, steps, shape), kind)
        assert end < AT_THE_IMAGE, f"{case}: {end}"


def check_distilled(
    family: Any, chosen: Any, steps: int, segments: int, shape: Any, case: str
) -> None:
    """A solver of targets has a student that lands on its states, and the stock call's grid."""
    grid = grid_of(family, chosen, steps, shape)
    knots = grid.subset(range(0, steps + 1, steps // segments))
    check_student_grid(family, chosen, knots, steps, shape)
    again = solver_of(family, chosen, steps, shape)
    assert [float(at) for at in again.timesteps] == pytest.approx(grid.timesteps), case
    config = json.loads(json.dumps(plain_config(chosen)))
    stored = make_scheduler(config.pop("class"), config)
    assert grid_of(family, stored, steps, shape).distance(grid) <= GRID_TOLERANCE, case
    missed = student_miss(family, chosen, grid, segments, shape)
    # A clean estimate is divided by alpha, which enlarges float32's rounding.
    assert missed < max(LANDED, ROUNDED / min(filter(None, knots.alphas))), f"{case}: {missed}"


def student_miss(family: Any, scheduler: Any, grid: Any, steps: int, shape: Any) -> float:
    """How far a student's steps end from any states that the teacher may have there, relative."""
    student = first_order(scheduler, grid, steps)
    family.set_timesteps(student, steps, shape)
    return secant_miss(student, grid_of(family, student, steps, shape), prediction_type(scheduler))
