"""Stable Diffusion 1.5 as released: PNDM, epsilon, a safety checker; sampled with DDIM."""

from pathlib import Path
from typing import Any

import torch
from diffusers import PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
from transformers import CLIPConfig, CLIPImageProcessor, CLIPTextModel

from families.case import FamilyCase
from families.clip import FEATURES, tiny_clip, tiny_clip_tokenizer
from families.sdxl import SIZE, tiny_kl

DDIM = {"class": "DDIMScheduler", "timestep_spacing": "trailing", "clip_sample": False}


def make(folder: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pipeline = StableDiffusionPipeline(
            tokenizer=tiny_clip_tokenizer(),
            text_encoder=tiny_text_encoder(),
            vae=tiny_kl(),
            unet=tiny_unet(attention_head_dim=2),
            scheduler=tiny_pndm("epsilon"),
            safety_checker=tiny_safety_checker(),
            feature_extractor=CLIPImageProcessor(
                size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE}
            ),
        )
    pipeline.save_pretrained(folder)


def tiny_text_encoder() -> CLIPTextModel:
    """Of a width for which the CPU's products have the same last bits in batches of any size."""
    config: Any = tiny_clip().config
    config.intermediate_size = 2 * FEATURES
    return CLIPTextModel(config).eval()


def tiny_unet(**options: object) -> UNet2DConditionModel:
    """Of two levels; `options` tell the versions apart."""
    return UNet2DConditionModel(
        sample_size=SIZE // 2,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=FEATURES,
        **options,
    )


def tiny_pndm(prediction_type: str) -> PNDMScheduler:
    """As released, but for the prediction type."""
    return PNDMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        skip_prk_steps=True,
        set_alpha_to_one=False,
        steps_offset=1,
        prediction_type=prediction_type,
    )


def tiny_safety_checker() -> StableDiffusionSafetyChecker:
    """Its concepts lie out of reach of any image, so it blackens none."""
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": SIZE,
        "patch_size": 16,
    }
    return StableDiffusionSafetyChecker(CLIPConfig(vision_config=vision, projection_dim=8))


CASE = FamilyCase(
    name="sd15",
    family="sd",
    make=make,
    height=SIZE,
    width=SIZE,
    teacher={"scheduler": DDIM},
    denoiser_at=lambda _t: "unet",
)
