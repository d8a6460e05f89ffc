"""How exact a step is: stock bfloat16, and the network as the stages use it, against float32."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from models import Model, padded_prompts

from distillery.config.teacher import Teacher
from distillery.families import Request, Setting, Size, family_of
from distillery.families.protocol import Denoiser
from distillery.generation.speed import compile_networks
from distillery.model_folder import load_denoiser
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.loading import load_exact_teacher
from distillery.teacher.rounding import keep_states_in_float32

NUM_STEPS = 3
"""Equal steps from noise to image; one call of the network is compared in each."""
Call = tuple[tuple[Any, ...], dict[str, Any], torch.Tensor]
"""Arguments, keywords and result of one call of a network, for one sample."""


def measure_precision(model: Model, teacher: Teacher, device: torch.device) -> dict[str, Any]:
    """Relative error to float32 of one call in each of three steps, from the same state.

    Ours is the network as the targets stage uses it, in its batch, compiled on a GPU. Stock is the
    bfloat16 network called for one sample; both get states that are cast at their door, as a stock
    pipeline's are in bfloat16. The reference computes in float32 without TF32.
    """
    calls = record_calls(model, teacher, device)
    folder = Path(teacher.path) / family_of(model.pipeline).denoisers[0]
    stock = load_denoiser(folder, torch.bfloat16).to(device)
    keep_states_in_float32(stock, torch.bfloat16, family_of(model.pipeline))
    found = {"ours": [result for _, _, result in calls], "stock": repeat(calls, stock)}
    del stock
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    exact = repeat(calls, load_denoiser(folder, torch.float32).to(device))
    torch.backends.cudnn.allow_tf32 = before
    errors = {
        name: [
            float((result - right).norm() / right.norm())
            for result, right in zip(results, exact, strict=True)
        ]
        for name, results in found.items()
    }
    ratios = [ours / stock for ours, stock in zip(errors["ours"], errors["stock"], strict=True)]
    return {"error_to_float32": errors, "ours_to_stock": ratios}


def record_calls(model: Model, teacher: Teacher, device: torch.device) -> list[Call]:
    """Run the product's pipeline for a few steps at the stage's batch size; keep its calls."""
    family = family_of(model.pipeline)
    folder = PipelineFolder(Path(teacher.path))
    pipeline = load_exact_teacher(teacher, folder, device, family.text_components)
    if device.type == "cuda":
        compile_networks(pipeline, family)
    calls: list[Call] = []
    name = family.denoisers[0]
    setattr(pipeline, name, Recorded(getattr(pipeline, name), calls.append))
    prompts = padded_prompts(model, model.batch_size)
    family.generate(
        pipeline,
        Request(
            seeds=range(model.batch_size),
            conditioning=prompts,
            negative={name: torch.zeros_like(value) for name, value in prompts.items()},
            steps=NUM_STEPS,
            setting=Setting(Size(model.height, model.width), model.guidance_scale),
            decode=False,
            dtype=torch.float32,
        ),
    )
    # Of a pipeline that calls once a branch, the first branch.
    return calls[:: len(calls) // NUM_STEPS]


class Recorded(torch.nn.Module):
    """A network that tells of its calls."""

    def __init__(self, network: Denoiser, tell: Callable[[Call], None]) -> None:
        """`tell` gets each call's last sample."""
        super().__init__()
        self.network = network
        self.tell = tell

    def __getattr__(self, name: str) -> Any:
        """What a pipeline asks of its network."""
        return super().__getattr__(name) if name == "network" else getattr(self.network, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's own result."""
        result = self.network(*args, **kwargs)
        size = len(result[0])
        args_of_one, kwargs_of_one = last_sample(args, size), last_sample(kwargs, size)
        self.tell((args_of_one, kwargs_of_one, result[0][-1:].float().clone()))
        return result


def last_sample(value: Any, size: int) -> Any:
    """The last of `size` samples in every tensor that has one for each; states in float32."""
    if isinstance(value, torch.Tensor):
        one = value[-1:].clone() if value.ndim and len(value) == size else value
        return one.float() if one.is_floating_point() and one.ndim > 1 else one
    if isinstance(value, tuple):
        return tuple(last_sample(item, size) for item in value)
    if isinstance(value, dict):
        return {name: last_sample(item, size) for name, item in value.items()}
    return value


@torch.no_grad()
def repeat(calls: list[Call], network: Denoiser) -> list[torch.Tensor]:
    """The same calls of another network."""
    return [network(*args, **kwargs)[0].float() for args, kwargs, _ in calls]
