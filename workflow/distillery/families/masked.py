"""Prompts with an attention mask: stored without what the mask hides.

Text encoders give values at masked tokens too, but the network's attention weighs them with exactly
zero (a bias of -10000 before the softmax). So any finite values there, zeros among them, lead to
the same latents bit for bit, and a short prompt takes a tenth of the 300 tokens that it is padded
to.
"""

from collections.abc import Sequence

import torch

from distillery.families.protocol import Conditioning
from distillery.families.text import pad_with_zeros


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


def masked_arguments(prompts: Conditioning, negative: Conditioning) -> dict[str, object]:
    """Arguments of stock calls that take embeddings with their mask."""
    return {
        "prompt_embeds": prompts["prompt_embeds"],
        "prompt_attention_mask": prompts["attention_mask"],
        "negative_prompt": None,  # its default is a text, which embeddings may not go with
        "negative_prompt_embeds": negative["prompt_embeds"],
        "negative_prompt_attention_mask": negative["attention_mask"],
    }
