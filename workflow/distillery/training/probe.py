"""Find the largest micro-batch that fits a GPU, before the first update."""

import torch

from distillery.training import distributed, parallel
from distillery.training.dataset import Batch
from distillery.training.execution import can_recompute
from distillery.training.micro_batch import ADVICE, MicroBatches, is_cuda
from distillery.training.run import Run
from distillery.training.state import TrainingState
from distillery.training.update import backward

RESERVE = 0.03
"""Of a GPU's memory, left free while trying: what PyTorch's allocator does not hold (NCCL's buffers
above all), small pieces between, the previews' decoder. A rule of thumb, not measured."""


def probe(state: TrainingState, micro_batches: MicroBatches, run: Run) -> None:
    """Lower the micro-batch, before the first update, until it fits; the same on all processes.

    Nothing is tried where the size is set, on a CPU, or with sharded weights, where a process that
    runs out of memory leaves the others waiting: there the attempt ends and the next one takes
    less.
    """
    wanted = run.training.micro_batch_size == "auto" and is_cuda(run.device)
    share = next(run.batches.positions(state.samples_seen), None)
    if not wanted or share is None or parallel.is_sharded(state.denoiser):
        return
    find_fitting(state, run.dataset.__getitems__(share), micro_batches, run)
    # What failed has filled the GPU; the training's own peak is to be told.
    torch.cuda.reset_peak_memory_stats(run.device)
    if run.place.is_main:
        run.reporter.info(
            f"micro-batches of {micro_batches.size} fit, of {run.batches.largest_share} an update"
        )


def find_fitting(state: TrainingState, share: Batch, micro_batches: MicroBatches, run: Run) -> None:
    """Halve the micro-batch until a share passes forward and backward on every process.

    Sizes are tried without compiled code, which takes minutes for each; the last is then tried with
    it. Where one sample does not fit, gradient checkpointing is tried if it is left to us.

    Raises:
        torch.OutOfMemoryError: nothing fits.
    """
    with torch.compiler.set_stance("force_eager"):
        _lower(state, share, micro_batches, run)
    _lower(state, share, micro_batches, run)


def _lower(state: TrainingState, share: Batch, micro_batches: MicroBatches, run: Run) -> None:
    """`find_fitting`, with compiled code or without."""
    while not _all_fit(state, micro_batches.cut(share), run):
        if micro_batches.size > 1:
            micro_batches.halve()
        elif _may_recompute(state, run):
            state.denoiser.enable_gradient_checkpointing()  # type: ignore[operator]
            micro_batches.size = run.batches.largest_share
            run.reporter.info("gradient_checkpointing: True (a single sample does not fit without)")
        else:
            raise torch.OutOfMemoryError(ADVICE)


def _may_recompute(state: TrainingState, run: Run) -> bool:
    """Whether gradient checkpointing is off, offered, and ours to choose."""
    is_on = bool(getattr(state.denoiser, "is_gradient_checkpointing", False))
    chosen = run.training.gradient_checkpointing == "auto"
    return chosen and can_recompute(state.denoiser) and not is_on


def _all_fit(state: TrainingState, micro_batches: list[Batch], run: Run) -> bool:
    """Whether no process runs out of memory."""
    failed = torch.tensor([0.0 if _fits(state, micro_batches, run) else 1.0], device=run.device)
    return distributed.all_reduce(failed).item() == 0.0


def _fits(state: TrainingState, micro_batches: list[Batch], run: Run) -> bool:
    """Whether an update's memory suffices here; its gradients are thrown away.

    Two micro-batches are passed, if there are two: the second meets the gradients of the first. No
    process waits for another, since DDP does not see passes of the bare network.
    """
    largest = sorted(micro_batches, key=lambda batch: len(batch.items), reverse=True)[:2]
    taken: list[torch.Tensor] = []
    try:
        if is_cuda(run.device):
            taken.append(_reserve(run.device))
        if not state.optimizer.state:
            # AdamW makes its moments in the first update; until then this is their place.
            taken += [torch.empty_like(it) for it in state.trainable.values() for _ in range(2)]
        for batch in largest:
            backward(state.denoiser, batch.to(run.device), run)
        fits = True
    except torch.OutOfMemoryError:
        fits = False
    del taken
    state.denoiser.zero_grad(set_to_none=True)
    if is_cuda(run.device):
        torch.cuda.empty_cache()
    return fits


def _reserve(device: torch.device) -> torch.Tensor:
    """What is left free of the memory that this process may use."""
    total = torch.cuda.get_device_properties(device).total_memory
    mine = total * torch.cuda.get_per_process_memory_fraction(device)
    return torch.empty(int(RESERVE * mine), dtype=torch.uint8, device=device)
