"""Teacher trajectories on disk: the states at the knots, read by sample without loading all.

A chunk holds `noisy` (b, k, *latent), `prompt_row` (b,) into the prompt table, and the schedule
that the recipe also holds: `timesteps` (k - 1,), `alphas`, `sigmas` and `scales` (k,) at the knots.
States are the scheduler's own: `scale * (alpha * clean + sigma * noise)`.

All samples of a chunk are of one size. Where it is not the recipe's, the chunk holds `size` (2,),
height and width, and the schedule is that of this size.
"""

from collections.abc import Hashable, Sequence
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from distillery.noise import hash_samples
from distillery.schedule import Schedule
from distillery.store.recipes import TargetsRecipe
from distillery.store.shards import Manifest

SIZE = "size"


def knots_of(steps: int, num_segments: int) -> tuple[int, ...]:
    """Step indices of the stored states: 0, steps / num_segments, ..., steps."""
    return tuple(range(0, steps + 1, steps // num_segments))


def rows_of_chunks(
    sizes: Sequence[Hashable], samples_per_prompt: int, chunk_size: int
) -> list[Sequence[int]]:
    """The samples of each chunk: prompts of one size after another, sizes as they first stand.

    Args:
        sizes: of the prompts; only their equality counts.
    """
    prompts: dict[Hashable, list[int]] = {}
    for prompt, size in enumerate(sizes):
        prompts.setdefault(size, []).append(prompt)
    found: list[Sequence[int]] = []
    for chosen in prompts.values():
        rows = [
            prompt * samples_per_prompt + index
            for prompt in chosen
            for index in range(samples_per_prompt)
        ]
        found += [rows[start : start + chunk_size] for start in range(0, len(rows), chunk_size)]
    return found


def tensors_of(schedule: Schedule) -> dict[str, torch.Tensor]:
    """A schedule as a chunk holds it, in float64."""
    values = asdict(schedule).items()
    return {name: torch.tensor(each, dtype=torch.float64) for name, each in values}


class TrajectoryStore:
    """Random access to all trajectories of a manifest; memory-mapped, nothing is preloaded.

    Attributes:
        recipe: of the targets, with its schedule at the knots.
        samples_hash: of their samples: ids and texts, in order.
        recipes: as at each size, (height, width).
        of_one_size: the samples in ranges of one size each.
    """

    def __init__(self, manifest_path: Path) -> None:
        """Open the chunks that the manifest lists, relative to its folder."""
        self._manifest = manifest = Manifest.open(manifest_path)
        self.recipe = TargetsRecipe.from_json(manifest.recipe)
        self.recipe_hash = manifest.recipe_hash
        self.samples_hash = hash_samples(chunk.members for chunk in manifest.chunks)
        self.num_samples = manifest.num_samples
        self.num_knots = len(self.recipe.schedule.sigmas)
        files = [
            safe_open(manifest_path.parent / chunk.file, framework="pt")
            for chunk in manifest.chunks
        ]
        self._rows = [row for file in files for row in file.get_tensor("prompt_row").tolist()]
        # Memory-mapped: taken from the file once, since each asking costs more than what is read.
        self._noisy = [file.get_tensor("noisy") for file in files]
        found = [self._recipe_of(file) for file in files]
        self._sizes = [(recipe.height, recipe.width) for recipe in found]
        self.recipes = dict(zip(self._sizes, found, strict=True))
        spans = zip(self._sizes, zip([0, *manifest.ends], manifest.ends, strict=False), strict=True)
        runs = (list(run) for _, run in groupby(spans, key=itemgetter(0)))
        self.of_one_size = [range(run[0][1][0], run[-1][1][1]) for run in runs]

    def _recipe_of(self, file: Any) -> TargetsRecipe:
        """The recipe as at a chunk's size."""
        if SIZE not in file.keys():  # noqa: SIM118 - safetensors' file is no mapping
            return self.recipe
        height, width = file.get_tensor(SIZE).tolist()
        values = {
            name: tuple(file.get_tensor(name).tolist()) for name in asdict(self.recipe.schedule)
        }
        shape = tuple(file.get_slice("noisy").get_shape()[2:])
        changes = {"latent_shape": shape, "schedule": Schedule(**values)}
        return self.recipe.model_copy(update={"height": height, "width": width, **changes})

    def prompt_row(self, sample: int) -> int:
        """The row of the prompt table that a sample was made from."""
        return int(self._rows[sample])

    def size_at(self, sample: int) -> tuple[int, int]:
        """Height and width of a sample."""
        return self._sizes[self._manifest.place(sample)[0]]

    def states(self, sample: int, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The states of one trajectory at two knots, each (*latent)."""
        number, row = self._manifest.place(sample)
        states = self._noisy[number][row]
        return states[first], states[last]
