"""A teacher's walk, tried on numbers before any network is called: which grid a solver takes, and
whether its steps are functions of what they are given."""

import inspect
from collections.abc import Callable
from copy import deepcopy
from functools import wraps
from typing import Any, Literal

import numpy as np
import torch

from distillery.config.sampling import Sampling
from distillery.config.teacher import Teacher
from distillery.families import Family, Setting, Size, timed
from distillery.schedulers import ADVICE, Scheduler, copy_of, is_flow, setting_of, told
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.solver import load_scheduler

TINY = (3, 4, 4)
"""Shape of the states that a walk is tried on: of the rank that most schedulers expect."""
TOLERANCE = 1e-3
"""Relative difference of equal walks: batches of other sizes round their last bits otherwise."""
PROBE_STEPS = 2
EVEN: Literal["even"] = "even"
SAME_GRID = 0.01
"""Share of the training timesteps by which equal grids may differ."""
ANY_SHAPE = (64, 64, 64)
"""Of latents: a family's shift depends on it, the number of timesteps does not."""


def num_looks(folder: PipelineFolder, teacher: Teacher, sampling: Sampling) -> int:
    """How often the networks of a sampled model are asked for one image, but for guidance.

    Solvers of higher order look more than once in a step: stock pipelines call the networks at each
    of the scheduler's timesteps. A student's solver is of first order.

    Args:
        folder: of the teacher, or of the student.
        teacher: the section of the configuration.

    Raises:
        ValueError: the solver cannot take so many steps.
    """
    if sampling.source != "teacher":
        return sampling.steps
    scheduler = load_scheduler(folder, teacher)
    solver = _set(folder.family, scheduler, sampling.steps, ANY_SHAPE, sampling.grid)
    return len(solver.timesteps)


def calls_per_image(folder: PipelineFolder, teacher: Teacher, sampling: Sampling) -> int:
    """Network calls for one image of a sampled model; arguments and errors as of `num_looks`."""
    looks = num_looks(folder, teacher, sampling)
    setting = Setting(
        Size.of(teacher), sampling.guidance_scale or 1.0, None, sampling.guidance_interval
    )
    return folder.family.calls_per_walk(folder.denoiser_config, setting, looks)


def solver_of(
    family: Family,
    scheduler: Scheduler,
    steps: int,
    latent_shape: tuple[int, ...],
    grid: str | None = None,
) -> Scheduler:
    """A copy of a teacher's scheduler with its timesteps set, after all that can be checked of it.

    Args:
        grid: `even` for equal steps, see `even`.

    Raises:
        ValueError: it cannot take so many steps, adds noise, walks from images to noise or beyond
            the timesteps of a training, or divides by a signal that is zero.
    """
    solver = _set(family, scheduler, steps, latent_shape, grid)
    _check_direction(family, scheduler, solver, latent_shape)
    _check_signal(solver)
    _check_steps(solver)
    return solver


def even(scheduler: Scheduler) -> Scheduler:
    """The same solver on equal steps from pure noise to 1 / n of it, before any shift.

    For flows the n sigmas are linspace(1, 1 / n, n), which its `set_timesteps` is given; diffusion
    has timestep_spacing: trailing (Lin et al. 2024, arXiv:2305.08891, §3.3).

    Raises ValueError for a class that takes neither.
    """
    if not _can_be_even(scheduler):
        raise ValueError(
            f"the teacher's {type(scheduler).__name__} takes no sigmas from outside, so it cannot "
            "be sampled with grid: even; remove grid"
        )
    if not is_flow(scheduler):
        return copy_of(scheduler, timestep_spacing="trailing")
    copy = copy_of(scheduler)
    copy.set_timesteps = _evenly(copy.set_timesteps)
    return copy


def even_changes(
    family: Family, scheduler: Scheduler, steps: int, latent_shape: tuple[int, ...]
) -> bool:
    """Whether `even` is possible, and another grid than that of the stock call."""
    if not _can_be_even(scheduler):
        return False
    ours, stock = (
        _set(family, scheduler, steps, latent_shape, grid).timesteps.float()
        for grid in (EVEN, None)
    )
    if len(ours) != len(stock):
        return True
    furthest = float((ours - stock).abs().max())
    return furthest > SAME_GRID * float(scheduler.config.num_train_timesteps)


def _can_be_even(scheduler: Scheduler) -> bool:
    if is_flow(scheduler):
        return "sigmas" in inspect.signature(scheduler.set_timesteps).parameters
    return setting_of(scheduler, "timestep_spacing") is not None


