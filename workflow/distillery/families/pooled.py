"""Prompts of token embeddings and one pooled vector, all of equal length: SDXL, SD3 and FLUX."""

from collections.abc import Iterable, Mapping, Sequence

import torch

from distillery.families.protocol import Conditioning, Family, Pipeline, Setting
from distillery.families.text import stack


def with_pooled(
    embeds_bld: Iterable[torch.Tensor], pooled_bd: Iterable[torch.Tensor]
) -> list[Conditioning]:
    """Each prompt of an encoded batch, on the CPU."""
    return [
        {"prompt_embeds": embeds.cpu().clone(), "pooled": pooled[None].cpu().clone()}
        for embeds, pooled in zip(embeds_bld, pooled_bd, strict=True)
    ]


class PooledText(Family):
    """What SDXL, SD3 and FLUX share: such prompts, whose padding is stored with them."""

    def pad(self, prompts: Sequence[Conditioning], max_sequence_length: int) -> Conditioning:
        """All prompts have the length that their encoders pad to."""
        return {
            "prompt_embeds": stack(prompts, "prompt_embeds"),
            "pooled": stack(prompts, "pooled").squeeze(1),
        }

    def call_arguments(
        self, pipeline: Pipeline, prompts: Conditioning, negative: Conditioning, setting: Setting
    ) -> Mapping[str, object]:
        """Embeddings and pooled vectors of both branches, and guidance."""
        return {
            "prompt_embeds": prompts["prompt_embeds"],
            "pooled_prompt_embeds": prompts["pooled"],
            "negative_prompt_embeds": negative["prompt_embeds"],
            "negative_pooled_prompt_embeds": negative["pooled"],
            "guidance_scale": setting.guidance_scale,
        }
