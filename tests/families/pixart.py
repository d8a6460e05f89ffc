"""PixArt-Σ as released: T5 with a mask, DPM-Solver++ of second order, a learned variance."""

from pathlib import Path

import torch
from diffusers import DPMSolverMultistepScheduler, PixArtSigmaPipeline, PixArtTransformer2DModel

from families.case import FamilyCase
from families.sdxl import SIZE, tiny_kl
from families.t5 import tiny_t5, tiny_t5_tokenizer
from tiny import MAX_TOKENS, TEXT_FEATURES

CHANNELS = 4


def make(folder: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformer = PixArtTransformer2DModel(
            num_attention_heads=2,
            attention_head_dim=8,
            in_channels=CHANNELS,
            out_channels=2 * CHANNELS,
            num_layers=2,
            cross_attention_dim=16,
            caption_channels=TEXT_FEATURES,
            sample_size=SIZE // 2,
            use_additional_conditions=False,
        )
        torch.nn.init.normal_(transformer.proj_out.weight, std=0.2)
        pipeline = PixArtSigmaPipeline(
            tokenizer=tiny_t5_tokenizer(),
            text_encoder=tiny_t5(),
            vae=tiny_kl(),
            transformer=transformer,
            scheduler=DPMSolverMultistepScheduler(
                beta_start=0.0001, beta_end=0.02, beta_schedule="linear", solver_order=2
            ),
        )
    pipeline.save_pretrained(folder)


CASE = FamilyCase(
    name="pixart",
    family="pixart",
    make=make,
    height=SIZE,
    width=SIZE,
    max_tokens=MAX_TOKENS,
    masks={"encoder_hidden_states": "encoder_attention_mask"},
)
