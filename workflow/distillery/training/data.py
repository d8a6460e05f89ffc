"""What the student learns from: segments of stored trajectories, in an order that the seed decides.

An item is one student step of one trajectory: item = trajectory * student.steps + segment. The
items after these, one per trajectory, are whole rollouts: item = num_items + trajectory.

Epochs follow one another without an end, each a permutation of all items, and global batch i is the
items [i * G, (i + 1) * G) of that stream, for any number of processes and any micro-batch.
"""

import hashlib
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from distillery.config.training import Objective, TimestepWeights, Training, check_batch_size
from distillery.families import Family, Setting, family_named
from distillery.families.protocol import Conditioning
from distillery.files import repair_hint
from distillery.noise import SampleId
from distillery.schedule import Schedule
from distillery.store.embeddings import EmbeddingStore
from distillery.store.recipes import TargetsRecipe
from distillery.store.shards import balanced_range
from distillery.store.tables import read_table
from distillery.store.trajectories import TrajectoryStore
from distillery.student.schedule import student_grid
from distillery.training.distributed import RankInfo
from distillery.training.health import SIGNALS
from distillery.training.objectives import Levels, ends_of, segment_weights, task_of


@dataclass(frozen=True)
class Batch:
    """What one forward pass takes, b segments; or what one rollout takes, b trajectories.

    Attributes:
        items: b numbers of the stream, for messages.
        segment: (b,) int64, the student's step; for a rollout the number of steps.
        noisy: (b, *latent) float32, the state before the (first) step.
        timestep: (b,), as the student's scheduler gives it for that step.
        target: (b, *latent) float32, what the network should output, or where a rollout should end.
        weight: (b,) float32, of the loss in the gradient; 1 for a rollout.
        conditioning: padded as the stock pipeline pads.
        is_rollout: whether the student takes all its steps.
    """

    items: list[int]
    segment: torch.Tensor
    noisy: torch.Tensor
    timestep: torch.Tensor
    target: torch.Tensor
    weight: torch.Tensor
    conditioning: Conditioning
    is_rollout: bool = False

    def pin_memory(self) -> "Batch":
        """A copy in page-locked memory; the data loader calls it on CUDA."""
        return replace(
            self,
            segment=self.segment.pin_memory(),
            noisy=self.noisy.pin_memory(),
            timestep=self.timestep.pin_memory(),
            target=self.target.pin_memory(),
            weight=self.weight.pin_memory(),
            conditioning={name: value.pin_memory() for name, value in self.conditioning.items()},
        )

    def to(self, device: torch.device) -> "Batch":
        """A copy on the device; from page-locked memory it does not wait."""
        return replace(
            self,
            segment=self.segment.to(device, non_blocking=True),
            noisy=self.noisy.to(device, non_blocking=True),
            timestep=self.timestep.to(device, non_blocking=True),
            target=self.target.to(device, non_blocking=True),
            weight=self.weight.to(device, non_blocking=True),
            conditioning={
                name: value.to(device, non_blocking=True)
                for name, value in self.conditioning.items()
            },
        )


class TargetSource(Dataset[Batch], ABC):
    """Where a training gets its targets from; `SegmentDataset` reads them from the store.

    The loop, the updates and the collapse probe ask nothing else, so another source (a teacher
    beside the student, say) is one class, and one line in `run.open_dataset`.

    Attributes:
        recipe: of the targets.
        recipe_hash: its hash.
        samples_hash: of the targets' samples: ids and texts, in order.
        family: of the teacher.
        grid: the student's schedule, one step per segment.
        setting: size and guidance of the targets.
        steps: of the student.
        num_trajectories: samples of the teacher.
        num_items: trajectories times student steps.
    """

    recipe: TargetsRecipe
    recipe_hash: str
    samples_hash: str
    family: Family
    grid: Schedule
    setting: Setting
    steps: int
    num_trajectories: int
    num_items: int

    @abstractmethod
    def __getitems__(self, items: list[int]) -> Batch:
        """What the network sees and should output; the items are all segments, or all rollouts.

        An item below `num_items` is trajectory * steps + segment, others num_items + trajectory.
        """

    @abstractmethod
    def name(self, item: int) -> str:
        """An item in words, for messages."""

    @abstractmethod
    def sample(self, item: int) -> SampleId:
        """The sample whose trajectory an item is of."""


