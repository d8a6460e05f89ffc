"""Numbers that a pipeline puts elsewhere, learnt: noise that becomes a state, and a state that
becomes what its VAE decodes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

BASE = 16
"""Of the digits that tell a number's place: a pipeline in bfloat16 still tells them apart."""
SEEDS = range(3)
"""A normal number in float32 is found twice among a million, but not so in three draws."""


@dataclass(frozen=True)
class Rearranged:
    """Every number of a sample at another place, scaled and shifted.

    Attributes:
        jumps: (n,) from each number's source to the next one's, which takes little place in JSON.
        scale, shift: (n,) float32.
        shape: of what they become.
    """

    jumps: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor
    shape: tuple[int, ...]

    @classmethod
    def made(
        cls, places: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, shape: Sequence[int]
    ) -> Self | None:
        """Of the source of each number; None where one is used twice or not at all."""
        if not places.sort().values.equal(torch.arange(len(places))):
            return None
        jumps = places.diff(prepend=places.new_zeros(1)).to(torch.int32)
        return cls(jumps, scale.float(), shift.float(), tuple(shape))

    def of(self, samples: torch.Tensor) -> torch.Tensor:
        """(b, ...) as (b, *shape)."""
        device = samples.device
        places = self.jumps.to(device).cumsum(0)
        moved = samples.flatten(1)[:, places] * self.scale.to(device) + self.shift.to(device)
        return moved.reshape(len(samples), *self.shape)


def learn_moves(
    move: Callable[[torch.Tensor], torch.Tensor], shape: Sequence[int]
) -> Rearranged | None:
    """How `move` rearranges a sample of a shape; None where it does more than that.

    Args:
        move: (1, *shape) float32 to (1, ...).
    """
    count = int(np.prod(shape))

    def moved(values: torch.Tensor) -> torch.Tensor:
        return move(values.float().reshape(1, *shape)).double().cpu().flatten()

    shift = moved(torch.zeros(count))
    scale = moved(torch.ones(count)) - shift
    if len(scale) != count or not bool(scale.abs().min() > 0):
        return None
    numbers, places, power = torch.arange(count), torch.zeros(count, dtype=torch.int64), 1
    while power < count:
        digits = (moved(numbers // power % BASE) - shift) / scale
        places += digits.round().to(torch.int64) * power
        power *= BASE
    found = move(torch.zeros(1, *shape)).shape[1:]
    return Rearranged.made(places, scale, shift, found)


def learn_noise(begin: Callable[[int], tuple[torch.Tensor, float]]) -> Rearranged | None:
    """How a state is made of its generator's noise, but for its scale; None where it is not, or
    where states are rounded, so that many of their numbers are alike.

    Args:
        begin: what a call begins with, (*latent), with a generator of a seed, and the
            scheduler's number that multiplies it.
    """
    begun = [begin(seed) for seed in SEEDS]
    if begun[0][0].dtype != torch.float32:
        return None
    states, scale = [state.cpu() for state, _ in begun], begun[0][1]
    shape = states[0].shape
    drawn = [torch.randn(shape.numel(), generator=_generator(seed)) * scale for seed in SEEDS]
    # The same numbers in another order are the same in the same order.
    targets, sources = (
        np.lexsort([each.flatten().numpy() for each in them]) for them in (states, drawn)
    )
    places = torch.empty(shape.numel(), dtype=torch.int64)
    places[torch.from_numpy(targets)] = torch.from_numpy(sources)
    found = Rearranged.made(places, torch.ones(len(places)), torch.zeros(len(places)), shape)
    is_so = found and all(
        found.of(noise[None])[0].equal(it) for noise, it in zip(drawn, states, strict=True)
    )
    return found if is_so else None


def draw(rearranged: Rearranged, seeds: Sequence[int]) -> torch.Tensor:
    """The noise (b, *latent) of each seed."""
    count = len(rearranged.jumps)
    return rearranged.of(
        torch.stack([torch.randn(count, generator=_generator(seed)) for seed in seeds])
    )


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
