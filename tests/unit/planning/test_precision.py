"""What the plan says of rounded targets and long averages, against numbers that are rounded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler

from distillery.planning.precision import rounding_errors
from distillery.schedule import PredictionType, Schedule, add_noise
from distillery.schedulers import schedule_of
from distillery.training.objectives import segment_target
from runs import planned, settings
from training_phases import phases


def grid_of(scheduler: Any, steps: int) -> Schedule:
    scheduler.set_timesteps(steps)
    return schedule_of(scheduler)


FLOW = FlowMatchEulerDiscreteScheduler(shift=3.0)
DDIM = DDIMScheduler(timestep_spacing="trailing", clip_sample=False)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("scheduler", "kind"),
    [(FLOW, "flow_prediction"), (DDIM, "epsilon"), (DDIM, "v_prediction")],
)
@pytest.mark.parametrize("steps", [4, 25])
def test_the_error_is_that_of_rounded_states(
    scheduler: Any, kind: PredictionType, dtype: Any, steps: int
) -> None:
    grid = grid_of(scheduler, steps)
    random = torch.Generator().manual_seed(0)
    clean, noise = torch.randn(2, 200_000, generator=random)
    alphas, sigmas = torch.tensor(grid.alphas), torch.tensor(grid.sigmas)
    expected = rounding_errors(dtype, grid, kind)
    assert len(expected) == steps
    for segment in range(steps):
        levels = alphas[segment], sigmas[segment], alphas[segment + 1], sigmas[segment + 1]
        states = [add_noise(clean, noise, *level) for level in (levels[:2], levels[2:])]
        exact = segment_target(kind, *states, *levels)
        rounded = [state.to(getattr(torch, dtype)).float() for state in states]
        error = segment_target(kind, *rounded, *levels) - exact
        found = float(error.norm() / exact.norm())
        assert found == pytest.approx(expected[segment], rel=0.1)


def advice(folder: Path, teacher: Path, **changes: Any) -> str:
    return "\n".join(planned(settings(folder, teacher, **changes), folder)["advice"])


def test_many_rounded_segments_are_noted(teacher: Path, tmp_path: Path) -> None:
    many = {"targets": {"steps": 24, "num_segments": 24}, "student": {"steps": 24}}
    half = {"dtype": "bfloat16"}
    assert "targets.dtype" not in advice(tmp_path, teacher, **many)
    few = {"targets": half}
    assert "targets.dtype" not in advice(tmp_path, teacher, **few)
    noted = advice(tmp_path, teacher, **many | {"targets": many["targets"] | half})
    assert "targets.dtype is bfloat16 and the student has 24 steps" in noted
    reflow = many | {"targets": many["targets"] | half, "training": {"objective": "reflow"}}
    assert "targets.dtype" not in advice(tmp_path, teacher, **reflow)


def test_an_average_that_begins_late_is_noted(teacher: Path, tmp_path: Path) -> None:
    short = {"training": {"phases": phases(stored=80), "ema_half_life_samples": 16}}
    assert "ema_half_life" not in advice(tmp_path, teacher, **short)
    late = {"training": {"phases": phases(stored=80), "ema_half_life_samples": 80}}
    said = advice(tmp_path, teacher, **late)
    assert "50% of the exported average are still the initial weights; use 10 or fewer" in said


def test_segments_that_are_seen_too_often_are_noted(teacher: Path, tmp_path: Path) -> None:
    seen_once = 2 * planned(settings(tmp_path, teacher), tmp_path)["work"]["num_trajectories"]

    def said(times: int, **changes: int) -> str:
        sizes = ("global_batch_size", "log_every_samples", "save_every_samples")
        training = {"phases": phases(stored=times * seen_once)} | dict.fromkeys(sizes, seen_once)
        changed = {"student": {"steps": 2}, "training": training | changes}
        return advice(tmp_path, teacher, **changed)

    assert "each stored segment is seen 30 times" in said(30)
    assert "learn its trajectories by heart" not in said(29)
    assert "learn its trajectories by heart" not in said(30, held_out_prompts=1)