class SegmentDataset(TargetSource):
    """All segments of a run's stored trajectories with their prompts; memory-mapped."""

    def __init__(
        self,
        targets: Path,
        embeddings: Path,
        prompts: Path,
        steps: int,
        objective: Objective = "segment",
        timestep_weights: TimestepWeights = "uniform",
        verify: bool = True,
    ) -> None:
        """Open both stores and check that they belong together.

        Args:
            targets, embeddings: the manifests.
            prompts: the train table (Parquet).
            steps: of the student.
            objective: what is asked at each segment's beginning.
            timestep_weights: of the segments in the gradient.
            verify: read all bytes of the embeddings once; of several processes one does it.

        Raises:
            ValueError: embeddings of another recipe than the targets were made with, a student's
                schedule that does not lie on the stored knots, targets without the predictions
                that the objective needs, or weights that do not fit the steps.
            DamagedChunkError: a chunk is missing or truncated, or an embedding has changed.
        """
        self._trajectories = TrajectoryStore(targets)
        self.recipe: TargetsRecipe = self._trajectories.recipe
        self.recipe_hash: str = self._trajectories.recipe_hash
        self.samples_hash: str = self._trajectories.samples_hash
        self._table = read_table(prompts)
        # The processes that read ahead are forked: each would verify for itself, chunk by chunk.
        self._embeddings = EmbeddingStore(embeddings, self._table, is_verified=True)
        if verify:
            self._embeddings.verify()
        if self._embeddings.recipe_hash != self.recipe.embeddings:
            manifests = sorted(targets.parent.glob("*.json"))
            raise ValueError(
                f"{embeddings} is of recipe {self._embeddings.recipe_hash[:12]}, but {targets} was "
                f"made with embeddings of recipe {self.recipe.embeddings[:12]}: restore the "
                f"configuration they were made with, or {repair_hint(*manifests)}"
            )
        self.family: Family = family_named(self.recipe.family)
        self.grid = student_grid(self.recipe, steps)
        self.setting = Setting(self.recipe.height, self.recipe.width, self.recipe.guidance_scale)
        self.steps = steps
        self.objective: Objective = objective
        if objective == "prediction":
            self._trajectories.check_predictions()
        self.num_trajectories = self._trajectories.num_samples
        self.num_items = self.num_trajectories * steps
        kind = self.recipe.prediction_type
        self._weights = torch.tensor(segment_weights(timestep_weights, self.grid, kind))
        self._stride = len(self.recipe.schedule.timesteps) // steps
        self._timesteps = torch.tensor(self.grid.timesteps)

    def __getitems__(self, items: list[int]) -> Batch:
        """Read the items and compute their targets, see `TargetSource`."""
        if items[0] >= self.num_items:
            return self._rollouts([item - self.num_items for item in items])
        trajectories = [item // self.steps for item in items]
        segments = [item % self.steps for item in items]
        ends = [ends_of(self.objective, segment, self.steps) for segment in segments]
        pairs = [
            self._states(trajectory, *knots)
            for trajectory, knots in zip(trajectories, ends, strict=True)
        ]
        segment = torch.tensor(segments)
        first, last = torch.tensor(ends).unbind(dim=1)
        noisy_j = self._scaled([pair[0] for pair in pairs], first)
        noisy_k = self._scaled([pair[1] for pair in pairs], last)
        if self.objective == "prediction":
            noisy, target = noisy_j, self._predictions(trajectories, segments)
        else:
            levels = [self._levels(knot, noisy_j) for knot in (first, last, segment)]
            kind = self.recipe.prediction_type
            noisy, target = task_of(self.objective, kind, noisy_j, noisy_k, *levels)
        return Batch(
            items=list(items),
            segment=segment,
            noisy=noisy,
            timestep=self._timesteps[segment],
            target=target,
            weight=self._weights[segment],
            conditioning=self._conditioning(trajectories),
        )

    def _rollouts(self, trajectories: list[int]) -> Batch:
        """The noise of whole trajectories and their clean ends."""
        pairs = [self._states(trajectory, 0, self.steps) for trajectory in trajectories]
        first = torch.zeros(len(pairs), dtype=torch.int64)
        last = torch.full_like(first, self.steps)
        return Batch(
            items=[self.num_items + trajectory for trajectory in trajectories],
            segment=last,
            noisy=self._scaled([pair[0] for pair in pairs], first),
            timestep=self._timesteps[first],
            target=self._scaled([pair[1] for pair in pairs], last),
            weight=torch.ones(len(pairs)),
            conditioning=self._conditioning(trajectories),
            is_rollout=True,
        )

    def _conditioning(self, trajectories: list[int]) -> Conditioning:
        """The trajectories' prompts."""
        rows = [self._trajectories.prompt_row(trajectory) for trajectory in trajectories]
        embeddings = [self._embeddings.row(row) for row in rows]
        return self.family.pad(embeddings, self.recipe.max_sequence_length)

    def _predictions(self, trajectories: list[int], segments: list[int]) -> torch.Tensor:
        """The teacher's guided predictions (b, *latent) in float32 where segments begin."""
        pairs = zip(trajectories, segments, strict=True)
        stored = [
            self._trajectories.prediction(trajectory, segment * self._stride)
            for trajectory, segment in pairs
        ]
        return torch.stack(stored).float()

    def _levels(self, knot: torch.Tensor, like: torch.Tensor) -> Levels:
        """alpha and sigma of the grid at knots (b,), shaped to multiply states (b, *latent)."""
        return self._at(self.grid.alphas, knot, like), self._at(self.grid.sigmas, knot, like)

    def _states(self, trajectory: int, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The states of a trajectory at two knots of the student's grid."""
        return self._trajectories.states(trajectory, first * self._stride, last * self._stride)

    def _scaled(self, states: list[torch.Tensor], knot: torch.Tensor) -> torch.Tensor:
        """States (b, *latent) in float32 as the network sees them, without their scale."""
        stacked = torch.stack(states).float()
        return stacked / self._at(self.grid.scales, knot, stacked)

    def _at(
        self, values: tuple[float, ...], knot: torch.Tensor, like: torch.Tensor
    ) -> torch.Tensor:
        """The grid's values at knots (b,), shaped to multiply states (b, *latent)."""
        return torch.tensor(values)[knot].view(-1, *[1] * (like.ndim - 1))

    def name(self, item: int) -> str:
        """An item in words: its sample and segment, or that it is a rollout."""
        what = "rollout" if item >= self.num_items else f"segment {item % self.steps}"
        row = self._trajectories.prompt_row(self._trajectory(item))
        return f"{self.sample(item)} {what} (row {row})"

    def sample(self, item: int) -> SampleId:
        """The sample whose trajectory an item is of."""
        trajectory = self._trajectory(item)
        row = self._trajectories.prompt_row(trajectory)
        index = trajectory % self.recipe.samples_per_prompt
        return SampleId(str(self._table["prompt_id"].iloc[row]), index)

    def _trajectory(self, item: int) -> int:
        is_rollout = item >= self.num_items
        return item - self.num_items if is_rollout else item // self.steps


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
    digest = hashlib.sha256(f"order\n{seed}\n{epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return torch.randperm(num_items, generator=generator)


@dataclass(frozen=True)
class Batches:
    """What one process learns from in each update.

    Attributes:
        dataset: where they come from.
        training: sizes.
        seed: of the order.
        ranks: which part of each global batch is this process's.
    """

    dataset: TargetSource
    training: Training
    seed: int
    ranks: RankInfo

    def __post_init__(self) -> None:
        """Every process must have something to do in every update."""
        check_batch_size(self.training, self.ranks.world_size)

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

    @property
    def rollouts_begin(self) -> int:
        """Samples seen before the first rollout."""
        return self.training.num_samples - self.training.rollout_samples

    def positions(self, samples_seen: int) -> Iterator[list[int]]:
        """The items of this process in each update from a position on, to the training's end."""
        for start in range(
            samples_seen, self.training.num_samples, self.training.global_batch_size
        ):
            yield self._items(start + self.local_range.start, start + self.local_range.stop)

    def _items(self, start: int, stop: int) -> list[int]:
        """The items at the positions [start, stop), which lie in one phase.

        In the finishing phase they are whole trajectories, in an order of their own that begins
        with the phase.
        """
        begin = self.rollouts_begin
        if start < begin:
            return Order(self.dataset.num_items, self.seed).items(start, stop)
        order = Order(self.dataset.num_trajectories, self.seed)
        trajectories = order.items(start - begin, stop - begin)
        return [self.dataset.num_items + trajectory for trajectory in trajectories]

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
        with signals_blocked():
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


def _as_it_is(batch: Any) -> Any:
    """The dataset already returns whole batches, which PyTorch's types do not foresee."""
    return batch


def next_timed(batches: Iterator[Batch]) -> tuple[Batch, float]:
    """The next local batch, and the seconds that were waited for it."""
    begin_s = time.perf_counter()
    batch = next(batches)
    return batch, time.perf_counter() - begin_s


def split(batch: Batch, num_parts: int) -> list[Batch]:
    """A batch in micro-batches of sizes that differ by one at most; views, not copies."""
    num_items = len(batch.items)
    ranges = [balanced_range(num_items, part, num_parts) for part in range(num_parts)]
    return [rows(batch, slice(part.start, part.stop)) for part in ranges]


def rows(batch: Batch, wanted: slice) -> Batch:
    """Some samples of a batch; all that it holds is by sample, or the same for all."""
    parts = {part.name: _cut(getattr(batch, part.name), wanted) for part in fields(batch)}
    return replace(batch, **parts)


def _cut(value: Any, wanted: slice) -> Any:
    if isinstance(value, Mapping):
        return {name: _cut(inner, wanted) for name, inner in value.items()}
    return value[wanted] if isinstance(value, list | torch.Tensor) else value
