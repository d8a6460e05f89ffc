"""Run the student for a look at it, so that its training notices nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from distillery.families.protocol import Denoiser


@contextmanager
def inspecting(denoiser: Denoiser, device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Evaluate a network in `dtype` without gradients; its mode and all random numbers come back.

    Compiled code is passed by: it would be compiled once more, for other shapes and no gradients.

    Args:
        denoiser: as it is trained, float32 where it learns.
        device: where it lies.
        dtype: of the forward pass.
    """
    was_training = denoiser.training
    devices = [device] if device.type == "cuda" else []
    denoiser.eval()
    try:
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices),
            torch.compiler.set_stance("force_eager"),
            torch.autocast(device.type, dtype, enabled=dtype != torch.float32),
        ):
            yield
    finally:
        denoiser.train(was_training)
