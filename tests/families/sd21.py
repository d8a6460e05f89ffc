"""Stable Diffusion 2.1 as released: PNDM, v_prediction, no safety checker; sampled with DDIM."""

from pathlib import Path

import torch
from diffusers import StableDiffusionPipeline

from families.case import FamilyCase
from families.clip import tiny_clip_tokenizer
from families.sd15 import DDIM, tiny_pndm, tiny_text_encoder, tiny_unet
from families.sdxl import SIZE, tiny_kl


def make(folder: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pipeline = StableDiffusionPipeline(
            tokenizer=tiny_clip_tokenizer(),
            text_encoder=tiny_text_encoder(),
            vae=tiny_kl(),
            unet=tiny_unet(
                attention_head_dim=(2, 4), use_linear_projection=True, upcast_attention=True
            ),
            scheduler=tiny_pndm("v_prediction"),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    pipeline.save_pretrained(folder)


CASE = FamilyCase(
    name="sd21",
    family="sd",
    make=make,
    height=SIZE,
    width=SIZE,
    teacher={"scheduler": DDIM},
    denoiser_at=lambda _t: "unet",
)
