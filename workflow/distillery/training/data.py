"""What the student learns from: segments of stored trajectories.

An item is one student step of one trajectory: item = trajectory * student.steps + segment. Of an
any-step student it is one step of any length, see `SegmentDataset.places`. The items after these,
one per trajectory, are whole rollouts: item = num_items + trajectory. After them come all steps
once more, with online targets: see `online`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.utils.data import Dataset

from distillery.config.training import Objective, TimestepWeights
from distillery.families import Family, Setting, Size, family_named, flow_map_of
from distillery.families.protocol import Conditioning
from distillery.files import repair_hint
from distillery.generation.targets import DrawnNoise
from distillery.noise import SampleId
from distillery.schedule import Schedule
from distillery.store.embeddings import EmbeddingStore
from distillery.store.recipes import TargetsRecipe
from distillery.store.tables import read_table
from distillery.store.trajectories import TrajectoryStore
from distillery.store.visited import VisitedStore
from distillery.student.flow_map import shares_of
from distillery.student.schedule import check_size, student_grid, teacher_grid
from distillery.training.batch import Batch, at_knots
from distillery.training.objectives import (
    CLEAN,
    Levels,
    flow_map_tasks,
    segment_weights,
    task_of,
    tasks_of,
)

if TYPE_CHECKING:  # a run is made from data
    from distillery.config.jobs import TrainingJob
    from distillery.config.training import Training
    from distillery.telemetry import Reporter
    from distillery.training.batches import Batches
    from distillery.training.health import Watchdog
    from distillery.training.run import Inputs

NUM_MEASURED = 32
"""Trajectories of the teacher that the alarms hold the student against."""


Student = Callable[[Batch], torch.Tensor]
"""The student's output (b, *latent) for a batch."""


