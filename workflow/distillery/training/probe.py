"""Find the largest micro-batch that fits a GPU, before the first update."""

from collections.abc import Mapping

import torch

from distillery.training import parallel
from distillery.training.dataset import Batch
from distillery.training.estimate import (
    GpuMemory,
    lower_by_estimates,
    room_for_moments,
    usable_bytes,
)
from distillery.training.execution import can_recompute
from distillery.training.micro_batch import ADVICE, MicroBatches, fits_on_all, is_cuda
from distillery.training.network import is_recomputing, recompute
from distillery.training.run import Run
from distillery.training.state import TrainingState
from distillery.training.update import backward

RESERVE = 0.03
"""Of a GPU's memory, left free while trying: what PyTorch's allocator does not hold (NCCL's buffers
above all), small pieces between, the previews' decoder. A rule of thumb, not measured."""


def micro_batches_for(state: TrainingState, run: Run) -> Mapping[bool, MicroBatches]:
    """How a process cuts its share of an update: of segments and, True, of rollouts.

    What does not fit is found before the first update, of rollouts too, which come last.
    """
    kinds = (False, True) if run.training.rollout_samples else (False,)
    sharded, recomputes = parallel.is_sharded(state.denoiser), is_recomputing(state.denoiser)
    found = {}
    for of_rollouts in kinds:
        found[of_rollouts] = MicroBatches(run, sharded, of_rollouts, recomputes)
        probe(state, found[of_rollouts], run)
    return found


def probe(state: TrainingState, micro_batches: MicroBatches, run: Run) -> None:
    """Lower the micro-batch until it fits; the same on all processes.

    Nothing is tried where the size is set, and on a CPU.
    """
    begin = state.samples_seen
    if micro_batches.of_rollouts:
        begin = max(begin, run.batches.rollouts_begin)
    elif begin >= run.batches.rollouts_begin:
        return
    wanted = run.training.micro_batch_size == "auto" and is_cuda(run.device)
    items = next(run.batches.positions(begin), None)
    if not wanted or items is None:
        return
    share = run.dataset.__getitems__(items)
    if parallel.is_sharded(state.denoiser):
        lower_by_estimates(state, share, micro_batches, run, GpuMemory(run.device))
    else:
        find_fitting(state, share, micro_batches, run)
    # What failed has filled the GPU; the training's own peak is to be told.
    torch.cuda.reset_peak_memory_stats(run.device)
    if run.place.is_main:
        of_what = " of rollouts" if micro_batches.of_rollouts else ""
        run.reporter.info(
            f"micro-batches{of_what} of {micro_batches.size} fit, of "
            f"{run.batches.largest_share} an update"
        )


def find_fitting(state: TrainingState, share: Batch, micro_batches: MicroBatches, run: Run) -> None:
    """Halve the micro-batch until a share passes forward and backward on every process.

    Sizes are tried without compiled code, which takes minutes for each; the last is then tried with
    it. Where one sample does not fit, gradient checkpointing is tried if it is left to us.

    Raises:
        torch.OutOfMemoryError: nothing fits.
    """
    before = is_recomputing(state.denoiser)
    with torch.compiler.set_stance("force_eager"):
        _lower(state, share, micro_batches, run)
    _lower(state, share, micro_batches, run)
    micro_batches.recomputes = is_recomputing(state.denoiser)
    recompute(state.denoiser, before)


def _lower(state: TrainingState, share: Batch, micro_batches: MicroBatches, run: Run) -> None:
    """`find_fitting`, with compiled code or without."""
    while not fits_on_all(_fits(state, micro_batches.cut(share), run), run):
        if micro_batches.size > 1:
            micro_batches.halve()
        elif _may_recompute(state, run):
            recompute(state.denoiser, True)
            micro_batches.size = run.batches.largest_share
            what = "rollout" if micro_batches.of_rollouts else "sample"
            run.reporter.info(
                f"gradient_checkpointing: True (a single {what} does not fit without)"
            )
        else:
            raise torch.OutOfMemoryError(ADVICE)


def _may_recompute(state: TrainingState, run: Run) -> bool:
    """Whether gradient checkpointing is off, offered, and ours to choose."""
    chosen = run.training.gradient_checkpointing == "auto"
    return chosen and can_recompute(state.denoiser) and not is_recomputing(state.denoiser)


def _fits(state: TrainingState, micro_batches: list[Batch], run: Run) -> bool:
    """Whether an update's memory suffices here; its gradients are thrown away.

    Two micro-batches are passed, if there are two: the second meets the gradients of the first. No
    process waits for another, since the network is not wrapped yet; DDP's buckets, where gradients
    lie later, take no more.
    """
    largest = sorted(micro_batches, key=lambda batch: len(batch.items), reverse=True)[:2]
    taken: list[torch.Tensor] = []
    try:
        if is_cuda(run.device):
            taken.append(_reserve(run.device))
        taken += room_for_moments(state)
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
    return torch.empty(int(RESERVE * usable_bytes(device)), dtype=torch.uint8, device=device)
