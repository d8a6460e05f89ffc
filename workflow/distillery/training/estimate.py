"""How many samples of a sharded student fit, estimated before so many are tried.

Sharded processes compute together: where one of them ran out of memory while sizes are tried, the
others would wait for it. So none should. Memory grows with the samples, along lines that become
steeper as another moment of the pass becomes the worst one, so a size is tried only where the line
through the two before it says that it fits.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from distillery.training.batches import rows
from distillery.training.dataset import Batch
from distillery.training.micro_batch import MicroBatches, fits_on_all, halves_of
from distillery.training.run import Run
from distillery.training.state import TrainingState
from distillery.training.update import backward

RESERVE = 0.1
"""Of a GPU's memory, left free: steeper lines, and what PyTorch's allocator does not tell."""


class Memory(Protocol):
    """A device's."""

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
        mine = usable_bytes(self._device)
        held = torch.cuda.memory_reserved(self._device)
        return int(min(held + free, mine) - RESERVE * mine)

    def peak_of(self, work: Callable[[], object]) -> int:
        """Do some work; the most bytes that tensors took meanwhile."""
        torch.cuda.reset_peak_memory_stats(self._device)
        work()
        return torch.cuda.max_memory_allocated(self._device)


def usable_bytes(device: torch.device) -> float:
    """Of a GPU's memory, what this process may take."""
    total = torch.cuda.get_device_properties(device).total_memory
    return total * torch.cuda.get_per_process_memory_fraction(device)


def lower_by_estimates(
    state: TrainingState, share: Batch, micro_batches: MicroBatches, run: Run, memory: Memory
) -> None:
    """Halve the micro-batch until it fits on every process.

    Args:
        state: before an update; its gradients are thrown away.
        share: of this process in an update.
        micro_batches: to be lowered.
        run: settings and device.
        memory: of the device.

    Raises:
        torch.OutOfMemoryError: an estimate was too low, and the next attempt begins below it; or
            not even one sample fits.
    """

    def peak(size: int) -> int:
        try:
            return memory.peak_of(partial(_pass, state, rows(share, slice(size)), run))
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


def room_for_moments(state: TrainingState) -> list[torch.Tensor]:
    """What AdamW will make in its first update; nothing after it."""
    if state.optimizer.state:
        return []
    return [torch.empty_like(it) for it in state.trainable.values() for _ in range(2)]


def _extend(points: list[tuple[int, int]], size: int) -> float:
    """The peak at a size, on the line through the last two (size, peak)."""
    (before, low), (last, high) = points[-2:]
    return high + (high - low) / (last - before) * (size - last)


def _pass(state: TrainingState, batch: Batch, run: Run) -> None:
    """Forward and backward."""
    backward(state.denoiser, batch.to(run.device), run)


def _nothing() -> None:
    """What weights, gradients and moments take while nothing is computed."""
