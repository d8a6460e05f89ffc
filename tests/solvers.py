"""Teachers of which only the scheduler is there, and walks of a network that is always right."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    PNDMScheduler,
    UniPCMultistepScheduler,
)

from distillery.config.teacher import Teacher
from distillery.files import write_json
from distillery.schedule import PredictionType, Schedule
from distillery.schedulers import is_flow
from distillery.teacher.folder import PipelineFolder
from distillery.training.objectives import segment_target

SD = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
DYNAMIC = {"use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15, "shift": 3.0}
TEACHERS: dict[str, tuple[str, Any, tuple[int, ...]]] = {
    "wan": ("WanPipeline", UniPCMultistepScheduler(**FLOW), (4, 1, 8, 8)),
    "sdxl": (
        "StableDiffusionXLPipeline",
        EulerDiscreteScheduler(
            **SD, timestep_spacing="leading", steps_offset=1, prediction_type="epsilon"
        ),
        (4, 8, 8),
    ),
    "sd15": ("StableDiffusionPipeline", PNDMScheduler(**SD, steps_offset=1), (4, 8, 8)),
    "sd21": (
        "StableDiffusionPipeline",
        DDIMScheduler(**SD, prediction_type="v_prediction", clip_sample=False),
        (4, 8, 8),
    ),
    "pixart": ("PixArtSigmaPipeline", DPMSolverMultistepScheduler(), (4, 8, 8)),
    "sana": ("SanaPipeline", DPMSolverMultistepScheduler(**FLOW), (4, 8, 8)),
    "sd3": (
        "StableDiffusion3Pipeline",
        FlowMatchEulerDiscreteScheduler(shift=3.0),
        (4, 16, 16),
    ),
    "flux-dev": ("FluxPipeline", FlowMatchEulerDiscreteScheduler(**DYNAMIC), (64, 16)),
    "flux-schnell": ("FluxPipeline", FlowMatchEulerDiscreteScheduler(shift=1.0), (64, 16)),
    "qwen-image": (
        "QwenImagePipeline",
        FlowMatchEulerDiscreteScheduler(**DYNAMIC, shift_terminal=0.02),
        (64, 16),
    ),
}
"""Name to pipeline class, the released scheduler, and a latent's shape."""
CLASSES = sorted(
    name
    for name in dir(diffusers)
    if name.endswith("Scheduler") and not name.startswith(("_", "Flax"))
)
"""Every scheduler of Diffusers, those that lack a package here as well."""


def teacher_folder(folder: Path, name: str, own: Any = None) -> PipelineFolder:
    """A pipeline's folder that holds an index and a scheduler: the released one, or `own`."""
    pipeline_class, released, _ = TEACHERS[name]
    scheduler = own or released
    scheduler.save_pretrained(folder / "scheduler")
    entry = ["diffusers", type(scheduler).__name__]
    write_json(folder / "model_index.json", {"_class_name": pipeline_class, "scheduler": entry})
    return PipelineFolder(folder)


def with_scheduler(scheduler: Mapping[str, Any] | None) -> Teacher:
    """A teacher's section."""
    return Teacher.model_validate(
        {"path": "teacher", "height": 64, "width": 64, "scheduler": scheduler}
    )


def states(seed: int, rows: int = 2) -> torch.Tensor:
    return torch.randn((rows, 3, 4, 4), generator=torch.Generator().manual_seed(seed))


def walk_of(solver: Any, seed: int) -> torch.Tensor:
    """Where a scheduler whose timesteps are set ends, with the global generator in some state."""
    torch.manual_seed(seed)
    state = states(0)
    for timestep in solver.timesteps:
        if hasattr(solver, "scale_model_input"):
            solver.scale_model_input(state, timestep)
        state = solver.step(torch.tanh(state), timestep, state, return_dict=False)[0]
    return state


def perfect_miss(solver: Any, kind: str) -> float:
    """How far from the image a walk ends, relative, whose network knows image and noise.

    Args:
        solver: a scheduler whose timesteps are set.
        kind: what the network predicts, as it was trained.
    """
    clean, noise = 0.3 * torch.tanh(states(1)), states(2)
    if kind == "flow_prediction":
        first, last = float(solver.sigmas[0]), float(solver.sigmas[-1])
        state, end = _mix(1 - first, clean, first, noise), _mix(1 - last, clean, last, noise)
    else:
        alpha, sigma = _level(solver, solver.timesteps[0])
        scale = float(getattr(solver, "init_noise_sigma", 1.0))
        scale = (scale**2 + 1) ** 0.5 if scale > 1.001 else 1.0
        state, end = scale * _mix(alpha, clean, sigma, noise), clean
    for timestep in solver.timesteps:
        if hasattr(solver, "scale_model_input"):
            solver.scale_model_input(state, timestep)
        predicted = noise - clean
        if kind != "flow_prediction":
            alpha, sigma = _level(solver, timestep)
            velocity = _mix(alpha, noise, -sigma, clean)
            predicted = {"epsilon": noise, "sample": clean, "v_prediction": velocity}[kind]
        state = solver.step(predicted, timestep, state, return_dict=False)[0]
    return float((state - end).norm() / noise.norm())


def _mix(alpha: float, clean: torch.Tensor, sigma: float, noise: torch.Tensor) -> torch.Tensor:
    return alpha * clean + sigma * noise


def _level(solver: Any, timestep: torch.Tensor) -> tuple[float, float]:
    """alpha and sigma of a training timestep, between two of them where it is no whole number."""
    levels, at = solver.alphas_cumprod, float(timestep)
    low = min(max(int(at), 0), len(levels) - 1)
    high = min(low + 1, len(levels) - 1)
    square = float(levels[low] + (levels[high] - levels[low]) * (at - low))
    return square**0.5, (1 - square) ** 0.5


def kind_of_teacher(name: str) -> str:
    """What its network predicts: of flows and of what the released scheduler says."""
    scheduler = TEACHERS[name][1]
    if is_flow(scheduler):
        return "flow_prediction"
    return str(scheduler.config.get("prediction_type", "epsilon"))


def secant_miss(scheduler: Any, grid: Schedule, kind: PredictionType) -> float:
    """How far steps with the secants between any states end from these, relative; the network sees
    states without their scale."""
    state, furthest = states(9) * grid.scales[0], 0.0
    for step, timestep in enumerate(scheduler.timesteps):
        following = states(10 + step) * grid.scales[step + 1]
        seen = state / grid.scales[step]
        if hasattr(scheduler, "scale_model_input"):
            torch.testing.assert_close(scheduler.scale_model_input(state, timestep), seen)
        levels = [
            torch.tensor(values[step + after])
            for after in (0, 1)
            for values in (grid.alphas, grid.sigmas)
        ]
        target = segment_target(kind, seen, following / grid.scales[step + 1], *levels)
        landed = scheduler.step(target, timestep, state, return_dict=False)[0]
        furthest = max(furthest, float((landed - following).norm() / following.norm()))
        state = following
    return furthest
