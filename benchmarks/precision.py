"""How exact a forward pass is: stock bfloat16, and the network as the stages use it."""

from pathlib import Path
from typing import Any

import diffusers
import torch
from models import Model, random_prompt

from distillery.config.section import Dtype
from distillery.families import Setting, family_of, grid_of
from distillery.identity import SampleId, draw_noise
from distillery.stages.speed import compile_networks
from distillery.teacher.loading import load_pipeline


def measure_precision(model: Model, folder: Path) -> dict[str, Any]:
    """Relative error of one forward pass to float32, at three states: stock bfloat16 and ours.

    Ours is the network as the stages use it: states in float32, cast at its door, compiled.
    """
    found: dict[str, list[torch.Tensor]] = {}
    for name in ("float32", "stock", "ours"):
        dtype: Dtype = "float32" if name == "float32" else "bfloat16"
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if name == "stock":
            pipeline = diffusers.DiffusionPipeline.from_pretrained(
                folder / "teacher", dtype=torch.bfloat16
            ).to(device)
        else:
            pipeline = load_pipeline(folder / "teacher", dtype, device)
        if name == "ours" and device.type == "cuda":
            compile_networks(pipeline, family_of(model.pipeline))
        found[name] = [
            predict_at(model, pipeline, share, torch.bfloat16 if name == "stock" else torch.float32)
            for share in (0.0, 0.5, 0.9)
        ]
        del pipeline
        torch.cuda.empty_cache()
    errors = {
        name: [
            float((ours - exact).norm() / exact.norm())
            for ours, exact in zip(found[name], found["float32"], strict=True)
        ]
        for name in ("stock", "ours")
    }
    ratios = [ours / stock for ours, stock in zip(errors["ours"], errors["stock"], strict=True)]
    return {"error_to_float32": errors, "ours_to_stock": ratios}


@torch.no_grad()
def predict_at(model: Model, pipeline: Any, share: float, dtype: torch.dtype) -> torch.Tensor:
    """The conditional prediction at a state this share of the steps along; float32 on the CPU."""
    family = family_of(model.pipeline)
    device = pipeline._execution_device
    shape = family.latent_shape(pipeline, model.height, model.width)
    grid = grid_of(family, pipeline.scheduler, model.steps, shape)
    step = int(share * model.steps)
    clean, noise = (draw_noise(0, [SampleId(name, 0)], shape) for name in ("clean", "noise"))
    noisy = grid.alphas[step] * clean + grid.sigmas[step] * noise
    prompts = family.pad([random_prompt(model)], max(size[0] for size in model.prompt.values()))
    prediction = family.predict(
        getattr(pipeline, family.denoisers[0]),
        noisy.to(device, dtype),
        torch.tensor([grid.timesteps[step]], device=device),
        {
            name: value.to(device, dtype) if value.is_floating_point() else value.to(device)
            for name, value in prompts.items()
        },
        Setting(model.height, model.width, model.guidance_scale),
    )
    return prediction.float().cpu()
