"""What a stock call is given and returns."""

from collections.abc import Iterable
from typing import Any

import torch


def generators(seeds: Iterable[int]) -> list[torch.Generator]:
    """What the samples' manifest promises: one per image, made of its `noise_seed` alone."""
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def flat(images: Any) -> list[Any]:
    """Images of a pipeline's result, where videos have one frame."""
    return [image[0] if isinstance(image, list) else image for image in images]
