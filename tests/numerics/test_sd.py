"""What `StableDiffusionPipeline` changes when it is loaded is refused, not lost in a student."""

from types import SimpleNamespace
from typing import Any

import pytest
from diffusers import DDIMScheduler

from distillery.families import Size, grid_of
from distillery.families.sd import Sd
from distillery.student.schedule import few_step_scheduler

SHAPE = (4, 8, 8)


def ddim(**options: Any) -> DDIMScheduler:
    return DDIMScheduler(**({"clip_sample": False, "timestep_spacing": "trailing"} | options))


def test_leading_timesteps_hold_for_the_teacher_but_not_for_a_shorter_student() -> None:
    teacher = ddim(timestep_spacing="leading", steps_offset=1)
    assert grid_of(Sd(), teacher, 4, SHAPE).timesteps == (751, 501, 251, 1)
    student = few_step_scheduler(Sd(), teacher, 4, 2, SHAPE)
    with pytest.raises(ValueError, match=r"steps_offset 251.*sets to 1.*timestep_spacing: trail"):
        grid_of(Sd(), student, 2, SHAPE)


def test_an_already_distilled_unet_is_refused() -> None:
    unet = SimpleNamespace(config={"time_cond_proj_dim": 256})
    with pytest.raises(ValueError, match=r"time_cond_proj_dim.*distilled from"):
        Sd().latent_shape(SimpleNamespace(unet=unet, vae_scale_factor=8), Size(512, 512))
