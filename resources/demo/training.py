"""The training loop that the stages share, and how a network goes to disk."""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

LossParts = dict[str, torch.Tensor]
LossRow = dict[str, float]
NUM_LOG_LINES = 24


@dataclass(frozen=True)
class Plan:
    """How one stage trains."""

    num_samples: int
    batch_size: int
    peak_lr: float
    ema_decay: float
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    warmup_share: float = 0.03
    """Part of the samples over which the learning rate rises from 0."""

    @property
    def num_steps(self) -> int:
        """Number of optimizer steps, at least one if there are any samples."""
        return -(-self.num_samples // self.batch_size)


def learning_rate(progress: float, plan: Plan) -> float:
    """Return the rate at a progress in [0, 1): linear warm-up, then half a cosine down to 0."""
    if progress < plan.warmup_share:
        return plan.peak_lr * progress / plan.warmup_share
    rest = (progress - plan.warmup_share) / (1.0 - plan.warmup_share)
    return plan.peak_lr * 0.5 * (1.0 + math.cos(math.pi * rest))


def generator_for(seed: int, stage: str, device: torch.device) -> torch.Generator:
    """Return a stage's own generator on the device (CPU and GPU streams differ)."""
    offset = int.from_bytes(stage.encode()[:4].ljust(4, b" "), "big")
    return torch.Generator(device).manual_seed(seed * 2**32 + offset)


def autocast(device: torch.device) -> torch.autocast:
    """Return bf16 autocast on a GPU and none on a CPU, where float32 is faster."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def fit(
    name: str,
    modules: Sequence[nn.Module],
    losses: Callable[[], LossParts],
    plan: Plan,
    device: torch.device,
) -> list[LossRow]:
    """Train the modules on `losses()["loss"]`, leave their averaged weights in them, return a log.

    Raises:
        FloatingPointError: the loss is not finite (checked at every log line).
    """
    weights = [p for module in modules for p in module.parameters() if p.requires_grad]
    averaged = [w.detach().clone() for w in weights]
    optimizer = torch.optim.AdamW(
        weights,
        lr=0.0,
        betas=(0.9, 0.99),
        weight_decay=plan.weight_decay,
        fused=device.type == "cuda",
    )
    log: list[LossRow] = []
    start = time.monotonic()
    for step in range(plan.num_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate((step + 0.5) / plan.num_steps, plan)
        with autocast(device):
            parts = losses()
        parts["loss"].backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(weights, plan.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        # The average of the first steps would be one of noise: let it forget them quickly.
        decay = min(plan.ema_decay, (1.0 + step) / (10.0 + step))
        average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        average(averaged, [w.detach() for w in weights], step)
        if step % max(1, plan.num_steps // NUM_LOG_LINES) == 0 or step == plan.num_steps - 1:
            log.append(_log_line(name, (step + 1) * plan.batch_size, start, parts))
    with torch.no_grad():
        for weight, average in zip(weights, averaged, strict=True):
            weight.copy_(average)
    return log


def _log_line(name: str, num_samples: int, start: float, parts: LossParts) -> LossRow:
    """Print and return one row of the log; seconds are whole tenths since the stage began."""
    values = {key: float(value.detach()) for key, value in parts.items()}
    if not math.isfinite(values["loss"]):
        raise FloatingPointError(f"{name}: the loss is {values} after {num_samples} samples")
    seconds = round(time.monotonic() - start, 1)
    shown = "  ".join(f"{key} {value:.5f}" for key, value in values.items())
    print(f"{name}: {num_samples} samples, {seconds} s  {shown}", flush=True)
    rounded = {key: round(value, 6) for key, value in values.items()}
    return {"samples": num_samples, "seconds": seconds, **rounded}


def load_as_float32(folder: Path) -> None:
    """Make a saved transformers model load in float32 by default, whatever its weights' type.

    Diffusers loads its own models in float32 unless told otherwise, transformers in the type that
    the configuration names: one pipeline would hold two types.
    """
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"dtype": "float32"}, indent=2, sort_keys=True) + "\n")


def count_parameters(module: nn.Module) -> int:
    """Return the number of parameters of a network."""
    return sum(p.numel() for p in module.parameters())


def folder_bytes(folder: Path) -> int:
    """Return the size on disk of all files below a folder, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
