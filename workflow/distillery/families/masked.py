"""Prompts with an attention mask: stored without what the mask hides.

Text encoders give values at masked tokens too, but the network's attention weighs them with exactly
zero (a bias of -10000 before the softmax). So any finite values there, zeros among them, lead to
the same latents bit for bit, and a short prompt takes a tenth of the 300 tokens that it is padded
to.
"""

from collections.abc import Mapping, Sequence
from math import lcm
from types import MappingProxyType

import torch

from distillery.families.protocol import Conditioning, Family, Pipeline, Setting
from distillery.families.size import Size, check_size
from distillery.families.text import pad_with_zeros

AS_ASKED: Mapping[str, object] = MappingProxyType(
    {"use_resolution_binning": False, "clean_caption": False}
)
"""The size that is asked for, not one of a list resized to it; the prompt as it is written, whether
or not the packages that rewrite it are installed. The pipelines' own defaults are the opposite."""


def unmasked(embeds_bld: torch.Tensor, mask_bl: torch.Tensor) -> list[Conditioning]:
    """The tokens of each prompt that its mask shows, on the CPU."""
    return [
        {"prompt_embeds": embeds[mask.bool()].cpu()}
        for embeds, mask in zip(embeds_bld, mask_bl, strict=True)
    ]


def pad_and_mask(prompts: Sequence[Conditioning], length: int) -> Conditioning:
    """A batch of `length` tokens, and the mask (b, l) as tokenizers give it: int64, 1 for text."""
    embeds = [prompt["prompt_embeds"] for prompt in prompts]
    seen = [torch.ones(len(tokens), dtype=torch.int64) for tokens in embeds]
    return {
        "prompt_embeds": pad_with_zeros(embeds, length),
        "attention_mask": pad_with_zeros(seen, length),
    }


class MaskedText(Family):
    """What PixArt-Σ and Sana share: masked prompts, patches, and pipelines that change the size
    and the prompt unless options forbid it."""

    def call_options(self, max_sequence_length: int) -> Mapping[str, object]:
        """`AS_ASKED`, and how far prompts are padded."""
        return {**AS_ASKED, "max_sequence_length": max_sequence_length}

    def pad(self, prompts: Sequence[Conditioning], max_sequence_length: int) -> Conditioning:
        """Masked zeros up to `max_sequence_length`."""
        return pad_and_mask(prompts, max_sequence_length)

    def latent_shape(self, pipeline: Pipeline, size: Size) -> tuple[int, ...]:
        """(c, height / factor, width / factor)."""
        config, factor = pipeline.transformer.config, pipeline.vae_scale_factor
        multiple = lcm(factor * config.patch_size, self.stock_multiple)
        check_size(size, multiple)
        return (config.in_channels, size.height // factor, size.width // factor)

    def call_arguments(
        self, pipeline: Pipeline, prompts: Conditioning, negative: Conditioning, setting: Setting
    ) -> Mapping[str, object]:
        """Embeddings and masks of both branches, guidance, and nothing changed on the way."""
        return {
            "prompt_embeds": prompts["prompt_embeds"],
            "prompt_attention_mask": prompts["attention_mask"],
            "negative_prompt": None,  # its default is a text, which embeddings may not go with
            "negative_prompt_embeds": negative["prompt_embeds"],
            "negative_prompt_attention_mask": negative["attention_mask"],
            "guidance_scale": setting.guidance_scale,
            **AS_ASKED,
        }
