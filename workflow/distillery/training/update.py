"""One update: gradients of a global batch, and what all processes learn of each other."""

from dataclasses import dataclass, replace
from math import isfinite

import torch
import torch.nn.functional as F

from distillery.config.training import Training
from distillery.teacher.loading import torch_dtype
from distillery.training import distributed, parallel
from distillery.training.dataset import Batch
from distillery.training.micro_batch import MicroBatches
from distillery.training.objectives import sample_losses
from distillery.training.optimizer import ema_decay, update_ema
from distillery.training.progress import Totals
from distillery.training.rollout import roll_out
from distillery.training.run import Run
from distillery.training.state import TrainingState
from distillery.training.watchdog import START_LIMIT_S

MAX_ITEMS_NAMED = 16


@dataclass(frozen=True)
class Share:
    """What one process did in one update: n items, their segments (n,) and losses (n,)."""

    items: list[int]
    segment: torch.Tensor
    losses: torch.Tensor


def accumulate_gradients(
    model: torch.nn.Module, batch: Batch, micro_batches: MicroBatches, run: Run
) -> Share:
    """Forward and backward passes of one update, which leave the gradient in the parameters.

    The gradient is that of the sum of all samples' losses over the global batch size, so a sample
    counts the same on every process and in every micro-batch. Where memory does not suffice, the
    update is repeated with smaller micro-batches.

    Args:
        model: as `parallel.wrap` gives it.
        batch: this process's share of the global batch.
        micro_batches: cuts the share.
        run: settings and device.

    Raises:
        torch.OutOfMemoryError: see `MicroBatches.lower`.
    """
    while True:
        try:
            return _accumulate(model, micro_batches.cut(batch), run)
        except torch.OutOfMemoryError as error:
            # Nothing of the error may outlive this line: its frames hold the tensors.
            micro_batches.lower(error)
        model.zero_grad(set_to_none=True)
        if run.device.type == "cuda":
            torch.cuda.empty_cache()


def _accumulate(model: torch.nn.Module, micro_batches: list[Batch], run: Run) -> Share:
    """One attempt of `accumulate_gradients`."""
    segments, losses = [], []
    # A rollout is many passes, and the first one, late in the training, may be compiled.
    limit_s = START_LIMIT_S if micro_batches[0].is_rollout else None
    for number, batch in enumerate(micro_batches, 1):
        name = f"micro-batch {number} of {len(micro_batches)}"
        run.watchdog.beat(name, joint=True, limit_s=limit_s)
        batch = batch.to(run.device)
        with parallel.synchronising(model, number == len(micro_batches)):
            losses.append(backward(model, batch, run))
        segments.append(batch.segment)
    run.watchdog.beat("gradients of all ranks", waits=True)
    items = [item for batch in micro_batches for item in batch.items]
    return Share(items, torch.cat(segments), torch.cat(losses))


def backward(model: torch.nn.Module, batch: Batch, run: Run) -> torch.Tensor:
    """Add a micro-batch's part to the gradient; returns its losses (b,), without weights."""
    loss_b = batch_losses(model, batch, run)
    total = (loss_b * batch.weight).sum() / run.training.global_batch_size
    total.backward()  # type: ignore[no-untyped-call]
    return loss_b.detach()


def batch_losses(model: torch.nn.Module, batch: Batch, run: Run) -> torch.Tensor:
    """The loss (b,) of each sample of a micro-batch, with its graph, without its weight."""
    training = run.training
    found = (roll_out_student if batch.is_rollout else predict)(model, batch, run)
    loss_b = sample_losses(found, batch.target, training.loss, training.huber_width)
    if batch.is_rollout and run.perceptual is not None:
        loss_b = loss_b + training.perceptual_weight * run.perceptual(found, batch.target)
    return loss_b


def roll_out_student(model: torch.nn.Module, batch: Batch, run: Run) -> torch.Tensor:
    """Where the student's own steps end, (b, *latent) float32."""

    def step(noisy: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        return predict(model, replace(batch, noisy=noisy, timestep=timestep), run)

    grid, kind = run.dataset.grid, run.dataset.recipe["prediction_type"]
    # Around all steps: autocast keeps its copies of the weights until the outermost end.
    with computing(run):
        return roll_out(step, batch.noisy, grid, kind)


def predict(model: torch.nn.Module, batch: Batch, run: Run) -> torch.Tensor:
    """The student's output in `training.dtype`, from float32 weights."""
    dtype = torch_dtype(run.training.dtype)
    conditioning = {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in batch.conditioning.items()
    }
    with computing(run):
        return run.dataset.family.predict(
            model, batch.noisy, batch.timestep, conditioning, run.dataset.setting
        )


def computing(run: Run) -> torch.autocast:
    """The context of a forward pass in `training.dtype`; each weight is cast once in it."""
    dtype = torch_dtype(run.training.dtype)
    return torch.autocast(run.device.type, dtype, enabled=dtype != torch.float32)


def reduce_totals(share: Share, run: Run) -> Totals:
    """Losses by segment, and of rollouts, over all processes; and whether any was asked to stop.

    One small collective an update; it carries the wish to stop, so that all ranks stop at the same
    update without a barrier.
    """
    num_losses = run.num_losses
    of_segment = F.one_hot(share.segment, num_losses).double()
    asked = of_segment.new_tensor([float(run.stop.asked)])
    sums = torch.cat([asked, share.losses.double() @ of_segment, of_segment.sum(0)])
    run.watchdog.beat("losses of all ranks", waits=True)
    stop, *values = distributed.all_reduce(sums).tolist()
    run.watchdog.beat("update of the weights")
    return Totals(stop > 0, values[:num_losses], values[num_losses:])


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
