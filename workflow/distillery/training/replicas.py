"""The student as the loop calls it: with several processes a copy in each, ready for updates."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from distillery.families.protocol import Denoiser
from distillery.training import parallel
from distillery.training.batches import rows
from distillery.training.execution import can_recompute
from distillery.training.network import is_recomputing, recompute
from distillery.training.run import Run
from distillery.training.state import TrainingState
from distillery.training.update import backward

PASSES = 2
"""After the first, DDP's buckets hold the gradients; in the second it arranges the buckets anew."""


def wrap(state: TrainingState, run: Run) -> nn.Module:
    """The student whose backward passes sum the gradients of all processes.

    DDP is shown one sample before the first update. Without its copy it says whether some
    parameters that should learn get no gradient, as those of Qwen-Image's last block that make a
    text which nothing reads: DDP would wait for them. With it DDP makes the buckets that gradients
    stay in: made in the midst of an update they take as much memory again, beside its activations.

    Args:
        state: before an update; its weights are not changed.
        run: settings, batches and place.
    """
    items = next(run.batches.positions(state.samples_seen), None)
    if run.place.num_processes == 1 or parallel.is_sharded(state.denoiser) or items is None:
        return parallel.wrap(state.denoiser, run.place, run.device)
    run.watchdog.beat("gradients of one sample", joint=True)
    sample = rows(run.dataset.__getitems__(items), slice(1)).to(run.device)
    with _in_least_memory(state.denoiser):
        backward(state.denoiser, sample, run)
        leaves_out = any(parameter.grad is None for parameter in state.trainable.values())
        state.denoiser.zero_grad(set_to_none=True)
        model = parallel.wrap(state.denoiser, run.place, run.device, leaves_out)
        for _ in range(PASSES):
            backward(model, sample, run)
    model.zero_grad(set_to_none=not parallel.keeps_gradients(model))
    return model


@contextmanager
def _in_least_memory(denoiser: Denoiser) -> Iterator[None]:
    """With gradient checkpointing where the network offers it, and nothing compiled for it."""
    before = is_recomputing(denoiser)
    recompute(denoiser, can_recompute(denoiser))
    with torch.compiler.set_stance("force_eager"):
        yield
    recompute(denoiser, before)
