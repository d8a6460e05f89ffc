"""Batches that fit the device: a fixed size, or the largest that fits and pays."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from distillery.config.section import BatchSize
from distillery.telemetry import Reporter

Result = TypeVar("Result")
LARGEST = 64
"""The largest batch that `auto` tries."""
MIN_GAIN = 0.03
"""Share of samples per second by which a doubled batch must be faster to be worth its memory."""
DEFAULT_ON_CPU = 2


class Batcher:
    """Runs a work list in batches, and in smaller ones once a batch does not fit."""

    def __init__(self, size: BatchSize, largest: int, device: torch.device, reporter: Reporter):
        """Nothing runs yet.

        Args:
            size: samples per batch, or `auto`, which `settle` decides.
            largest: the most that `auto` may choose.
            device: that the work runs on.
            reporter: logs every change.
        """
        self._is_open = size == "auto"
        self._largest = min(largest, LARGEST)
        self._device = device
        self._reporter = reporter
        self.size = min(DEFAULT_ON_CPU, largest) if size == "auto" else size

    def settle(self, probe: Callable[[int], object]) -> None:
        """Choose the size, where it is open: double while a batch is faster by `MIN_GAIN`.

        Args:
            probe: runs a short piece of the real work at a batch size; called twice a size, the
                second time on the clock, since the first loads kernels.
        """
        if not self._is_open:
            return
        self._is_open = False
        if self._device.type != "cuda":
            return
        best, size = 0.0, 1
        while size <= self._largest:
            rate = self._rate(probe, size)
            if rate < best * (1 + MIN_GAIN):
                break
            self.size, best, size = size, rate, size * 2
        self._reporter.info(f"batch size {self.size}: {best:.2f} samples per second in the probe")

    def _rate(self, probe: Callable[[int], object], size: int) -> float:
        """Samples per second at a size, 0 where it does not fit."""
        try:
            probe(size)
            torch.cuda.synchronize(self._device)
            begin = time.perf_counter()
            probe(size)
            torch.cuda.synchronize(self._device)
        except torch.OutOfMemoryError:
            _free(self._device)
            return 0.0
        return size / (time.perf_counter() - begin)

    def map(
        self, rows: Sequence[int], run: Callable[[Sequence[int], int], Result]
    ) -> Iterator[tuple[Sequence[int], Result]]:
        """Run all rows; yields each batch with its result.

        Args:
            run: takes the rows of a batch and the size that it shall pad them to.

        Raises:
            ValueError: not even a single row fits.
        """
        done = 0
        while done < len(rows):
            batch = rows[done : done + self.size]
            try:
                result = run(batch, self.size)
            except torch.OutOfMemoryError as error:
                self._shrink(str(error))
                continue
            done += len(batch)
            yield batch, result

    def _shrink(self, reason: str) -> None:
        """Halve the size for all that follows."""
        if self.size == 1:
            raise ValueError(
                f"out of memory with a single sample on {self._device}: set teacher.offload: model "
                f"(or sequential), teacher.num_gpus: 2, or a smaller size ({reason})"
            )
        self.size //= 2
        self._reporter.warning(f"out of memory: continues with batches of {self.size}")
        _free(self._device)


def _free(device: torch.device) -> None:
    """Give back what a failed batch has left in the allocator's cache."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
