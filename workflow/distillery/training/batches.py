"""Which items a process learns from, in an order that depends on nothing but the seed.

Epochs follow one another without an end, each a permutation of all items, and global batch i is the
items [i * G, (i + 1) * G) of that stream, for any number of processes and any micro-batch.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.utils.data import DataLoader

from distillery.config.training import Training
from distillery.store.shards import balanced_range
from distillery.training.dataset import Batch, SegmentDataset
from distillery.training.distributed import Place

NUM_CUDA_WORKERS = 2
"""Processes that read ahead for one GPU. None on a CPU, which they would take time from."""


@dataclass(frozen=True)
class Order:
    """The endless stream of items.

    An epoch's permutation is `torch.randperm` with a generator seeded by (seed, epoch): nothing is
    carried from one epoch to the next, so any position is found at once. It takes 8 bytes an item;
    100 million items are 0.8 GB and some seconds an epoch, in each process.
    """

    num_items: int
    seed: int

    def items(self, start: int, stop: int) -> list[int]:
        """The items at the positions [start, stop) of the stream."""
        found: list[int] = []
        while start < stop:
            epoch, first = divmod(start, self.num_items)
            count = min(stop - start, self.num_items - first)
            found += _permutation(self.num_items, self.seed, epoch)[first : first + count].tolist()
            start += count
        return found


@lru_cache(maxsize=2)
def _permutation(num_items: int, seed: int, epoch: int) -> torch.Tensor:
    """One epoch's order; a batch may lie in two epochs, so two are kept."""
    digest = hashlib.sha256(f"order\n{seed}\n{epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return torch.randperm(num_items, generator=generator)


@dataclass(frozen=True)
class Batches:
    """The micro-batches of one process.

    Attributes:
        dataset: where they come from.
        training: sizes.
        seed: of the order.
        place: which part of each global batch is this process's.
    """

    dataset: SegmentDataset
    training: Training
    seed: int
    place: Place

    def __post_init__(self) -> None:
        """Every process must have something to do in every update."""
        if self.training.global_batch_size < self.place.num_processes:
            raise ValueError(
                f"training.global_batch_size is {self.training.global_batch_size} and there are "
                f"{self.place.num_processes} processes: start fewer of them, or raise it"
            )

    @property
    def share(self) -> range:
        """This process's contiguous part of a global batch; parts differ by one item at most."""
        return balanced_range(
            self.training.global_batch_size, self.place.rank, self.place.num_processes
        )

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches in one update of this process."""
        return len(range(0, len(self.share), self._micro_batch_size))

    @property
    def _micro_batch_size(self) -> int:
        return self.training.micro_batch_size or len(self.share)

    def positions(self, samples_seen: int) -> Iterator[list[int]]:
        """The items of each micro-batch from a position on, to the end of the training."""
        order = Order(self.dataset.num_items, self.seed)
        size = self._micro_batch_size
        for start in range(
            samples_seen, self.training.num_samples, self.training.global_batch_size
        ):
            part = order.items(start + self.share.start, start + self.share.stop)
            for first in range(0, len(part), size):
                yield part[first : first + size]

    def read(self, samples_seen: int, device: torch.device) -> Iterator[Batch]:
        """The micro-batches themselves; on CUDA they are read ahead by other processes."""
        on_cuda = device.type == "cuda"
        return iter(
            DataLoader(
                self.dataset,
                batch_sampler=self.positions(samples_seen),
                num_workers=NUM_CUDA_WORKERS if on_cuda else 0,
                pin_memory=on_cuda,
                collate_fn=_as_it_is,
                # Forked, so that the memory maps are shared; workers never touch CUDA.
                multiprocessing_context="fork" if on_cuda else None,
            )
        )


def _as_it_is(batch: Any) -> Any:
    """The dataset already returns whole batches, which PyTorch's types do not foresee."""
    return batch