def _evenly(set_timesteps: Callable[..., None]) -> Callable[..., None]:
    @wraps(set_timesteps)  # pipelines look at its signature
    def set_evenly(num_inference_steps: int | None = None, **kwargs: Any) -> None:
        if kwargs.get("sigmas") is None:
            given = kwargs.pop("timesteps", None)  # LTX's call for conditions chooses them itself
            number = len(given) if num_inference_steps is None else num_inference_steps
            kwargs["sigmas"] = np.linspace(1.0, 1.0 / number, number)
        set_timesteps(**kwargs)

    return set_evenly


def _set(
    family: Family,
    scheduler: Scheduler,
    steps: int,
    latent_shape: tuple[int, ...],
    grid: str | None,
) -> Scheduler:
    if grid is None:
        return timed(family, scheduler, steps, latent_shape)
    solver = even(scheduler)
    with told(f"{type(scheduler).__name__} cannot make {steps} even steps"):
        family.set_timesteps(solver, steps, latent_shape)
    return solver


def _check_direction(
    family: Family, scheduler: Scheduler, solver: Scheduler, latent_shape: tuple[int, ...]
) -> None:
    """Raise ValueError for a scheduler that goes from images to noise, or stands still."""
    if len(solver.timesteps) < PROBE_STEPS:
        solver = timed(family, scheduler, PROBE_STEPS, latent_shape)
    if not solver.timesteps[0] > solver.timesteps[-1]:
        raise ValueError(
            f"teacher.scheduler: {type(solver).__name__} with these settings goes from timestep "
            f"{float(solver.timesteps[0]):g} to {float(solver.timesteps[-1]):g}, from images to "
            f"noise; {ADVICE}"
        )


def _check_signal(solver: Scheduler) -> None:
    """Raise ValueError where a clean estimate would be divided by a signal of zero."""
    is_rescaled = bool(setting_of(solver, "rescale_betas_zero_snr", False))
    if not is_rescaled or setting_of(solver, "prediction_type", "epsilon") != "epsilon":
        return
    last = solver.config.num_train_timesteps - 1
    if float(solver.timesteps[0]) > last - 0.5:
        raise ValueError(
            f"teacher.scheduler: {type(solver).__name__} has rescale_betas_zero_snr: true and "
            f"prediction_type epsilon, and begins at timestep {last}, whose signal is zero: no "
            "clean image follows from a predicted noise there; set rescale_betas_zero_snr: false, "
            "or take a network that was trained for v_prediction"
        )


def _check_steps(solver: Scheduler) -> None:
    """Raise ValueError unless a sample's walk depends on its own states and predictions alone.

    Two walks, with the global generator in different states, one with neighbours in the batch and
    one without: noise that a step draws makes them differ. So does noise of a fixed seed, which
    depends on the place in the batch.
    """
    name = type(solver).__name__
    noise = torch.randn((2, *TINY), generator=torch.Generator().manual_seed(0))
    with (
        torch.random.fork_rng(devices=()),
        told(f"{name} cannot take {len(solver.timesteps)} steps"),
    ):
        torch.manual_seed(1)
        before = torch.get_rng_state()
        together = _walk(solver, noise)
        is_drawing = not torch.equal(before, torch.get_rng_state())
        torch.manual_seed(2)
        alone = _walk(solver, noise[1:])[0]
    if is_drawing or not torch.allclose(together[1], alone, TOLERANCE, TOLERANCE, equal_nan=True):
        raise ValueError(
            f"teacher.scheduler: {name} with these settings adds noise while it samples, which no "
            "seed of a sample fixes: the same sample would be another image in another run or "
            f"batch; use a deterministic form of it, or {ADVICE}"
        )
    if not bool(together.isfinite().all()):
        raise ValueError(
            f"teacher.scheduler: the steps of {name} with these settings are not finite for finite "
            f"predictions; {ADVICE}"
        )


def _walk(solver: Scheduler, state: torch.Tensor) -> torch.Tensor:
    """Where a copy of a solver ends, with predictions that depend on step and state alone."""
    walker = deepcopy(solver)
    waves = torch.arange(float(state[0].numel())).view(state.shape[1:])
    for place, timestep in enumerate(walker.timesteps):
        if hasattr(walker, "scale_model_input"):  # Euler warns of a step without it
            walker.scale_model_input(state, timestep)
        prediction = torch.cos(waves + place) + 0.1 * state
        state = walker.step(prediction, timestep, state, return_dict=False)[0]
    return state
