"""One update: gradients of a global batch, and what all processes learn of each other."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

import torch
import torch.nn.functional as F

from distillery.config.training import Training
from distillery.teacher.loading import torch_dtype
from distillery.training import distributed
from distillery.training.dataset import Batch
from distillery.training.objectives import sample_losses
from distillery.training.optimizer import ema_decay, update_ema
from distillery.training.progress import Totals
from distillery.training.run import Run
from distillery.training.state import TrainingState

MAX_ITEMS_NAMED = 16


@dataclass(frozen=True)
class Share:
    """What one process did in one update: n items, their segments (n,) and losses (n,)."""

    items: list[int]
    segment: torch.Tensor
    losses: torch.Tensor


def accumulate_gradients(model: torch.nn.Module, batches: Iterator[Batch], run: Run) -> Share:
    """Forward and backward passes of one update, which leave the gradient in the parameters.

    The gradient is that of the sum of all samples' losses over the global batch size, so a sample
    counts the same on every process and in every micro-batch.
    """
    items: list[int] = []
    segments, losses = [], []
    num_micro_batches = run.batches.num_micro_batches
    for number in range(num_micro_batches):
        batch = next(batches).to(run.device)
        with distributed.synchronising(model, number == num_micro_batches - 1):
            loss_b = batch_losses(model, batch, run)
            (loss_b.sum() / run.training.global_batch_size).backward()  # type: ignore[no-untyped-call]
        items += batch.items
        segments.append(batch.segment)
        losses.append(loss_b.detach())
    return Share(items, torch.cat(segments), torch.cat(losses))


def batch_losses(model: torch.nn.Module, batch: Batch, run: Run) -> torch.Tensor:
    """The loss (b,) of each sample of a micro-batch, with its graph."""
    return sample_losses(
        predict(model, batch, run), batch.target, run.training.loss, run.training.huber_width
    )


def predict(model: torch.nn.Module, batch: Batch, run: Run) -> torch.Tensor:
    """The student's output in `training.dtype`, from float32 weights."""
    dtype = torch_dtype(run.training.dtype)
    conditioning = {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in batch.conditioning.items()
    }
    with torch.autocast(run.device.type, dtype, enabled=dtype != torch.float32):
        return run.dataset.family.predict(
            model, batch.noisy, batch.timestep, conditioning, run.dataset.setting
        )


def reduce_totals(share: Share, run: Run) -> Totals:
    """Losses by segment over all processes, and whether any of them was asked to stop.

    One small collective an update; it carries the wish to stop, so that all ranks stop at the same
    update without a barrier.
    """
    steps = run.dataset.steps
    of_segment = F.one_hot(share.segment, steps).double()
    asked = of_segment.new_tensor([float(run.stop.asked)])
    sums = torch.cat([asked, share.losses.double() @ of_segment, of_segment.sum(0)])
    stop, *values = distributed.all_reduce(sums).tolist()
    return Totals(stop > 0, values[:steps], values[steps:])


def check_finite(totals: Totals, grad_norm: float, share: Share, run: Run) -> None:
    """Raise ValueError, before the update, if a loss or the gradient is not finite."""
    if isfinite(totals.loss) and isfinite(grad_norm):
        return
    finite = share.losses.isfinite().tolist()
    bad = [item for item, fine in zip(share.items, finite, strict=True) if not fine]
    named = [run.dataset.name(item) for item in (bad or share.items)[:MAX_ITEMS_NAMED]]
    raise ValueError(
        f"loss {totals.loss}, gradient norm {grad_norm}: not finite, nothing was updated. On rank "
        f"{run.place.rank} {len(bad)} samples have such a loss; "
        f"{'they are' if bad else 'its batch is'}: {'; '.join(named)}. If the stored states are "
        "sound, lower training.learning_rate, or set training.dtype to float32"
    )


def update_average(state: TrainingState, training: Training) -> None:
    """Move the averaged weights, if there are any."""
    if state.average:
        parameters = [parameter.data for parameter in state.trainable.values()]
        update_ema(list(state.average.values()), parameters, ema_decay(training))
