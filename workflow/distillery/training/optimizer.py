"""The update: AdamW, its learning rate by samples, and the average of the weights."""

import math
from collections.abc import Iterable

import torch

from distillery.config.training import Training


def make_optimizer(
    parameters: Iterable[torch.nn.Parameter], training: Training, device: torch.device
) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101), fused on CUDA, over all parameters."""
    return torch.optim.AdamW(
        list(parameters),
        lr=training.learning_rate,
        betas=training.betas,
        weight_decay=training.weight_decay,
        fused=device.type == "cuda",
    )


def learning_rate_at(samples_seen: int, training: Training) -> float:
    """The learning rate of the update that begins after `samples_seen` samples.

    A linear rise over `warmup_samples`, times 1 or half a cosine from 1 to 0 over `num_samples`.
    Both are taken in the middle of the batch, so that neither the first nor the last update is
    wasted.
    """
    middle = samples_seen + training.global_batch_size / 2
    rise = min(1.0, middle / training.warmup_samples) if training.warmup_samples else 1.0
    fall = 1.0
    if training.schedule == "cosine":
        fall = 0.5 * (1.0 + math.cos(math.pi * middle / training.num_samples))
    return training.learning_rate * rise * fall


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Use this learning rate in the next update."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def ema_decay(training: Training) -> float:
    """What is left of the old average after one update: one half after the half-life."""
    return float(0.5 ** (training.global_batch_size / training.ema_half_life_samples))


@torch.no_grad()
def update_ema(averages: list[torch.Tensor], parameters: list[torch.Tensor], decay: float) -> None:
    """`average = decay * average + (1 - decay) * parameter`, in place.

    The average begins at the initial weights and is not corrected for that: after num_samples a
    share of 2^(-num_samples / half-life) of it is still these weights. The plan names a large one.
    """
    torch._foreach_lerp_(averages, parameters, 1.0 - decay)
