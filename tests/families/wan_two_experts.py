"""Wan2.2-A14B: two networks, the second from 0.875 of the schedule on."""

from pathlib import Path

import torch
from diffusers import WanPipeline

from families.case import FamilyCase
from tiny import (
    HEIGHT,
    MAX_TOKENS,
    WIDTH,
    tiny_scheduler,
    tiny_text_encoder,
    tiny_tokenizer,
    tiny_transformer,
    tiny_vae,
)

BOUNDARY = 0.875


def make(folder: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokenizer = tiny_tokenizer()
        pipeline = WanPipeline(
            tokenizer=tokenizer,
            text_encoder=tiny_text_encoder(len(tokenizer)),
            vae=tiny_vae(),
            scheduler=tiny_scheduler(),
            transformer=tiny_transformer(),
            transformer_2=tiny_transformer(),
            boundary_ratio=BOUNDARY,
        )
    pipeline.save_pretrained(folder)


CASE = FamilyCase(
    name="wan-two-experts",
    family="wan",
    make=make,
    height=HEIGHT,
    width=WIDTH,
    max_tokens=MAX_TOKENS,
    guidance_scale=4.0,
    guidance_scale_2=3.0,
    student={"expert": "transformer_2"},
    denoiser_at=lambda timestep: "transformer" if timestep >= BOUNDARY * 1000 else "transformer_2",
)
