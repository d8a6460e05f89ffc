"""Stored targets at states that the student visited itself, beside those of trajectories.

What `online` asks a teacher beside the student, jobs of their own have asked here: round after
round they stored where the student of the round before stands, one state a trajectory, and where
the teacher goes from there. All rounds so far are learned from (DAgger, Ross et al. 2011,
arXiv:1011.0686, which aggregates them too).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from distillery.config.phases import Span
from distillery.config.ways import Rounds
from distillery.files import repair_hint
from distillery.noise import seed_of
from distillery.run_folder import round_manifest
from distillery.store.visited import VisitedStore
from distillery.training.data import SegmentDataset
from distillery.training.ways.way import Way

if TYPE_CHECKING:
    from distillery.config.training import Training
    from distillery.training.batches import Batches
    from distillery.training.run import Inputs


class RoundsDataset(SegmentDataset):
    """The stored trajectories, and from `first_visited` on the states of round after round."""

    def open_more(self, inputs: Inputs, training: Training) -> None:
        """The rounds' stores, see `add`."""
        if inputs.rounds is None:
            raise ValueError(
                "training.phases has rounds and there are no --rounds: give their folder"
            )
        self.add([round_manifest(inputs.rounds, number) for number in training.round_numbers])

    def add(self, manifests: Sequence[Path]) -> None:
        """Open the rounds' stores.

        Raises:
            ValueError: one is of other trajectories than this data set's, or of a student of other
                steps.
            DamagedChunkError: a chunk is missing or truncated.
        """
        self.rounds = [VisitedStore(path) for path in manifests]
        for path, store in zip(manifests, self.rounds, strict=True):
            if (store.recipe.targets, store.recipe.steps) != (self.recipe_hash, self.steps):
                raise ValueError(
                    f"{path} is of trajectories {store.recipe.targets[:12]} and a student of "
                    f"{store.recipe.steps} steps, this training of {self.recipe_hash[:12]} and "
                    f"{self.steps}: restore the configuration, or {repair_hint(path)}"
                )

    def name(self, item: int) -> str:
        """An item in words."""
        if item < self.first_visited:
            return super().name(item)
        number, trajectory = self._visited(item)
        of_trajectory = super().name(trajectory * self.steps + self._segment(item))
        return f"{of_trajectory} (round {number + 1})"

    def _pair(self, item: int, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        if item < self.first_visited:
            return super()._pair(item, first, last)
        number, trajectory = self._visited(item)
        return self.rounds[number].pair(trajectory)

    def _segment(self, item: int) -> int:
        if item < self.first_visited:
            return super()._segment(item)
        number, trajectory = self._visited(item)
        return self.rounds[number].segment(trajectory)

    def _trajectory(self, item: int) -> int:
        if item < self.first_visited:
            return super()._trajectory(item)
        return self._visited(item)[1]

    def _visited(self, item: int) -> tuple[int, int]:
        """An item's round, from 0, and its trajectory."""
        return divmod(item - self.first_visited, self.num_trajectories)


def visited_segment(seed: int, number: int, sample: str, steps: int) -> int:
    """Before which of the student's `steps` a round takes a sample's state: any but the first,
    which begins at noise, where the trajectory is."""
    return 1 + seed_of(f"round\n{seed}\n{number}\n{sample}") % (steps - 1)


def places_in_round(span: Span, start: int, stop: int) -> tuple[range, range, range]:
    """What the positions [start, stop) of the stream are, which lie in one round.

    A round's even places are of trajectories, whose order goes on from before the rounds, its odd
    ones of visited states, in an order of their own.

    Returns:
        The places in the round; the positions of the even ones in the stream of trajectories, and
        of the odd ones in the round's stream of states.
    """
    first, last = start - span.begin, stop - span.begin
    done = span.since + (span.number - 1) * -(-span.phase.samples // 2)
    of_trajectories = range(done + -(-first // 2), done + -(-last // 2))
    return range(first, last), of_trajectories, range(first // 2, last // 2)


class RoundsWay(Way[Rounds]):
    """Half of each batch is of trajectories, half of states that the student visited."""

    source = RoundsDataset

    def items(self, batches: Batches, span: Span, start: int, stop: int) -> list[int]:
        """At positions that lie in one round: see `places_in_round`."""
        dataset = batches.dataset
        places, of_trajectories, of_states = places_in_round(span, start, stop)
        next_known = iter(batches.segments(of_trajectories.start, of_trajectories.stop))
        next_visited = (
            earlier * dataset.num_trajectories + trajectory
            for earlier, trajectory in batches.learned(span.number, of_states.start, of_states.stop)
        )
        return [
            dataset.first_visited + next(next_visited) if place % 2 else next(next_known)
            for place in places
        ]
