"""Teacher trajectories on disk: the states at the knots, read by sample without loading all.

A chunk holds `noisy` (b, k, *latent), `prompt_row` (b,) into the prompt table, and the schedule
that the recipe also holds: `timesteps` (k - 1,), `alphas`, `sigmas` and `scales` (k,) at the knots.
States are the scheduler's own: `scale * (alpha * clean + sigma * noise)`.
"""

from pathlib import Path

import torch
from safetensors import safe_open

from distillery.noise import hash_samples
from distillery.store.recipes import TargetsRecipe
from distillery.store.shards import Manifest


def knots_of(steps: int, num_segments: int) -> tuple[int, ...]:
    """Step indices of the stored states: 0, steps / num_segments, ..., steps."""
    return tuple(range(0, steps + 1, steps // num_segments))


class TrajectoryStore:
    """Random access to all trajectories of a manifest; memory-mapped, nothing is preloaded.

    Attributes:
        recipe: of the targets, with its schedule at the knots.
        samples_hash: of their samples: ids and texts, in order.
    """

    def __init__(self, manifest_path: Path) -> None:
        """Open the chunks that the manifest lists, relative to its folder."""
        manifest = Manifest.open(manifest_path)
        self.recipe = TargetsRecipe.from_json(manifest.recipe)
        self.recipe_hash = manifest.recipe_hash
        self.samples_hash = hash_samples(chunk.members for chunk in manifest.chunks)
        self.num_samples = manifest.num_samples
        self.num_knots = len(self.recipe.schedule.sigmas)
        self._files = [
            safe_open(manifest_path.parent / chunk.file, framework="pt")
            for chunk in manifest.chunks
        ]
        self._rows = [row for file in self._files for row in file.get_tensor("prompt_row").tolist()]
        self._chunk_size = manifest.chunks[0].num_samples
        self.latent_shape = tuple(self._files[0].get_slice("noisy").get_shape()[2:])

    def prompt_row(self, sample: int) -> int:
        """The row of the prompt table that a sample was made from."""
        return int(self._rows[sample])

    def states(self, sample: int, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The states of one trajectory at two knots, each (*latent)."""
        number, row = divmod(sample, self._chunk_size)
        noisy = self._files[number].get_slice("noisy")
        # Reading [row, first:last + 1] maps one run of the file; the states between are few.
        run = noisy[row, first : last + 1]
        return run[0], run[-1]
