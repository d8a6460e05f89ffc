"""The training loop that the stages share, and how a network goes to disk."""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

LossParts = dict[str, torch.Tensor]
LossRow = dict[str, float]
NUM_LOG_LINES = 24
# Steps taken before one is recorded: compilers and autotuners must have finished.
NUM_EAGER_STEPS = 12


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

    def progress(self, step: int, seconds: float) -> float:
        """Return how much of the training is done, from 0 to 1, in the middle of a step."""
        del seconds
        return (step + 0.5) / self.num_steps


@dataclass(frozen=True)
class TimedPlan(Plan):
    """A plan that ends early where its time does, its learning rate with it."""

    max_seconds: float = math.inf
    """From the step at which compilers and autotuners have finished."""

    def progress(self, step: int, seconds: float) -> float:
        """Return how much of samples or time is gone, whichever is more."""
        return max(super().progress(step, seconds), seconds / self.max_seconds)


def learning_rate(progress: float, plan: Plan) -> float:
    """Return the rate at a progress in [0, 1]: linear warm-up, then half a cosine down to 0."""
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
    random: torch.Generator,
    *,
    recorded: bool = False,
) -> list[LossRow]:
    """Train the modules on `losses()["loss"]`, leave their averaged weights in them, return a log.

    `random` is the generator that `losses` draws from. With `recorded` (CUDA only) one step is
    recorded as a CUDA graph and replayed: for networks this small, launching kernels one by one
    takes most of the time. `losses` must then stay on the device, with fixed shapes.

    Raises:
        FloatingPointError: the loss is not finite (checked at every log line).
    """
    weights = [p for module in modules for p in module.parameters() if p.requires_grad]
    averaged = [w.detach().clone() for w in weights]
    optimizer = _optimizer(weights, plan, random.device)
    rate: torch.Tensor = optimizer.param_groups[0]["lr"]
    step: Callable[[], LossParts] = partial(_take_step, weights, optimizer, losses, plan)
    log: list[LossRow] = []
    log_at = 0.0
    start = steady = time.monotonic()
    with _own_stream(recorded):
        for number in range(plan.num_steps):
            if recorded and number == NUM_EAGER_STEPS:
                step = _recorded(step, random)
            if number <= NUM_EAGER_STEPS:
                steady = time.monotonic()
            done = plan.progress(number, time.monotonic() - steady)
            rate.fill_(learning_rate(min(done, 1.0), plan))
            parts = step()
            # The average of the first steps would be one of noise: let it forget them quickly.
            decay = min(plan.ema_decay, (1.0 + number) / (10.0 + number))
            average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
            average(averaged, [w.detach() for w in weights], number)
            last = done >= 1.0 or number == plan.num_steps - 1
            if done >= log_at or last:
                log.append(_log_line(name, (number + 1) * plan.batch_size, start, parts))
                log_at = done + 1.0 / NUM_LOG_LINES
            if last:
                break
    with torch.no_grad():
        for weight, mean in zip(weights, averaged, strict=True):
            weight.copy_(mean)
    return log


def _optimizer(
    weights: list[nn.Parameter], plan: Plan, device: torch.device
) -> torch.optim.Optimizer:
    """Return AdamW with its learning rate in a tensor, which a recorded step reads anew."""
    on_gpu = device.type == "cuda"
    return torch.optim.AdamW(
        weights,
        lr=torch.zeros((), device=device),
        betas=(0.9, 0.99),
        weight_decay=plan.weight_decay,
        fused=on_gpu,
        capturable=on_gpu,
    )


def _take_step(
    weights: list[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    losses: Callable[[], LossParts],
    plan: Plan,
) -> LossParts:
    """Take one optimizer step and return the losses before it."""
    with autocast(weights[0].device):
        parts = losses()
    parts["loss"].backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(weights, plan.clip_norm)
    optimizer.step()
    optimizer.zero_grad()
    return {key: value.detach() for key, value in parts.items()}


@contextmanager
def _own_stream(recorded: bool) -> Iterator[None]:
    """Run everything on one stream beside the default one, which recording cannot use."""
    if not recorded:
        yield
        return
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        yield
    torch.cuda.synchronize()


def _recorded(step: Callable[[], LossParts], random: torch.Generator) -> Callable[[], LossParts]:
    """Record one step as a CUDA graph, without taking it, and return a function that replays it."""
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(random)
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        parts = step()

    def replay() -> LossParts:
        graph.replay()
        return parts

    return replay


def _log_line(name: str, num_samples: int, start: float, parts: LossParts) -> LossRow:
    """Print and return one row of the log; seconds are whole tenths since the stage began."""
    values = {key: float(value) for key, value in parts.items()}
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
    _edit_config(folder, {"dtype": "float32"})


def forget_origin(folder: Path) -> None:
    """Take out of a saved Diffusers model the folder that it was once loaded from."""
    _edit_config(folder, {"_name_or_path": None})


def _edit_config(folder: Path, changes: dict[str, str | None]) -> None:
    """Set keys of a saved model's config.json; None takes a key out."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    kept = {key: value for key, value in config.items() if changes.get(key, "") is not None}
    path.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")


def count_parameters(module: nn.Module) -> int:
    """Return the number of parameters of a network."""
    return sum(p.numel() for p in module.parameters())


def folder_bytes(folder: Path) -> int:
    """Return the size on disk of all files below a folder, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
