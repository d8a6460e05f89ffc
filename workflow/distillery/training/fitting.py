"""The size of micro-batches that fits, found before the first update.

Processes of a sharded student compute together: where one ran out of memory while sizes are tried,
the others would wait for it. So none should. Memory grows with the samples, along lines that become
steeper as another moment of the pass becomes the worst one, so a size is tried only where the line
through the two before it says that it fits.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import torch

from distillery.training import distributed, parallel
from distillery.training.batch import Batch, rows
from distillery.training.execution import supports_checkpointing
from distillery.training.microbatch import ADVICE, MicroBatches, halves_of, is_cuda
from distillery.training.parallel import set_checkpointing, uses_checkpointing
from distillery.training.run import Run
from distillery.training.state import TrainingState
from distillery.training.update import Losses, backward
from distillery.training.ways import way_at

ESTIMATE_RESERVE = 0.1
"""Share of a GPU's memory left free: for steeper lines, and what the allocator does not report."""
RESERVE = 0.03
"""Of a GPU's memory, left free while trying: what PyTorch's allocator does not hold (NCCL's buffers
above all), small pieces between, the previews' decoder. A rule of thumb, not measured."""


def micro_batches_for(state: TrainingState, run: Run) -> Mapping[bool, MicroBatches]:
    """How a process cuts its local batch: of segments (False) and of rollouts (True).

    What does not fit is found before the first update, of rollouts too, which come last.
    """
    kinds = (False, True) if run.training.walks_whole else (False,)
    sharded, checkpointing = parallel.is_sharded(state.denoiser), uses_checkpointing(state.denoiser)
    micro_batches = {}
    for for_rollouts in kinds:
        micro_batches[for_rollouts] = MicroBatches(run, sharded, for_rollouts, checkpointing)
        find_micro_batch_size(state, micro_batches[for_rollouts], run)
    return micro_batches


def find_micro_batch_size(state: TrainingState, micro_batches: MicroBatches, run: Run) -> None:
    """Lower the micro-batch until it fits; the same on all processes.

    Nothing is tried where the size is set, and on a CPU.
    """
    begin = state.samples_seen
    if micro_batches.for_rollouts:
        begin = max(begin, run.training.whole_begins)
    elif begin >= run.training.whole_begins:
        return
    wanted = run.training.micro_batch_size == "auto" and is_cuda(run.device)
    items = next(run.batches.positions(begin), None)
    if not wanted or items is None:
        return
    batch, losses = run.dataset.__getitems__(items), way_at(begin, run.training).losses
    if parallel.is_sharded(state.denoiser):
        lower_by_estimates(state, batch, micro_batches, losses, run, GpuMemory(run.device))
    else:
        find_fitting(state, batch, micro_batches, losses, run)
    # What failed has filled the GPU; the training's own peak is to be reported.
    torch.cuda.reset_peak_memory_stats(run.device)
    if run.ranks.is_main:
        of_what = " of rollouts" if micro_batches.for_rollouts else ""
        run.reporter.info(
            f"micro-batches{of_what} of {micro_batches.size} fit, of "
            f"{run.batches.largest_local_batch} an update"
        )


def fits_on_all(fits: bool, run: Run) -> bool:
    """Whether something fits on every process; a collective."""
    run.watchdog.heartbeat("memory of all ranks", waits=True)
    failed = distributed.all_reduce(torch.tensor([float(not fits)], device=run.device))
    run.watchdog.heartbeat("size of micro-batches", joint=True)
    return failed.item() == 0.0


def room_for_moments(state: TrainingState) -> list[torch.Tensor]:
    """Tensors like those that AdamW will make in its first update; none after it.

    And like the gradients of what may learn beside the student.
    """
    missing = [] if state.optimizer.state else [*state.trainable.values()] * 2
    if state.companion is not None:
        missing += state.companion.trainable.values()
    return [torch.empty_like(parameter) for parameter in missing]


def usable_bytes(device: torch.device) -> float:
    """Of a GPU's memory, what this process may take."""
    total = torch.cuda.get_device_properties(device).total_memory
    return total * torch.cuda.get_per_process_memory_fraction(device)


def find_fitting(
    state: TrainingState, batch: Batch, micro_batches: MicroBatches, losses: Losses, run: Run
) -> None:
    """Halve the micro-batch until a local batch passes forward and backward on every process.

    Sizes are tried without compiled code, which takes minutes for each; the last is then tried with
    it. Where one sample does not fit, gradient checkpointing is tried if it is left to us.

    Raises:
        torch.OutOfMemoryError: nothing fits.
    """
    before = uses_checkpointing(state.denoiser)
    with torch.compiler.set_stance("force_eager"):
        _lower(state, batch, micro_batches, losses, run)
    _lower(state, batch, micro_batches, losses, run)
    micro_batches.checkpointing = uses_checkpointing(state.denoiser)
    set_checkpointing(state.denoiser, before)


