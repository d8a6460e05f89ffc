"""States that the student visited and where the teacher goes from each, read by sample.

A chunk holds `noisy` (b, 2, *latent), `segment` (b,), the student's step that begins at the first
of the two, and `prompt_row` (b,). States are the scheduler's own, with their scale. Chunks of
states alone, on their way to the teacher, hold `noisy` (b, 1, *latent).
"""

from pathlib import Path

import torch
from safetensors import safe_open

from distillery.store.recipes import VisitedRecipe
from distillery.store.shards import Manifest


class VisitedStore:
    """Random access to one round's states; memory-mapped, nothing is preloaded.

    Attributes:
        num_samples: one state for each trajectory.
    """

    def __init__(self, manifest_path: Path) -> None:
        """Open the chunks that the manifest lists, relative to its folder."""
        self._manifest = manifest = Manifest.open(manifest_path)
        self.recipe = VisitedRecipe.from_json(manifest.recipe)
        self.recipe_hash = manifest.recipe_hash
        self.num_samples = manifest.num_samples
        files = [
            safe_open(manifest_path.parent / chunk.file, framework="pt")
            for chunk in manifest.chunks
        ]
        self._noisy = [file.get_tensor("noisy") for file in files]
        self._segments = torch.cat([file.get_tensor("segment") for file in files]).tolist()

    def segment(self, sample: int) -> int:
        """The student's step that begins at a sample's state."""
        return int(self._segments[sample])

    def pair(self, sample: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A sample's state and where the teacher is at the next knot, each (*latent)."""
        number, row = self._manifest.place(sample)
        run = self._noisy[number][row]
        return run[0], run[1]
