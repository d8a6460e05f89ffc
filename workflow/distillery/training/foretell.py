"""How many samples of a sharded student will fit, foretold from one and from two.

Sharded processes compute together: where one of them ran out of memory while sizes are tried, the
others would wait for it. So none may. Activations grow with the samples in a straight line, and two
points say where it meets the end of the memory.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from distillery.training import distributed
from distillery.training.batches import rows
from distillery.training.dataset import Batch
from distillery.training.micro_batch import MicroBatches
from distillery.training.run import Run
from distillery.training.state import TrainingState
from distillery.training.update import backward

RESERVE = 0.1
"""Of a GPU's memory, left free: what the straight line and PyTorch's allocator do not tell."""


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
        free, total = torch.cuda.mem_get_info(self._device)
        mine = total * torch.cuda.get_per_process_memory_fraction(self._device)
        held = torch.cuda.memory_reserved(self._device)
        return int(min(held + free, mine) - RESERVE * mine)

    def peak_of(self, work: Callable[[], object]) -> int:
        """Do some work; the most bytes that tensors took meanwhile."""
        torch.cuda.reset_peak_memory_stats(self._device)
        work()
        return torch.cuda.max_memory_allocated(self._device)


def foretell(
    state: TrainingState, share: Batch, micro_batches: MicroBatches, run: Run, memory: Memory
) -> None:
    """Halve the micro-batch until it should fit on every process.

    Args:
        state: before an update; its gradients are thrown away.
        share: of this process in an update.
        micro_batches: to be lowered.
        run: settings and device.
        memory: of the device.
    """
    if min(micro_batches.size, run.training.global_batch_size // run.place.num_processes) < 2:
        return
    with torch.compiler.set_stance("force_eager"):
        room = room_for_moments(state)
        work = [partial(_pass, state, rows(share, slice(size)), run) for size in (1, 2)]
        work[0]()  # leaves gradients, as those before it do in an update
        one, two = map(memory.peak_of, work)
        del room
    state.denoiser.zero_grad(set_to_none=True)
    fitting = 1 + (memory.limit - one) // max(two - one, 1)
    fitting = distributed.smallest(fitting, run.device)
    while micro_batches.size > max(fitting, 1):
        micro_batches.halve()


def room_for_moments(state: TrainingState) -> list[torch.Tensor]:
    """What AdamW will make in its first update; nothing after it."""
    if state.optimizer.state:
        return []
    return [torch.empty_like(it) for it in state.trainable.values() for _ in range(2)]


def _pass(state: TrainingState, batch: Batch, run: Run) -> None:
    """Forward and backward."""
    backward(state.denoiser, batch.to(run.device), run)
