"""What the plan says of rounded targets and long averages, against numbers that are rounded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler

from distillery.config.run import Config, parse_config
from distillery.notes import Note
from distillery.planning.precision import on_average, on_rounding, rounding_errors
from distillery.planning.work import on_amounts, plan_work
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


def config_of(folder: Path, teacher: Path, **changes: Any) -> Config:
    config = parse_config(settings(folder, teacher, **changes), "tiny")
    assert isinstance(config, Config)
    return config


def test_many_rounded_segments_are_noted(teacher: Path, tmp_path: Path) -> None:
    def noted(steps: int, dtype: str, **training: Any) -> list[Note]:
        targets = {"steps": 24, "num_segments": 24, "dtype": dtype}
        config = config_of(tmp_path, teacher, targets=targets, training=training)
        grid = grid_of(FLOW, 24).subset(range(0, 25, 24 // steps))
        return [*on_rounding(config, grid, "flow_prediction")]

    assert noted(24, "float32") == noted(2, "bfloat16") == []
    assert noted(24, "bfloat16", objective="reflow") == []
    (told,) = map(str, noted(24, "bfloat16"))
    assert "targets.dtype is bfloat16 and the student has 24 steps" in told


def test_an_average_that_begins_late_is_noted(teacher: Path, tmp_path: Path) -> None:
    def noted(half_life: int) -> list[Note]:
        training = {"phases": phases(stored=80), "ema_half_life_samples": half_life}
        return [*on_average(config_of(tmp_path, teacher, training=training))]

    assert noted(16) == []
    (told,) = map(str, noted(80))
    assert "50% of the exported average are still the initial weights; use 10 or fewer" in told


def test_segments_that_are_seen_too_often_are_noted(teacher: Path, tmp_path: Path) -> None:
    seen_once = 2 * 1000

    def noted(times: int, **training: int) -> list[Note]:
        sizes = ("global_batch_size", "log_every_samples", "save_every_samples")
        section = dict.fromkeys(sizes, seen_once) | training
        section |= {"phases": phases(stored=times * seen_once)}
        config = config_of(tmp_path, teacher, training=section)
        work = plan_work(config, {"train": 1000, "eval": 5}, 4 * 1 * 4 * 4, calls_per_step=2)
        return [*on_amounts(config, work)]

    (told,) = map(str, noted(30))
    assert "each stored segment is seen 30 times: the student may learn its trajectories" in told
    assert noted(29) == noted(30, held_out_prompts=1) == []


def test_the_plan_tells_all_three(teacher: Path, tmp_path: Path) -> None:
    training = {"phases": phases(stored=8 * 9 * 24 * 4), "ema_half_life_samples": 10**6}
    many = {"steps": 24, "num_segments": 24, "dtype": "bfloat16"}
    raw = settings(tmp_path, teacher, targets=many, student={"steps": 24}, training=training)
    advice = planned(raw, tmp_path)["advice"]
    for begin in ("targets.dtype is", "training.ema_half_life_samples is", "each stored segment"):
        assert any(line.startswith(begin) for line in advice)
