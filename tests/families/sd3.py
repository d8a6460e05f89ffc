"""SD3 as released: CLIP twice, T5, flow Euler with a static shift of 3."""

from pathlib import Path

import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from transformers import CLIPTextModelWithProjection, T5EncoderModel

from families.case import FamilyCase
from families.clip import FEATURES, tiny_clip, tiny_clip_tokenizer
from families.flow_vae import tiny_flow_kl
from families.t5 import tiny_t5, tiny_t5_tokenizer
from tiny import MAX_TOKENS

CHANNELS = 4
T5_FEATURES = 80
"""More than both CLIP encoders have together, as in SD3: the rest of theirs are zeros."""


def make(folder: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pipeline = StableDiffusion3Pipeline(
            tokenizer=tiny_clip_tokenizer(),
            tokenizer_2=tiny_clip_tokenizer(),
            tokenizer_3=tiny_t5_tokenizer(),
            text_encoder=exact_clip(),
            text_encoder_2=exact_clip(),
            text_encoder_3=wide_t5(),
            vae=tiny_flow_kl(),
            transformer=SD3Transformer2DModel(
                sample_size=16,
                patch_size=2,
                in_channels=CHANNELS,
                out_channels=CHANNELS,
                num_layers=3,
                attention_head_dim=8,
                num_attention_heads=2,
                joint_attention_dim=T5_FEATURES,
                caption_projection_dim=16,
                pooled_projection_dim=2 * FEATURES,
                pos_embed_max_size=12,
            ),
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        )
    pipeline.save_pretrained(folder)


def exact_clip() -> CLIPTextModelWithProjection:
    """Of a width, and a projection, with the same last bits on the CPU in batches of any size."""
    config = tiny_clip(with_projection=True).config
    config.intermediate_size = 2 * FEATURES
    encoder = CLIPTextModelWithProjection(config).eval()
    torch.nn.init.eye_(encoder.text_projection.weight)
    return encoder


def wide_t5() -> T5EncoderModel:
    """A T5 of `T5_FEATURES`."""
    config = tiny_t5().config
    config.d_model = T5_FEATURES
    return T5EncoderModel(config).eval()


CASE = FamilyCase(name="sd3", family="sd3", make=make, height=32, width=24, max_tokens=MAX_TOKENS)
