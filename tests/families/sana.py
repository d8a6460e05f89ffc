"""Sana as released: Gemma with an instruction and a mask, DPM-Solver++ on a flow, DC-AE."""

import inspect
import re
from pathlib import Path

import torch
from diffusers import (
    AutoencoderDC,
    DPMSolverMultistepScheduler,
    SanaPipeline,
    SanaTransformer2DModel,
)
from transformers import Gemma2Config, Gemma2Model, GemmaTokenizer

from families.case import FamilyCase

CHANNELS = 4
FEATURES = 16
CALL = inspect.signature(SanaPipeline.__call__).parameters
INSTRUCTION = re.findall("[a-z]{4,}", " ".join(CALL["complex_human_instruction"].default))
"""Its longer words."""
TIMESTEP_SCALE = 0.5
"""Released are 1 and, for Sana 1.5, other values: one that would be missed."""


def make(folder: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformer = SanaTransformer2DModel(
            in_channels=CHANNELS,
            out_channels=CHANNELS,
            num_attention_heads=2,
            attention_head_dim=4,
            num_layers=2,
            num_cross_attention_heads=2,
            cross_attention_head_dim=4,
            cross_attention_dim=8,
            caption_channels=FEATURES,
            sample_size=16,
            timestep_scale=TIMESTEP_SCALE,
        )
        torch.nn.init.normal_(transformer.proj_out.weight, std=0.2)
        pipeline = SanaPipeline(
            tokenizer=tiny_gemma_tokenizer(),
            text_encoder=tiny_gemma(),
            vae=tiny_dc(),
            transformer=transformer,
            scheduler=DPMSolverMultistepScheduler(
                prediction_type="flow_prediction",
                use_flow_sigmas=True,
                flow_shift=3.0,
                solver_order=2,
            ),
        )
    pipeline.save_pretrained(folder)


def tiny_gemma_tokenizer() -> GemmaTokenizer:
    """Spells out what is not in the instruction: letter by letter that has a thousand tokens."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    merges = {(word[:end], word[end]): None for word in INSTRUCTION for end in range(1, len(word))}
    merged = dict.fromkeys(first + second for first, second in merges)
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *letters, *merged]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    return GemmaTokenizer(vocab=vocab, merges=list(merges), add_bos_token=True)


def tiny_gemma() -> Gemma2Model:
    """A text encoder of one layer with one head, for the instruction is long."""
    config = Gemma2Config(
        vocab_size=len(tiny_gemma_tokenizer()),
        hidden_size=FEATURES,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        attn_logit_softcapping=None,
        max_position_embeddings=4096,
    )
    return Gemma2Model(config).eval()


def tiny_dc() -> AutoencoderDC:
    """A VAE of half the image's side."""
    return AutoencoderDC(
        latent_channels=CHANNELS,
        attention_head_dim=2,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        decoder_norm_types="rms_norm",
        decoder_act_fns="silu",
        scaling_factor=0.41407,
    )


CASE = FamilyCase(
    name="sana",
    family="sana",
    make=make,
    max_tokens=40,
    teacher={"negative_prompt": "the house"},
    masks={"encoder_hidden_states": "encoder_attention_mask"},
)
