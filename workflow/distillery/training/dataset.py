"""Segments of stored trajectories as batches: what the network sees and what it should output.

An item is one student step of one trajectory: item = trajectory * student.steps + segment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch.utils.data import Dataset

from distillery.config.training import Objective
from distillery.families import Family, Setting, family_named, few_step_scheduler, grid_of
from distillery.families.protocol import Conditioning
from distillery.files import canonical_json
from distillery.identity import SampleId
from distillery.schedule import Schedule, add_noise, as_prediction, secant
from distillery.schedulers import GRID_TOLERANCE, Scheduler, make_scheduler
from distillery.store.embeddings import EmbeddingStore
from distillery.store.trajectories import TrajectoryStore
from distillery.training.objectives import ends_of, segment_target


@dataclass(frozen=True)
class Batch:
    """What one forward pass takes; b segments.

    Attributes:
        items: b numbers of the stream, for messages.
        segment: (b,) int64, the student's step.
        noisy: (b, *latent) float32, the state before the step.
        timestep: (b,), as the student's scheduler gives it.
        target: (b, *latent) float32, what the network should output.
        conditioning: padded as the stock pipeline pads.
    """

    items: list[int]
    segment: torch.Tensor
    noisy: torch.Tensor
    timestep: torch.Tensor
    target: torch.Tensor
    conditioning: Conditioning

    def pin_memory(self) -> "Batch":
        """A copy in page-locked memory; the data loader calls it on CUDA."""
        return replace(
            self,
            segment=self.segment.pin_memory(),
            noisy=self.noisy.pin_memory(),
            timestep=self.timestep.pin_memory(),
            target=self.target.pin_memory(),
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
            conditioning={
                name: value.to(device, non_blocking=True)
                for name, value in self.conditioning.items()
            },
        )


class SegmentDataset(Dataset[Batch]):
    """All segments of a run's stored trajectories with their prompts; memory-mapped.

    Attributes:
        recipe: of the targets.
        recipe_hash: its hash.
        family: of the teacher.
        grid: the student's schedule, one step a segment.
        setting: size and guidance of the targets.
        num_items: trajectories times student steps.
    """

    def __init__(
        self,
        targets: Path,
        embeddings: Path,
        prompts: Path,
        steps: int,
        objective: Objective = "segment",
    ) -> None:
        """Open both stores and check that they belong together.

        Args:
            targets, embeddings: the manifests.
            prompts: the train table (Parquet).
            steps: of the student.
            objective: what is asked at each segment's beginning.

        Raises:
            ValueError: embeddings of another recipe than the targets were made with, or a student's
                schedule that does not lie on the stored knots.
        """
        self._trajectories = TrajectoryStore(targets)
        self.recipe: dict[str, Any] = self._trajectories.recipe
        self.recipe_hash: str = self._trajectories.recipe_hash
        self._table = pd.read_parquet(prompts)
        self._embeddings = EmbeddingStore(embeddings, self._table)
        if self._embeddings.recipe_hash != self.recipe["embeddings"]:
            raise ValueError(
                f"{embeddings} is of recipe {self._embeddings.recipe_hash[:12]}, but {targets} was "
                f"made with embeddings of recipe {self.recipe['embeddings'][:12]}: rerun the "
                "targets, or restore the configuration they were made with"
            )
        self.family: Family = family_named(self.recipe["family"])
        stored = self._trajectories.schedule
        self.grid = student_grid(self.recipe, stored, steps)
        self.setting = Setting(
            self.recipe["height"], self.recipe["width"], self.recipe["guidance_scale"]
        )
        self.steps = steps
        self.objective: Objective = objective
        self.num_items = self._trajectories.num_samples * steps
        self._stride = len(stored.timesteps) // steps
        self._timesteps = torch.tensor(self.grid.timesteps)

    def __getitems__(self, items: list[int]) -> Batch:
        """Read the items and compute their targets."""
        segments = [item % self.steps for item in items]
        ends = [ends_of(self.objective, segment, self.steps) for segment in segments]
        pairs = [self._states(item, *knots) for item, knots in zip(items, ends, strict=True)]
        segment = torch.tensor(segments)
        first, last = torch.tensor(ends).unbind(dim=1)
        noisy_j = self._scaled([pair[0] for pair in pairs], first)
        noisy_k = self._scaled([pair[1] for pair in pairs], last)
        noisy, target = self._task(noisy_j, noisy_k, first, last, segment)
        return Batch(
            items=list(items),
            segment=segment,
            noisy=noisy,
            timestep=self._timesteps[segment],
            target=target,
            conditioning=self.family.pad(
                [self._embeddings.row(self._prompt_row(item)) for item in items],
                self.recipe["max_sequence_length"],
            ),
        )

    def _task(
        self,
        noisy_j: torch.Tensor,
        noisy_k: torch.Tensor,
        first: torch.Tensor,
        last: torch.Tensor,
        segment: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The states that the network sees, and what it should output there; each (b, *latent).

        `noisy_j` and `noisy_k` are states at the knots `first` and `last` (b,); the student stands
        at the beginning of `segment` (b,).
        """
        alpha_j, alpha_k, alpha = (
            self._at(self.grid.alphas, knot, noisy_j) for knot in (first, last, segment)
        )
        sigma_j, sigma_k, sigma = (
            self._at(self.grid.sigmas, knot, noisy_j) for knot in (first, last, segment)
        )
        kind = self.recipe["prediction_type"]
        if self.objective == "reflow":
            clean, noise = secant(noisy_j, noisy_k, alpha_j, sigma_j, alpha_k, sigma_k)
            noisy = add_noise(clean, noise, alpha, sigma)
            return noisy, as_prediction(kind, clean, noise, alpha, sigma)
        target = segment_target(kind, noisy_j, noisy_k, alpha_j, sigma_j, alpha_k, sigma_k)
        return noisy_j, target

    def _states(self, item: int, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The states of an item's trajectory at two knots of the student's grid."""
        return self._trajectories.states(
            item // self.steps, first * self._stride, last * self._stride
        )

    def _scaled(self, states: list[torch.Tensor], knot: torch.Tensor) -> torch.Tensor:
        """States (b, *latent) in float32 as the network sees them, without their scale."""
        stacked = torch.stack(states).float()
        return stacked / self._at(self.grid.scales, knot, stacked)

    def _at(
        self, values: tuple[float, ...], knot: torch.Tensor, like: torch.Tensor
    ) -> torch.Tensor:
        """The grid's values at knots (b,), shaped to multiply states (b, *latent)."""
        return torch.tensor(values)[knot].view(-1, *[1] * (like.ndim - 1))

    def _prompt_row(self, item: int) -> int:
        return self._trajectories.prompt_row(item // self.steps)

    def name(self, item: int) -> str:
        """An item in words: prompt id, sample index and segment."""
        trajectory, segment = divmod(item, self.steps)
        row = self._trajectories.prompt_row(trajectory)
        index = trajectory % int(self.recipe["samples_per_prompt"])
        sample = SampleId(str(self._table["prompt_id"].iloc[row]), index)
        return f"{sample.prompt_id}/{sample.index} segment {segment} (row {row})"


def student_scheduler(recipe: Mapping[str, Any], steps: int) -> Scheduler:
    """The scheduler that the student will be exported with, from the targets' recipe alone."""
    family, shape = family_named(recipe["family"]), tuple(recipe["latent_shape"])
    config = dict(recipe["scheduler"])
    teacher = make_scheduler(config.pop("class"), config)
    return few_step_scheduler(family, teacher, recipe["steps"], steps, shape)


def student_grid(recipe: Mapping[str, Any], stored: Schedule, steps: int) -> Schedule:
    """The schedule of the student's scheduler, from the targets' recipe alone.

    Raises ValueError unless its states are stored knots.
    """
    num_segments = len(stored.timesteps)
    if num_segments % steps:
        allowed = [count for count in range(1, num_segments + 1) if num_segments % count == 0]
        raise ValueError(
            f"student.steps is {steps}, the trajectories are stored in {num_segments} segments: "
            f"use {' or '.join(map(str, allowed))} steps, or other targets.num_segments"
        )
    family, shape = family_named(recipe["family"]), tuple(recipe["latent_shape"])
    grid = grid_of(family, student_scheduler(recipe, steps), steps, shape)
    if grid.distance(stored.at(range(0, num_segments + 1, num_segments // steps))) > GRID_TOLERANCE:
        raise ValueError(
            f"a student of {steps} steps would sample at timesteps {list(grid.timesteps)}, sigmas "
            f"{_rounded(grid.sigmas)}; the targets hold timesteps {list(stored.timesteps)}, sigmas "
            f"{_rounded(stored.sigmas)}: choose targets.steps so that the student's grid lies on "
            "the teacher's, and make the targets again"
        )
    return grid


def _rounded(values: tuple[float, ...]) -> str:
    return canonical_json({"": [round(value, 6) for value in values]})[4:-1]