def _lower(
    state: TrainingState, batch: Batch, micro_batches: MicroBatches, losses: Losses, run: Run
) -> None:
    """`find_fitting`, with compiled code or without."""
    while not fits_on_all(_fits(state, micro_batches.cut(batch), losses, run), run):
        if micro_batches.size > 1:
            micro_batches.halve()
        elif _may_checkpoint(state, run):
            set_checkpointing(state.denoiser, True)
            micro_batches.size = run.batches.largest_local_batch
            what = "rollout" if micro_batches.for_rollouts else "sample"
            run.reporter.info(
                f"gradient_checkpointing: True (a single {what} does not fit without)"
            )
        else:
            raise torch.OutOfMemoryError(ADVICE)


def _may_checkpoint(state: TrainingState, run: Run) -> bool:
    """Whether gradient checkpointing is off, offered, and ours to choose."""
    chosen = run.training.gradient_checkpointing == "auto"
    return (
        chosen and supports_checkpointing(state.denoiser) and not uses_checkpointing(state.denoiser)
    )


def _fits(state: TrainingState, micro_batches: list[Batch], losses: Losses, run: Run) -> bool:
    """Whether an update's memory suffices here; its gradients are thrown away.

    Two micro-batches are passed, if there are two: the second meets the gradients of the first. No
    process waits for another, since the network is not wrapped yet; DDP's buckets, where gradients
    lie later, take no more.
    """
    largest = sorted(micro_batches, key=lambda batch: len(batch.items), reverse=True)[:2]
    taken: list[torch.Tensor] = []
    try:
        if is_cuda(run.device):
            taken.append(_reserve(run))
        taken += room_for_moments(state)
        for batch in largest:
            backward(state.denoiser, batch.to(run.device), losses, run)
        fits = True
    except torch.OutOfMemoryError:
        fits = False
    del taken
    state.denoiser.zero_grad(set_to_none=True)
    if is_cuda(run.device):
        torch.cuda.empty_cache()
    return fits


def _reserve(run: Run) -> torch.Tensor:
    """What is left free of the memory that this process may use.

    Twice as much beside a teacher: its passes cut the allocator's blocks, of which 2.4 GiB were
    reserved and of no use when a student that filled an H200 ran out of memory (docs/log.md).
    """
    share = RESERVE * (1 + run.training.asks)
    free = int(share * usable_bytes(run.device))
    return torch.empty(free, dtype=torch.uint8, device=run.device)


class Memory(Protocol):
    """The memory of a device."""

    @property
    def limit(self) -> int:
        """Bytes that may be used."""
        ...

    def peak_of(self, work: Callable[[], object]) -> int:
        """Do some work; the most bytes that were in use meanwhile."""
        ...


class GpuMemory:
    """What PyTorch's allocator says of a GPU."""

    def __init__(self, device: torch.device) -> None:
        """Of this process."""
        self._device = device

    @property
    def limit(self) -> int:
        """All that this process holds or could get, less the reserve."""
        free, _ = torch.cuda.mem_get_info(self._device)
        usable = usable_bytes(self._device)
        held = torch.cuda.memory_reserved(self._device)
        return int(min(held + free, usable) - ESTIMATE_RESERVE * usable)

    def peak_of(self, work: Callable[[], object]) -> int:
        """Do some work; the most bytes that tensors took meanwhile."""
        torch.cuda.reset_peak_memory_stats(self._device)
        work()
        return torch.cuda.max_memory_allocated(self._device)


def lower_by_estimates(
    state: TrainingState,
    batch: Batch,
    micro_batches: MicroBatches,
    losses: Losses,
    run: Run,
    memory: Memory,
) -> None:
    """Halve the micro-batch until it fits on every process.

    Args:
        state: before an update; its gradients are thrown away.

    Raises:
        torch.OutOfMemoryError: an estimate was too low, and the next attempt begins below it; or
            not even one sample fits.
    """

    def peak(size: int) -> int:
        try:
            return memory.peak_of(partial(_pass, state, rows(batch, slice(size)), losses, run))
        except torch.OutOfMemoryError as error:
            micro_batches.size = size
            micro_batches.lower(error)
            raise

    with torch.compiler.set_stance("force_eager"):
        room = room_for_moments(state)
        peak(1)  # leaves gradients, as those before it do in an update
        points = [(0, memory.peak_of(_nothing))]
        for size in reversed(halves_of(micro_batches.size)):
            if size > 1 and not fits_on_all(_extend(points, size) <= memory.limit, run):
                break
            points.append((size, peak(size)))
        del room
    state.denoiser.zero_grad(set_to_none=True)
    while micro_batches.size > points[-1][0]:
        micro_batches.halve()


def _extend(points: list[tuple[int, int]], size: int) -> float:
    """The peak at a size, on the line through the last two (size, peak)."""
    (before, low), (last, high) = points[-2:]
    return high + (high - low) / (last - before) * (size - last)


def _pass(state: TrainingState, batch: Batch, losses: Losses, run: Run) -> None:
    """Forward and backward."""
    backward(state.denoiser, batch.to(run.device), losses, run)


def _nothing() -> None:
    """No work: its peak is what weights, gradients and moments take."""
