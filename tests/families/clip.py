"""Tiny CLIP text encoders, for the families that read prompts with them."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

FEATURES = 32
MAX_TOKENS = 12


def tiny_clip_tokenizer() -> CLIPTokenizer:
    """Spells prompts out letter by letter, up to `MAX_TOKENS` tokens."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    ends = [f"{letter}</w>" for letter in letters]
    pieces = [*letters, *ends, "<|startoftext|>", "<|endoftext|>"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    with TemporaryDirectory() as folder:
        (Path(folder) / "vocab.json").write_text(json.dumps(vocab))
        (Path(folder) / "merges.txt").write_text("#version: 0.2\n")
        return CLIPTokenizer.from_pretrained(folder, model_max_length=MAX_TOKENS)


def tiny_clip(with_projection: bool = False) -> torch.nn.Module:
    """A text encoder of two layers."""
    config = CLIPTextConfig(
        vocab_size=len(tiny_clip_tokenizer()),
        hidden_size=FEATURES,
        intermediate_size=64,
        num_attention_heads=4,
        num_hidden_layers=2,
        max_position_embeddings=MAX_TOKENS,
        projection_dim=FEATURES,
        bos_token_id=52,
        eos_token_id=53,
        pad_token_id=53,
    )
    encoder: torch.nn.Module
    encoder = (CLIPTextModelWithProjection if with_projection else CLIPTextModel)(config)
    return encoder.eval()
