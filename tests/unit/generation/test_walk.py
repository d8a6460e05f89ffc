"""Solvers are judged by their steps: every scheduler of Diffusers, and some that it lacks."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchLCMScheduler,
    UniPCMultistepScheduler,
)

from distillery.families import family_named, grid_of
from distillery.generation.walk import EVEN, even_changes, solver_of
from distillery.schedulers import make_scheduler
from solvers import CLASSES, FLOW, SD, walk_of

SD15, SDXL, SD3 = map(family_named, ("sd", "sdxl", "sd3"))
SHAPE = (4, 16, 16)
TRAILING = {"timestep_spacing": "trailing"}
LEADING = {"timestep_spacing": "leading"}
EXACT = {
    "DDIMScheduler",
    "DEISMultistepScheduler",
    "DPMSolverMultistepScheduler",
    "DPMSolverSinglestepScheduler",
    "EulerDiscreteScheduler",
    "FlowMatchEulerDiscreteScheduler",
    "FlowMatchHeunDiscreteScheduler",
    "HeunDiscreteScheduler",
    "KDPM2DiscreteScheduler",
    "PNDMScheduler",
    "UniPCMultistepScheduler",
}
RANDOM = {
    "DDPMScheduler",
    "EulerAncestralDiscreteScheduler",
    "FlowMatchLCMScheduler",
    "KDPM2AncestralDiscreteScheduler",
    "LCMScheduler",
    "LTXEulerAncestralRFScheduler",
    "SASolverScheduler",
    "TCDScheduler",
}


@pytest.mark.parametrize("name", CLASSES)
def test_every_scheduler_is_exact_or_refused(name: str) -> None:
    solver, refusal = found(name)
    if solver is None:
        assert "teacher.scheduler" in refusal
        assert name not in EXACT
        return
    assert name not in RANDOM
    ends = walk_of(deepcopy(solver), 3), walk_of(deepcopy(solver), 4)
    assert ends[0].isfinite().all()
    assert torch.equal(*ends)


def found(name: str) -> tuple[Any, str]:
    """The solver that a scheduler is, or why it is refused."""
    try:
        return solver_of(SDXL, make_scheduler(name, {}), 5, SHAPE), ""
    except ValueError as error:
        return None, str(error)


@pytest.mark.parametrize(
    "scheduler",
    [
        DPMSolverMultistepScheduler(**SD, algorithm_type="sde-dpmsolver++"),
        DPMSolverMultistepScheduler(**FLOW, algorithm_type="sde-dpmsolver++"),
        FlowMatchEulerDiscreteScheduler(shift=3.0, stochastic_sampling=True),
        FlowMatchLCMScheduler(shift=3.0),
        EulerAncestralDiscreteScheduler(**SD, **TRAILING),
    ],
    ids=lambda scheduler: type(scheduler).__name__,
)
def test_noise_of_a_setting_is_refused(scheduler: Any) -> None:
    with pytest.raises(ValueError, match=r"teacher\.scheduler.* adds noise while it samples"):
        solver_of(SD3, scheduler, 4, SHAPE)


class LateScheduler(FlowMatchEulerDiscreteScheduler):
    """Adds noise in its last step alone."""

    def step(self, model_output: Any, timestep: Any, sample: Any, **kwargs: Any) -> Any:
        (following,) = super().step(model_output, timestep, sample, return_dict=False)
        is_last = self.step_index == len(self.timesteps)
        return (following + torch.randn_like(following) * is_last,)


class PlacedScheduler(FlowMatchEulerDiscreteScheduler):
    """Adds noise of a fixed seed, which depends on a sample's place in the batch."""

    def step(self, model_output: Any, timestep: Any, sample: Any, **kwargs: Any) -> Any:
        (following,) = super().step(model_output, timestep, sample, return_dict=False)
        noise = torch.randn(following.shape, generator=torch.Generator().manual_seed(0))
        return (following + 0.1 * noise,)


class WastingScheduler(FlowMatchEulerDiscreteScheduler):
    """Draws from the global generator and adds nothing."""

    def step(self, model_output: Any, timestep: Any, sample: Any, **kwargs: Any) -> Any:
        torch.rand(())
        return super().step(model_output, timestep, sample, return_dict=False)


@pytest.mark.parametrize("scheduler_class", [LateScheduler, PlacedScheduler, WastingScheduler])
def test_noise_is_found_wherever_it_comes_from(scheduler_class: Any) -> None:
    with pytest.raises(ValueError, match="adds noise while it samples"):
        solver_of(SD3, scheduler_class(), 6, SHAPE)


def test_trying_a_solver_leaves_generator_and_scheduler_as_they_are() -> None:
    torch.manual_seed(5)
    before, scheduler = torch.get_rng_state(), UniPCMultistepScheduler(**FLOW)
    solver_of(SD3, scheduler, 4, SHAPE)
    assert torch.equal(before, torch.get_rng_state())
    assert scheduler.num_inference_steps is None


