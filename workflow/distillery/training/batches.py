"""What a training learns from, in which order, and how a process reads its part of each update.

Epochs follow one another without an end, each a permutation of all items to learn from, and global
batch i is the items [i * G, (i + 1) * G) of that stream, for any number of processes and any
micro-batch.
"""

import gc
import signal
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self

import torch
from torch.utils.data import DataLoader

from distillery.config.training import Training, on_batch_size, on_held_out
from distillery.noise import seed_of
from distillery.notes import refuse
from distillery.stage import balanced_range
from distillery.training.batch import Batch
from distillery.training.data import SegmentDataset, spread_evenly
from distillery.training.distributed import RankInfo
from distillery.training.health import SIGNALS
from distillery.training.ways import way_of

NUM_CUDA_WORKERS = 2
"""Processes that read ahead for one GPU. None on a CPU, which they would take time from."""


@dataclass(frozen=True)
class Order:
    """The endless stream of items.

    An epoch's permutation is `torch.randperm` with a generator seeded by (seed, epoch): nothing is
    carried from one epoch to the next, so any position is found at once. It takes 8 bytes per item;
    100 million items are 0.8 GB and some seconds an epoch, in each process.
    """

    num_items: int
    seed: int

    def items(self, start: int, stop: int) -> list[int]:
        """The items at the positions [start, stop) of the stream."""
        items: list[int] = []
        while start < stop:
            epoch, first = divmod(start, self.num_items)
            count = min(stop - start, self.num_items - first)
            items += _permutation(self.num_items, self.seed, epoch)[first : first + count].tolist()
            start += count
        return items


@lru_cache(maxsize=2)
def _permutation(num_items: int, seed: int, epoch: int) -> torch.Tensor:
    """One epoch's order; a batch may lie in two epochs, so two are kept."""
    generator = torch.Generator().manual_seed(seed_of(f"order\n{seed}\n{epoch}"))
    return torch.randperm(num_items, generator=generator)


