"""Whether tensors are equal to the last bit on all ranks, in milliseconds and eight bytes."""

from collections.abc import Iterable

import torch

BLOCK = 1 << 22
"""Elements summed at once: 32 MB of weights at most, and as much for the products."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
"""By element size; eight bytes count as two integers, for 2^63 would weigh the same anywhere."""
_MULTIPLIERS = (-0x61C8864680B583EB, -0x40A7B892E31B1A47)
"""Odd 64-bit constants of SplitMix64 (Steele, Lea and Flood 2014), as signed integers."""


@torch.no_grad()
def fingerprint(tensors: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    """One int64 of shape () for all bits of some tensors, computed where they are.

    Elements are taken as integers b_j and summed as b_0 w_0 + b_1 w_1 + ... modulo 2^64, with odd
    pseudo-random weights; so are the blocks' sums. An odd weight has an inverse, so one element
    that differs is always found; several are missed with a probability of 2^-32 at most. Sums of
    integers do not depend on their order, so every device gives the same.

    Args:
        tensors: of any shape, contiguous; each is its own block or blocks.
        device: of the tensors.
    """
    blocks = [block for tensor in tensors for block in torch.split(_bits(tensor), BLOCK)]
    if not blocks:
        return torch.zeros((), dtype=torch.int64, device=device)
    weights = _odd_weights(max(map(len, blocks)), device)
    sums = [(block * weights[: len(block)]).sum() for block in blocks]
    # Other weights than inside the blocks: else place j of block k would weigh as k of j.
    return (torch.stack(sums) * _odd_weights(len(sums), device, first=BLOCK + 1)).sum()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements as integers, shape (integers,)."""
    return tensor.detach().contiguous().view(-1).view(_BITS[tensor.element_size()])


def _odd_weights(count: int, device: torch.device, first: int = 1) -> torch.Tensor:
    """Odd int64, shape (count,), made by mixing the bits of `first`, `first` + 1, ..."""
    mixed = torch.arange(first, first + count, dtype=torch.int64, device=device)
    for multiplier in _MULTIPLIERS:
        mixed = mixed * multiplier
        mixed ^= mixed >> 31
    return mixed | 1
