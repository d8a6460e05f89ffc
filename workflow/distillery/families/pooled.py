"""Prompts of token embeddings and one pooled vector, all of equal length: SDXL, SD3 and FLUX."""

from collections.abc import Iterable, Mapping, Sequence

import torch

from distillery.families.protocol import Conditioning
from distillery.families.text import stack


def with_pooled(
    embeds_bld: Iterable[torch.Tensor], pooled_bd: Iterable[torch.Tensor]
) -> list[Conditioning]:
    """Each prompt of an encoded batch, on the CPU."""
    return [
        {"prompt_embeds": embeds.cpu().clone(), "pooled": pooled[None].cpu().clone()}
        for embeds, pooled in zip(embeds_bld, pooled_bd, strict=True)
    ]


def stack_pooled(prompts: Sequence[Conditioning]) -> Conditioning:
    """A batch of such prompts; their padding is stored with them."""
    return {
        "prompt_embeds": stack(prompts, "prompt_embeds"),
        "pooled": stack(prompts, "pooled").squeeze(1),
    }


def pooled_arguments(
    prompts: Mapping[str, torch.Tensor], negative: Mapping[str, torch.Tensor]
) -> dict[str, object]:
    """Arguments of stock calls that take token embeddings and one pooled vector a prompt."""
    return {
        "prompt_embeds": prompts["prompt_embeds"],
        "pooled_prompt_embeds": prompts["pooled"],
        "negative_prompt_embeds": negative["prompt_embeds"],
        "negative_pooled_prompt_embeds": negative["pooled"],
    }