@dataclass(frozen=True)
class Split:
    """Whole prompts are held out, spread evenly over the store: another noise of a prompt that is
    learned from would say little.

    Attributes:
        num_trajectories: of the store.
        per_prompt: of them, one after another.
        prompts: that are held out, in ascending order.
    """

    num_trajectories: int
    per_prompt: int
    prompts: tuple[int, ...] = ()

    @classmethod
    def of(cls, num_trajectories: int, per_prompt: int, num_held_out: int) -> Self:
        """Hold out so many prompts.

        Raises ValueError where none would be left.
        """
        num_prompts = num_trajectories // per_prompt
        refuse(on_held_out(num_held_out, num_prompts))
        return cls(num_trajectories, per_prompt, tuple(spread_evenly(num_prompts, num_held_out)))

    @property
    def held_out(self) -> list[int]:
        """The trajectories that are not learned from."""
        per_prompt = self.per_prompt
        return [row * per_prompt + index for row in self.prompts for index in range(per_prompt)]

    @property
    def num_learned(self) -> int:
        """How many trajectories are learned from."""
        return self.num_trajectories - len(self.prompts) * self.per_prompt

    def learned(self, number: int) -> int:
        """The trajectory of this number among those that are learned from."""
        prompt, index = divmod(number, self.per_prompt)
        # The i-th one held out is preceded by as many learned ones as its number less i.
        before = bisect_right(range(len(self.prompts)), prompt, key=self._learned_before)
        return (prompt + before) * self.per_prompt + index

    def learned_in(self, trajectories: range) -> range:
        """The numbers of those among some trajectories that are learned from."""
        first, last = (
            end - self.per_prompt * bisect_left(self.prompts, end // self.per_prompt)
            for end in (trajectories.start, trajectories.stop)
        )
        return range(first, last)

    def _learned_before(self, place: int) -> int:
        """How many learned prompts precede the one that is held out at a place."""
        return self.prompts[place] - place


class Turns:
    """Whose turn each update is, where trajectories have several sizes: a batch is of one.

    Each size has a stream of its own, and a share of the updates like its share of the
    trajectories: the next update is of the size that is furthest behind. So a position is found
    from its number alone, for any number of processes.
    """

    def __init__(self, kinds: Sequence[range]) -> None:
        """Of the numbers of learned trajectories that are of each size."""
        self._kinds = kinds
        self._counts = [0] * len(kinds)
        self._turns: list[tuple[int, int]] = []

    def at(self, start: int, stop: int, batch_size: int) -> tuple[range, int, int]:
        """Whose turn it is at the positions [start, stop) of one update, and which positions these
        are in the stream of its own."""
        if len(self._kinds) == 1:
            return self._kinds[0], start, stop
        update, beside = divmod(start, batch_size)
        kind, before = self._turn(update)
        begin = before * batch_size + beside
        return self._kinds[kind], begin, begin + stop - start

    def _turn(self, update: int) -> tuple[int, int]:
        """Of which size an update is, and how many before it were."""
        total = sum(map(len, self._kinds))
        while len(self._turns) <= update:
            wanted = len(self._turns) + 1
            behind = [
                len(kind) * wanted - count * total
                for kind, count in zip(self._kinds, self._counts, strict=True)
            ]
            chosen = behind.index(max(behind))
            self._turns.append((chosen, self._counts[chosen]))
            self._counts[chosen] += 1
        return self._turns[update]


@dataclass(frozen=True)
class Batches:
    """What one process learns from in each update.

    Attributes:
        dataset: where they come from.
        training: sizes.
        seed: of the order.
        ranks: which part of each global batch is this process's.
    """

    dataset: SegmentDataset
    training: Training
    seed: int
    ranks: RankInfo

    def __post_init__(self) -> None:
        """Every process must have something to do in every update, and something to learn from."""
        refuse(on_batch_size(self.training, self.ranks.world_size))
        assert self.split.num_learned > 0

    @cached_property
    def split(self) -> Split:
        """Which trajectories are learned from."""
        dataset = self.dataset
        per_prompt = dataset.recipe.samples_per_prompt
        return Split.of(dataset.num_trajectories, per_prompt, self.training.held_out_prompts)

    @property
    def local_range(self) -> range:
        """This process's contiguous part of a global batch; parts differ by one item at most."""
        return balanced_range(
            self.training.global_batch_size, self.ranks.rank, self.ranks.world_size
        )

    @property
    def largest_local_batch(self) -> int:
        """Samples per update of the process that has most of them."""
        return -(-self.training.global_batch_size // self.ranks.world_size)

    def positions(self, samples_seen: int) -> Iterator[list[int]]:
        """The items of this process in each update from a position on, to the training's end."""
        for start in range(
            samples_seen, self.training.num_samples, self.training.global_batch_size
        ):
            yield self._items(start + self.local_range.start, start + self.local_range.stop)

    def _items(self, start: int, stop: int) -> list[int]:
        """The items at the positions [start, stop), which lie in one span of a phase."""
        span = self.training.at(start)
        return way_of(span.phase).items(self, span, start, stop)

    @cached_property
    def _turns(self) -> Turns:
        """Which of the learned trajectories each update is of."""
        learned = [self.split.learned_in(alike) for alike in self.dataset.of_one_size]
        return Turns([numbers for numbers in learned if numbers])

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Height and width of the learned trajectories, each once."""
        learned = (it for it in self.dataset.of_one_size if self.split.learned_in(it))
        return [self.dataset.size_at(alike.start) for alike in learned]

    def segments(self, start: int, stop: int) -> list[int]:
        """The items at the positions [start, stop) of the stream of segments."""
        each = len(self.dataset.places)
        numbers, start, stop = self._turns.at(start, stop, self.training.global_batch_size)
        order = Order(len(numbers) * each, self.seed)
        pairs = (divmod(place, each) for place in order.items(start, stop))
        return [self.split.learned(numbers[number]) * each + place for number, place in pairs]

    def learned(self, times: int, start: int, stop: int) -> list[tuple[int, int]]:
        """What is at the positions [start, stop) of a stream that has each trajectory so many
        times: which time it is, from 0, and the trajectory."""
        numbers, start, stop = self._turns.at(start, stop, self.training.global_batch_size)
        order = Order(len(numbers) * times, self.seed)
        pairs = (divmod(place, len(numbers)) for place in order.items(start, stop))
        return [(number, self.split.learned(numbers[place])) for number, place in pairs]

    def read(self, samples_seen: int, device: torch.device) -> Iterator[Batch]:
        """This process's part of each global batch; on CUDA read ahead by other processes.

        Micro-batches are cut from it later, so their size may change while others read ahead.
        """
        on_cuda = device.type == "cuda"
        loader = DataLoader(
            self.dataset,
            batch_sampler=self.positions(samples_seen),
            num_workers=NUM_CUDA_WORKERS if on_cuda else 0,
            pin_memory=on_cuda,
            collate_fn=_as_it_is,
            # Forked, so that the memory maps are shared; workers never touch CUDA.
            multiprocessing_context="fork" if on_cuda else None,
        )
        with signals_blocked(), garbage_kept():
            return iter(loader)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Keep the signals to stop away from processes that are started in here.

    torchrun, SLURM and a terminal signal whole groups of processes. PyTorch's workers would die of
    SIGTERM, and their death is an error of the training, which could then not save. Blocked signals
    are inherited, so there is no moment at which a worker is not yet safe.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Let processes that are forked in here never collect what this one has left behind.

    Networks and optimizers lie in cycles, which wait for the collector. Tensors on a GPU among them
    would be freed in the forked process too, which CUDA ends for it.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _as_it_is(batch: Any) -> Any:
    """The dataset already returns whole batches, which PyTorch's types do not foresee."""
    return batch


def next_timed(batches: Iterator[Batch]) -> tuple[Batch, float]:
    """The next local batch, and the seconds that were waited for it."""
    begin_s = time.perf_counter()
    batch = next(batches)
    return batch, time.perf_counter() - begin_s
