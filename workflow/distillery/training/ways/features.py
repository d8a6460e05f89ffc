"""What blocks of the frozen untrained student see in an image: tokens that others compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from distillery.families.protocol import Denoiser
from distillery.model_folder import load_denoiser
from distillery.teacher.loading import torch_dtype
from distillery.training import parallel
from distillery.training.batch import Batch, rows
from distillery.training.update import inspecting, predict

if TYPE_CHECKING:  # a run is made from ways to learn, which need these functions
    from distillery.training.run import Run

DEPTHS = (0.1, 0.3, 0.5, 0.75, 0.95)
"""Of the blocks in the order in which they run, whose features are looked at."""


class Features(nn.Module):
    """A frozen network, of which some blocks are looked at.

    Attributes:
        frozen: the untrained student, in evaluation mode and without gradients of its weights.
        places: of the blocks among `parallel.blocks_of`, in the order in which they run.
        widths: of their tokens.
    """

    def __init__(self, frozen: Denoiser, places: Sequence[int], widths: Sequence[int]) -> None:
        """Of blocks that are known."""
        super().__init__()
        self.frozen: Any = frozen
        self.places, self.widths = list(places), list(widths)

    @classmethod
    def load(cls, student: Path, way: str, run: Run) -> Features:
        """On the run's device.

        Args:
            way: to learn, that asks; for the message.
            run: with the dataset, of which one item is passed to find the widths.

        Raises ValueError for a network that has no blocks to look at.
        """
        dtype = torch_dtype(run.training.dtype)
        frozen = load_denoiser(student, dtype)
        frozen = frozen.requires_grad_(False).to(run.device).eval()
        blocks = parallel.blocks_of(frozen)
        if not blocks:
            raise ValueError(
                f"training.phases has {way} and the student's network names no blocks whose "
                "features could be looked at: leave it out"
            )
        sample = rows(run.dataset.__getitems__([0]), slice(1)).to(run.device)
        with inspecting(frozen, run.device, dtype), _observing(blocks) as found:
            predict(frozen, sample, run)
        ran = list(found)  # in the order in which they did
        chosen = dict.fromkeys(ran[round(depth * (len(ran) - 1))] for depth in DEPTHS)
        widths = [_tokens(found[block]).shape[-1] for block in chosen]
        return cls(frozen, [blocks.index(block) for block in chosen], widths)

    def forward(self, batch: Batch, run: Run) -> list[torch.Tensor]:
        """Tokens (b, n, width) float32 of each block.

        Args:
            batch: with `noisy` and `timestep`.
            run: settings, and the family whose network it is.
        """
        blocks = parallel.blocks_of(self.frozen)
        with _observing([blocks[place] for place in self.places]) as found:
            predict(self.frozen, batch, run)
        return [_tokens(found[blocks[place]]) for place in self.places]


@contextmanager
def _observing(blocks: Sequence[nn.Module]) -> Iterator[dict[nn.Module, torch.Tensor]]:
    """The image features that blocks give while a network runs, by block, in their order."""
    features: dict[nn.Module, torch.Tensor] = {}

    def keep(block: nn.Module, _: object, output: Any) -> None:
        # Blocks with a stream of text beside that of the image give the image's last.
        tensors = [output] if torch.is_tensor(output) else [it for it in output if it is not None]
        features[block] = tensors[-1]

    hooks = [block.register_forward_hook(keep) for block in blocks]
    try:
        yield features
    finally:
        for hook in hooks:
            hook.remove()


def _tokens(feature: torch.Tensor) -> torch.Tensor:
    """Features (b, n, width) or (b, width, ...) as tokens (b, n, width) in float32."""
    return (feature if feature.ndim == 3 else feature.flatten(2).transpose(1, 2)).float()