def spread_evenly(num_items: int, count: int) -> list[int]:
    """Up to `count` of the numbers below `num_items`, at equal distances, 0 among them."""
    count = min(count, num_items)
    return [number * num_items // count for number in range(count)]


@dataclass(frozen=True)
class View:
    """How the trajectories of one size are learned from.

    Attributes:
        recipe: of the targets, as at this size.
        grid: the student's schedule, one step per segment.
        teacher_grid: the teacher's, of all its steps.
        setting: size and guidance of the targets.
        timesteps: (steps + 1,), of the student, and that of the clean end.
        weights: (tasks,), in the gradient.
    """

    recipe: TargetsRecipe
    grid: Schedule
    teacher_grid: Schedule
    setting: Setting
    timesteps: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def of(
        cls, recipe: TargetsRecipe, steps: int, weights: TimestepWeights, any_step: bool = False
    ) -> View:
        """Raises ValueError for a student's schedule that does not lie on the stored knots, or
        weights that do not fit the steps."""
        grid = student_grid(recipe, steps, any_step)
        of_tasks = (
            (1.0,) * len(flow_map_tasks(steps))
            if any_step
            else segment_weights(weights, grid, recipe.prediction_type)
        )
        return cls(
            recipe,
            grid,
            teacher_grid(recipe),
            Setting(Size.of(recipe), recipe.guidance_scale),
            torch.tensor((*grid.timesteps, CLEAN)),
            torch.tensor(of_tasks),
        )

    def levels(self, knot: torch.Tensor, like: torch.Tensor) -> Levels:
        """alpha and sigma of the grid at knots (b,), shaped to multiply states (b, *latent)."""
        return at_knots(self.grid.alphas, knot, like), at_knots(self.grid.sigmas, knot, like)

    def scaled(self, states: list[torch.Tensor], knot: torch.Tensor) -> torch.Tensor:
        """States (b, *latent) in float32 as the network sees them, without their scale."""
        stacked = torch.stack(states).float()
        return stacked / at_knots(self.grid.scales, knot, stacked)


class SegmentDataset(Dataset[Batch]):
    """All segments of a run's stored trajectories with their prompts; memory-mapped.

    `rounds.RoundsDataset` also reads states that the student visited, and `online.OnlineDataset`
    asks a teacher beside the student. The loop, the updates and the collapse probe ask nothing
    else, so what needs more is a subclass, the `source` of its way.

    Attributes:
        recipe, recipe_hash: of the targets.
        samples_hash: of the targets' samples: ids and texts, in order.
        usual: how trajectories of the teacher's size are learned from.
        num_trajectories: samples of the teacher.
        tasks: what the student is asked, see `objectives`; a batch's `segment` is a number of one.
        places: of the items of one trajectory, which of the tasks each is.
        num_items: trajectories times `places`.
        rounds: stores of visited states, see `rounds`.
    """

    rounds: Sequence[VisitedStore] = ()

    def __init__(
        self,
        targets: Path | DrawnNoise,
        embeddings: Path,
        prompts: Path,
        steps: int,
        objective: Objective = "segment",
        timestep_weights: TimestepWeights = "uniform",
        verify: bool = True,
        any_step: bool = False,
    ) -> None:
        """Open both stores and check that they belong together.

        Args:
            targets: manifest of the trajectories; or their noise alone, which is enough for an
                `OnlineDataset` all of whose samples are online.
            objective: what is asked at each segment's beginning.
            timestep_weights: of the segments in the gradient.
            verify: read all bytes of the embeddings once; of several processes one does it.
            any_step: whether the student learns to take fewer steps, too.

        Raises:
            ValueError: embeddings of another recipe than the targets were made with, a student's
                schedule that does not lie on the stored knots of each size, or weights that do not
                fit the steps.
            DamagedChunkError: a chunk is missing or truncated, or an embedding has changed.
        """
        self._trajectories = TrajectoryStore(targets) if isinstance(targets, Path) else targets
        self.recipe: TargetsRecipe = self._trajectories.recipe
        self.recipe_hash: str = self._trajectories.recipe_hash
        self.samples_hash: str = self._trajectories.samples_hash
        self._table = read_table(prompts)
        # The processes that read ahead are forked: each would verify for itself, chunk by chunk.
        self.embeddings = EmbeddingStore(embeddings, self._table, is_verified=True)
        if verify:
            self.embeddings.verify()
        if self.embeddings.recipe_hash != self.recipe.embeddings:
            assert isinstance(targets, Path), "noise is drawn for these very embeddings"
            manifests = sorted(targets.parent.glob("*.json"))
            raise ValueError(
                f"{embeddings} is of recipe {self.embeddings.recipe_hash[:12]}, but {targets} was "
                f"made with embeddings of recipe {self.recipe.embeddings[:12]}: restore the "
                f"configuration they were made with, or {repair_hint(*manifests)}"
            )
        family = family_named(self.recipe.family, self.recipe.signature)
        self.family: Family = flow_map_of(family) if any_step else family
        self.usual = View.of(self.recipe, steps, timestep_weights, any_step)
        self._views = {(self.recipe.height, self.recipe.width): self.usual}
        for size, recipe in self._trajectories.recipes.items():
            if size not in self._views:
                check_size(self.recipe, recipe, steps, any_step)
                self._views[size] = View.of(recipe, steps, timestep_weights, any_step)
        self.steps, self.any_step = steps, any_step
        self.objective: Objective = objective
        self.tasks = flow_map_tasks(steps) if any_step else tasks_of(objective, steps)
        self.places = shares_of(steps) if any_step else tuple(range(steps))
        self.num_trajectories = self._trajectories.num_samples
        self.num_items = self.num_trajectories * len(self.places)
        self._stride = len(self.recipe.schedule.timesteps) // steps

    def open_more(self, inputs: Inputs, training: Training) -> None:
        """Open what it reads beside trajectories, if it does."""

    def begin(
        self,
        job: TrainingJob,
        inputs: Inputs,
        batches: Batches,
        device: torch.device,
        reporter: Reporter,
        watchdog: Watchdog,
    ) -> None:
        """Get ready to give items; all ranks call it together, before the student is loaded."""

    def close(self) -> None:
        """The training has ended, and no more is asked for."""

    @property
    def asked(self) -> str:
        """The objective in words."""
        return "flow map" if self.any_step else self.objective

    @property
    def first_rollout(self) -> int:
        """The item that is the first trajectory's rollout."""
        return self.num_items

    @property
    def first_visited(self) -> int:
        """The item that is the first of states which the student visits: all steps once more with
        online targets, see `online`; or one round's states after another, see `rounds`."""
        return self.num_items + self.num_trajectories

    def measured(self, count: int = NUM_MEASURED) -> list[int]:
        """Trajectories that the alarms look at, whose segments have stored targets in any case; all
        are of the size that most have."""
        most = max(self.of_one_size, key=len)
        return [most[place] for place in spread_evenly(len(most), count)]

    @property
    def of_one_size(self) -> Sequence[range]:
        """The trajectories in ranges of one size each."""
        return self._trajectories.of_one_size

    def size_at(self, trajectory: int) -> tuple[int, int]:
        """Its height and width."""
        return self._trajectories.size_at(trajectory)

    def view(self, item: int) -> View:
        """How an item is learned from, and all that are in a batch with it."""
        return self._views[self.size_at(self._trajectory(item))]

    def with_targets(self, batch: Batch, student: Student, size: int) -> Batch:
        """An online batch with the states that the student visits, `size` at once, and targets."""
        raise NotImplementedError

    def teachers_view(
        self, noisy: torch.Tensor, steps: list[int], items: list[int]
    ) -> torch.Tensor:
        """The clean latents that the guided teacher sees in noisy ones, see `matching`.

        Args:
            noisy: (b, *latent) float32 as networks see them, of items on this process; maybe none.
            steps: b of the teacher's, at whose noise levels they are.
            items: b of which they are.
        """
        raise NotImplementedError

    def __getitems__(self, items: list[int]) -> Batch:
        """What the network sees and should output; the items are of one kind and one size."""
        if self.first_rollout <= items[0] < self.first_visited:
            return self._rollouts([item - self.first_rollout for item in items])
        trajectories = [self._trajectory(item) for item in items]
        segments = [self._segment(item) for item in items]
        tasks = [self.tasks[segment] for segment in segments]
        pairs = [
            self._pair(item, task.first, task.last) for item, task in zip(items, tasks, strict=True)
        ]
        segment = torch.tensor(segments)
        asked = torch.tensor([(task.knot, task.first, task.last) for task in tasks])
        knot, first, last = asked.unbind(dim=1)
        view = self.view(items[0])
        noisy_j = view.scaled([pair[0] for pair in pairs], first)
        noisy_k = view.scaled([pair[1] for pair in pairs], last)
        levels = [view.levels(each, noisy_j) for each in (first, last, knot)]
        kind = self.recipe.prediction_type
        noisy, target = task_of(self.objective, kind, noisy_j, noisy_k, *levels)
        return Batch(
            items=list(items),
            segment=segment,
            noisy=noisy,
            timestep=view.timesteps[knot],
            target=target,
            weight=view.weights[segment],
            conditioning=self._conditioning(trajectories),
            until=view.timesteps[last] if self.any_step else None,
        )

    def clean_ends(self, items: list[int]) -> torch.Tensor:
        """The clean latents (b, *latent) float32 on which the items' trajectories end; they are
        segments or rollouts."""
        ends = [self._states(self._trajectory(item), self.steps, self.steps)[1] for item in items]
        shape = (0, *self.recipe.latent_shape)
        last = torch.full((len(ends),), self.steps)
        return self.view(items[0]).scaled(ends, last) if ends else torch.zeros(shape)

    def states_at_knots(self, trajectories: Sequence[int]) -> torch.Tensor:
        """The teacher's states (b, k, *latent) float32 at the student's knots, its noise first, as
        networks see them."""
        knots, view = range(self.steps + 1), self.view(self.first_rollout + trajectories[0])
        at_each = (
            view.scaled(
                [self._states(trajectory, knot, knot)[0] for trajectory in trajectories],
                torch.full((len(trajectories),), knot),
            )
            for knot in knots
        )
        return torch.stack(list(at_each), dim=1)

    def other_conditioning(self, items: list[int], numbers: list[int]) -> Conditioning:
        """Prompts of other trajectories than the items', each chosen by its number; of the same
        prompt where there is only one."""
        per_prompt = self.recipe.samples_per_prompt
        num_prompts = self.num_trajectories // per_prompt
        others = [
            (self._trajectory(item) // per_prompt + 1 + number % max(num_prompts - 1, 1))
            % num_prompts
            * per_prompt
            for item, number in zip(items, numbers, strict=True)
        ]
        return self._conditioning(others)

    def _rollouts(self, trajectories: list[int]) -> Batch:
        """The noise of whole trajectories and their clean ends."""
        pairs = [self._states(trajectory, 0, self.steps) for trajectory in trajectories]
        view = self.view(self.first_rollout + trajectories[0])
        first = torch.zeros(len(pairs), dtype=torch.int64)
        last = torch.full_like(first, self.steps)
        return Batch(
            items=[self.first_rollout + trajectory for trajectory in trajectories],
            segment=torch.full_like(first, len(self.tasks)),
            noisy=view.scaled([pair[0] for pair in pairs], first),
            timestep=view.timesteps[first],
            target=view.scaled([pair[1] for pair in pairs], last),
            weight=torch.ones(len(pairs)),
            conditioning=self._conditioning(trajectories),
            is_rollout=True,
            until=view.timesteps[last] if self.any_step else None,
        )

    def _conditioning(self, trajectories: list[int]) -> Conditioning:
        """The trajectories' prompts."""
        rows = [self._trajectories.prompt_row(trajectory) for trajectory in trajectories]
        embeddings = [self.embeddings.row(row) for row in rows]
        return self.family.pad(embeddings, self.recipe.max_sequence_length)

    def _pair(self, item: int, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The states of an item at two knots of the student's grid."""
        return self._states(self._trajectory(item), first, last)

    def _segment(self, item: int) -> int:
        """The task that an item is, unless it is a rollout."""
        return self.places[item % len(self.places)]

    def item(self, trajectory: int, segment: int) -> int:
        """The first of the items that are a task of a trajectory."""
        return trajectory * len(self.places) + self.places.index(segment)

    def _states(self, trajectory: int, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The states of a trajectory at two knots of the student's grid."""
        return self._trajectories.states(trajectory, first * self._stride, last * self._stride)

    def name(self, item: int) -> str:
        """An item in words, for messages: its sample and segment, or that it is a rollout."""
        is_rollout = self.first_rollout <= item < self.first_visited
        what = "rollout" if is_rollout else self._task_name(self._segment(item))
        row = self._trajectories.prompt_row(self._trajectory(item))
        return f"{self.sample(item)} {what} (row {row})"

    def _task_name(self, segment: int) -> str:
        task = self.tasks[segment]
        return f"knots {task.first} to {task.last}" if self.any_step else f"segment {segment}"

    def sample(self, item: int) -> SampleId:
        """The sample whose trajectory an item is of."""
        trajectory = self._trajectory(item)
        row = self._trajectories.prompt_row(trajectory)
        index = trajectory % self.recipe.samples_per_prompt
        return SampleId(str(self._table["prompt_id"].iloc[row]), index)

    def prompt_of(self, item: int) -> int:
        """The number of the prompt whose trajectory an item is of."""
        return self._trajectory(item) // self.recipe.samples_per_prompt

    def _trajectory(self, item: int) -> int:
        is_rollout = item >= self.first_rollout
        return item - self.first_rollout if is_rollout else item // len(self.places)
