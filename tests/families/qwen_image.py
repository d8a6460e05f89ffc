"""Qwen-Image as released: a template around prompts, a shift by size that ends at 0.02."""

from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)

from families.case import FamilyCase
from families.qwen import FEATURES, tiny_qwen, tiny_qwen_tokenizer

CHANNELS = 4


def make(folder: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokenizer = tiny_qwen_tokenizer()
        pipeline = QwenImagePipeline(
            tokenizer=tokenizer,
            text_encoder=tiny_qwen(len(tokenizer)),
            vae=AutoencoderKLQwenImage(
                base_dim=8,
                z_dim=CHANNELS,
                dim_mult=[1, 2, 4],
                num_res_blocks=1,
                temperal_downsample=[False, True],
                latents_mean=[0.1] * CHANNELS,
                latents_std=[1.5] * CHANNELS,
            ),
            transformer=QwenImageTransformer2DModel(
                in_channels=4 * CHANNELS,
                out_channels=CHANNELS,
                num_layers=2,
                attention_head_dim=16,
                num_attention_heads=2,
                joint_attention_dim=FEATURES,
                axes_dims_rope=(4, 4, 8),
            ),
            scheduler=FlowMatchEulerDiscreteScheduler(
                use_dynamic_shifting=True,
                base_shift=0.5,
                max_shift=0.9,
                max_image_seq_len=8192,
                shift_terminal=0.02,
            ),
        )
    pipeline.save_pretrained(folder)


CASE = FamilyCase(
    name="qwen-image",
    family="qwen_image",
    make=make,
    height=48,
    width=32,
    max_tokens=60,
    no_negative=" ",
)
