"""One update: the gradients of a global batch, and what all processes made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from distillery.families.protocol import Conditioning, Denoiser, Family, Setting
from distillery.families.text import on
from distillery.schedule import add_noise, from_prediction
from distillery.teacher.loading import torch_dtype
from distillery.training import distributed, parallel
from distillery.training.batch import Batch, at_knots
from distillery.training.health import START_LIMIT_S
from distillery.training.objectives import Predict, roll_out
from distillery.training.state import Companion

if TYPE_CHECKING:  # a run is made from ways to learn, which need these functions
    from distillery.training.run import Run

Losses = Callable[[torch.nn.Module, Batch, "Run"], torch.Tensor]
"""What a batch has lost, (b,): `Way.losses` of its phase."""
MAX_ITEMS_NAMED = 16


@dataclass(frozen=True)
class UpdateTotals:
    """One update over all processes.

    Attributes:
        stop: whether any process was asked to stop.
        grad_norm: of the whole gradient, before clipping.
        losses: sum of the samples' losses by segment.
        counts: number of samples by segment.
        companion_loss, companion_count: of what learns beside, see `Companion`: sum of its
            losses, and of how many samples.
    """

    stop: bool
    grad_norm: float
    losses: list[float]
    counts: list[float]
    companion_loss: float = 0.0
    companion_count: float = 0.0

    @property
    def loss(self) -> float:
        """Mean over the samples."""
        return sum(self.losses) / sum(self.counts)


@dataclass(frozen=True)
class LocalUpdate:
    """What one process did in one update: n items, their segments (n,) and losses (n,)."""

    items: list[int]
    segment: torch.Tensor
    losses: torch.Tensor


def accumulate_gradients(
    model: torch.nn.Module, micro_batches: list[Batch], losses: Losses, run: Run
) -> LocalUpdate:
    """Forward and backward passes of one update, which leave the gradient in the parameters.

    The gradient is that of the sum of all samples' losses over the global batch size, so a sample
    counts the same on every process and in every micro-batch.

    Args:
        micro_batches: this process's share of the global batch, cut.

    Raises torch.OutOfMemoryError, which `microbatch.accumulate_what_fits` answers.
    """
    segments, lost = [], []
    # A rollout is many passes, and the first one, late in the training, may be compiled.
    limit_s = START_LIMIT_S if micro_batches[0].is_rollout else None
    for number, batch in enumerate(micro_batches, 1):
        name = f"micro-batch {number} of {len(micro_batches)}"
        run.watchdog.heartbeat(name, joint=True, limit_s=limit_s)
        batch = batch.to(run.device)
        with parallel.synchronising(model, number == len(micro_batches)):
            lost.append(backward(model, batch, losses, run))
        segments.append(batch.segment)
    run.watchdog.heartbeat("gradients of all ranks", waits=True)
    items = [item for batch in micro_batches for item in batch.items]
    return LocalUpdate(items, torch.cat(segments), torch.cat(lost))


def backward(model: torch.nn.Module, batch: Batch, losses: Losses, run: Run) -> torch.Tensor:
    """Add a micro-batch's part to the gradient; returns its losses (b,), without weights."""
    loss_b = losses(model, batch, run)
    total = (loss_b * batch.weight).sum() / run.training.global_batch_size
    total.backward()  # type: ignore[no-untyped-call]
    return loss_b.detach()


def end_of_last_step(output: torch.Tensor, noisy: torch.Tensor, run: Run) -> torch.Tensor:
    """The clean latents (b, *latent) float32 on which the student's last step ends.

    Args:
        output: (b, *latent) of the network; where it is of another step the result has no meaning.
        noisy: (b, *latent) float32, the states before that step.
    """
    grid, kind = run.dataset.usual.grid, run.dataset.recipe.prediction_type
    alpha, sigma = torch.tensor(grid.alphas[-2]), torch.tensor(grid.sigmas[-2])
    return from_prediction(kind, output.float(), noisy, alpha, sigma)[0]


def end_of_step(
    output: torch.Tensor, noisy: torch.Tensor, segment: torch.Tensor, run: Run
) -> torch.Tensor:
    """The states (b, *latent) float32 on which the student's steps end, at the next knots.

    Args:
        output: (b, *latent) of the network.
        noisy: (b, *latent) float32, the states before the steps.
        segment: (b,), which steps they are.
    """
    grid, kind = run.dataset.usual.grid, run.dataset.recipe.prediction_type
    knots = segment.cpu()
    before, after = (
        [at_knots(values, each, noisy) for values in (grid.alphas, grid.sigmas)]
        for each in (knots, knots + 1)
    )
    return add_noise(*from_prediction(kind, output.float(), noisy, *before), *after)


