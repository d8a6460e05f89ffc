"""FLUX.1-dev as released: guidance is an input of the network, the shift follows the size."""

from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

from families.case import FamilyCase
from families.clip import FEATURES, tiny_clip, tiny_clip_tokenizer
from families.flow_vae import tiny_flow_kl
from families.t5 import tiny_t5, tiny_t5_tokenizer
from tiny import MAX_TOKENS, TEXT_FEATURES

CHANNELS = 4


def make(folder: Path) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(
        shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15
    )
    tiny_flux(scheduler, guidance_embeds=True).save_pretrained(folder)


def tiny_flux(scheduler: FlowMatchEulerDiscreteScheduler, guidance_embeds: bool) -> FluxPipeline:
    """Two double blocks and two single ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return FluxPipeline(
            tokenizer=tiny_clip_tokenizer(),
            tokenizer_2=tiny_t5_tokenizer(),
            text_encoder=tiny_clip(),
            text_encoder_2=tiny_t5(),
            vae=tiny_flow_kl(),
            transformer=FluxTransformer2DModel(
                in_channels=4 * CHANNELS,
                num_layers=2,
                num_single_layers=2,
                attention_head_dim=16,
                num_attention_heads=2,
                joint_attention_dim=TEXT_FEATURES,
                pooled_projection_dim=FEATURES,
                guidance_embeds=guidance_embeds,
                axes_dims_rope=(4, 4, 8),
            ),
            scheduler=scheduler,
        )


CASE = FamilyCase(
    name="flux-dev", family="flux", make=make, height=32, width=24, max_tokens=MAX_TOKENS
)
