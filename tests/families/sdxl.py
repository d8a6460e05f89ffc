"""SDXL as released: Euler from leading timesteps, epsilon, zeros for no negative prompt."""

from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    EulerDiscreteScheduler,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)

from families.case import FamilyCase
from families.clip import FEATURES, tiny_clip, tiny_clip_tokenizer

SIZE = 16


def make(folder: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pipeline = StableDiffusionXLPipeline(
            tokenizer=tiny_clip_tokenizer(),
            tokenizer_2=tiny_clip_tokenizer(),
            text_encoder=tiny_clip(),
            text_encoder_2=tiny_clip(with_projection=True),
            vae=tiny_kl(),
            unet=UNet2DConditionModel(
                sample_size=SIZE // 2,
                block_out_channels=(16, 32),
                layers_per_block=1,
                norm_num_groups=8,
                down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
                up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
                attention_head_dim=(2, 4),
                use_linear_projection=True,
                transformer_layers_per_block=(1, 2),
                addition_embed_type="text_time",
                addition_time_embed_dim=8,
                # Six numbers of the size, and the pooled vector.
                projection_class_embeddings_input_dim=6 * 8 + FEATURES,
                cross_attention_dim=2 * FEATURES,
            ),
            scheduler=EulerDiscreteScheduler(
                beta_start=0.00085,
                beta_end=0.012,
                beta_schedule="scaled_linear",
                timestep_spacing="leading",
                steps_offset=1,
            ),
            add_watermarker=False,
        )
    pipeline.save_pretrained(folder)


def tiny_kl() -> AutoencoderKL:
    """A VAE of half the image's side."""
    return AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        latent_channels=4,
        norm_num_groups=4,
        sample_size=SIZE,
    )


CASE = FamilyCase(
    name="sdxl", family="sdxl", make=make, height=SIZE, width=SIZE, denoiser_at=lambda _t: "unet"
)