def roll_out_student(model: torch.nn.Module, batch: Batch, run: Run) -> torch.Tensor:
    """Where the student's own steps end, (b, *latent) float32."""
    grid, kind = run.dataset.view(batch.items[0]).grid, run.dataset.recipe.prediction_type
    # Around all steps: autocast keeps its copies of the weights until the outermost end.
    with computing(run):
        return roll_out(student_of(model, batch, run), batch.noisy, grid, kind)


def student_of(model: torch.nn.Module, batch: Batch, run: Run) -> Predict:
    """The student for a batch's prompts, at any states."""

    def step(noisy: torch.Tensor, timestep: torch.Tensor, until: torch.Tensor) -> torch.Tensor:
        end = None if batch.until is None else until
        return predict(model, replace(batch, noisy=noisy, timestep=timestep, until=end), run)

    return step


def predict(model: torch.nn.Module, batch: Batch, run: Run) -> torch.Tensor:
    """The student's output in `training.dtype`, from float32 weights."""
    dtype, view = torch_dtype(run.training.dtype), run.dataset.view(batch.items[0])
    conditioning = on(batch.conditioning, run.device, dtype)
    with computing(run):
        return output_of(
            model,
            batch.noisy,
            batch.timestep,
            batch.until,
            conditioning,
            view.setting,
            run.dataset.family,
        )


def output_of(
    network: torch.nn.Module,
    noisy: torch.Tensor,
    timestep: torch.Tensor,
    until: torch.Tensor | None,
    conditioning: Conditioning,
    setting: Setting,
    family: Family,
) -> torch.Tensor:
    """What a student's network gives, whether it is told the end of its step or not."""
    given = network, noisy, timestep
    if until is None:
        return family.predict(*given, conditioning, setting)
    return family.predict_until(*given, until, conditioning, setting)


def computing(run: Run) -> torch.autocast:
    """The context of a forward pass in `training.dtype`; each weight is cast once in it."""
    dtype = torch_dtype(run.training.dtype)
    return torch.autocast(run.device.type, dtype, enabled=dtype != torch.float32)


def reduce_totals(
    local: LocalUpdate, grad_norm: torch.Tensor, run: Run, companion: Companion | None = None
) -> UpdateTotals:
    """Losses by segment, and of rollouts, over all processes; and whether any was asked to stop.

    One small collective per update. It carries the request to stop, so all ranks stop at the same
    update without a barrier.

    Args:
        grad_norm: of the whole gradient, (), the same on all ranks.
    """
    num_losses = run.num_losses
    of_segment = F.one_hot(local.segment, num_losses).double()
    asked = of_segment.new_full((1,), float(run.stop.asked))  # a fill; a copy would wait
    sums = torch.cat([asked, local.losses.double() @ of_segment, of_segment.sum(0)])
    run.watchdog.heartbeat("losses of all ranks", waits=True)
    values = torch.cat([grad_norm.double().view(1), distributed.all_reduce(sums)])
    if companion is not None:
        values = torch.cat([values, companion.losses.double()])
    # The only wait for the GPU in an update: what is not finite must not reach the weights. On an
    # H200 it costs 1.4 % of an update of 8 samples of Wan2.1-1.3B, 0.2 % of one of 32 samples of
    # SDXL (benchmarks/waits.py).
    norm, stop, *totals = values.tolist()
    run.watchdog.heartbeat("update of the weights")
    losses, counts = totals[:num_losses], totals[num_losses : 2 * num_losses]
    return UpdateTotals(stop > 0, norm, losses, counts, *totals[2 * num_losses :])


def check_finite(totals: UpdateTotals, local: LocalUpdate, run: Run) -> None:
    """Raise ValueError, before the update, if a loss or the gradient is not finite."""
    if not isfinite(totals.companion_loss):
        raise ValueError(
            f"what learns beside the student has the loss {totals.companion_loss}: not finite, the "
            "student was not updated; lower its learning_rate in training.phases"
        )
    if isfinite(totals.loss) and isfinite(totals.grad_norm):
        return
    finite = local.losses.isfinite().tolist()
    bad = [item for item, fine in zip(local.items, finite, strict=True) if not fine]
    named = [run.dataset.name(item) for item in (bad or local.items)[:MAX_ITEMS_NAMED]]
    raise ValueError(
        f"loss {totals.loss}, gradient norm {totals.grad_norm}: not finite, nothing was updated. "
        f"On rank {run.ranks.rank} {len(bad)} samples have such a loss; "
        f"{'they are' if bad else 'its batch is'}: {'; '.join(named)}. If the stored states are "
        "sound, lower training.learning_rate, or set training.dtype to float32"
    )


@contextmanager
def inspecting(denoiser: Denoiser, device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Evaluate a network in `dtype` without gradients; its mode and all random numbers come back.

    Compiled code is not used: it would be compiled once more, for other shapes and no gradients.

    Args:
        denoiser: as it is trained, float32 where it learns.
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