@pytest.mark.parametrize(
    "scheduler_class",
    [
        DDIMScheduler,
        EulerDiscreteScheduler,
        DPMSolverMultistepScheduler,
        UniPCMultistepScheduler,
    ],
)
def test_zero_signal_is_for_v_prediction_alone(scheduler_class: Any) -> None:
    settings = SD | TRAILING | {"rescale_betas_zero_snr": True}
    with pytest.raises(ValueError, match=r"signal is zero.*v_prediction"):
        solver_of(SDXL, scheduler_class(**settings), 4, SHAPE)
    solver_of(SDXL, scheduler_class(**settings, prediction_type="v_prediction"), 4, SHAPE)
    # A grid that begins lower has a signal everywhere.
    leading = settings | {"timestep_spacing": "leading"}
    solver_of(SDXL, scheduler_class(**leading), 4, SHAPE)


@pytest.mark.parametrize(
    "settings",
    [LEADING | {"steps_offset": 5}, {"beta_schedule": "none"}, {"timestep_spacing": "none"}],
)
def test_a_refusal_advises_once(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^teacher\.scheduler: ") as refused:
        solver_of(SD15, make_scheduler("EulerDiscreteScheduler", SD | settings), 4, SHAPE)
    assert str(refused.value).count("set teacher.scheduler") == 1


@pytest.mark.parametrize("name", ["DDIMInverseScheduler", "DPMSolverMultistepInverseScheduler"])
def test_a_walk_to_noise_is_refused(name: str) -> None:
    for steps in (1, 4):
        with pytest.raises(ValueError, match="from images to noise"):
            solver_of(SDXL, make_scheduler(name, {}), steps, SHAPE)


BEYOND = {
    "FlowMatchEulerDiscreteScheduler": [
        {"shift": -3.0},
        {"shift": -0.5},
        {"shift": 3.0, "shift_terminal": -0.2},
        {"shift": 3.0, "shift_terminal": 1.5},
    ],
    "DDIMScheduler": [SD | {"steps_offset": -5}],
    "EulerDiscreteScheduler": [SD | LEADING | {"steps_offset": offset} for offset in (-5, 300)],
    "DPMSolverMultistepScheduler": [FLOW | {"flow_shift": -3.0}],
    "UniPCMultistepScheduler": [FLOW | {"flow_shift": -3.0}, SD | LEADING | {"steps_offset": 300}],
}


@pytest.mark.parametrize(
    ("name", "settings"), [(name, each) for name, many in BEYOND.items() for each in many]
)
def test_timesteps_beyond_those_of_a_training_are_refused(
    name: str, settings: dict[str, Any]
) -> None:
    family = SD3 if "shift" in str(settings) else SDXL
    for made in (solver_of, grid_of):  # what a sampled model takes, and what targets store
        with pytest.raises(ValueError, match=r"^teacher\.scheduler: .* trained with 0 to 1000"):
            made(family, make_scheduler(name, settings), 8, SHAPE)


@pytest.mark.parametrize("name", ["EDMEulerScheduler", "EulerDiscreteScheduler"])
def test_timesteps_that_are_logarithms_of_sigma_may_be_negative(name: str) -> None:
    settings = {"timestep_type": "continuous", "prediction_type": "v_prediction"}
    levels = {"sigma_min": 0.002, "sigma_max": 80.0}
    chosen = levels | (settings if name == "EulerDiscreteScheduler" else {})
    assert solver_of(SDXL, make_scheduler(name, chosen), 8, SHAPE).timesteps.min() < 0


def test_even_steps_of_a_flow_are_linspace_and_shifted() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    stock = solver_of(SD3, scheduler, 4, SHAPE)
    assert float(stock.sigmas[-2]) == pytest.approx(0.0089, abs=1e-4)
    solver = solver_of(SD3, scheduler, 4, SHAPE, EVEN)
    x = np.linspace(1, 1 / 4, 4)
    assert np.allclose(solver.sigmas, [*(3 * x / (1 + 2 * x)), 0])
    assert np.allclose(solver.timesteps, 1000 * solver.sigmas[:-1])


def test_even_steps_of_a_diffusion_are_trailing() -> None:
    scheduler = EulerDiscreteScheduler(**SD, timestep_spacing="leading", steps_offset=1)
    solver = solver_of(SDXL, scheduler, 4, SHAPE, EVEN)
    assert solver.timesteps.tolist() == [999, 749, 499, 249]


def test_even_is_a_change_only_where_the_stock_call_is_not() -> None:
    flux, shape = family_named("flux"), (64, 16)
    flow = FlowMatchEulerDiscreteScheduler(shift=3.0)
    assert even_changes(SD3, flow, 4, SHAPE)
    assert not even_changes(flux, flow, 4, shape)
    assert not even_changes(SD3, UniPCMultistepScheduler(**FLOW), 4, SHAPE)
    assert not even_changes(SD3, DPMSolverMultistepScheduler(**FLOW), 4, SHAPE)
    assert not even_changes(SDXL, DDIMScheduler(**SD, **TRAILING), 4, SHAPE)
