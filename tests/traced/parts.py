"""What tiny pipelines share: text encoders, and weights that matter."""

from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from transformers import (
    CLIPTextModel,
    CLIPTextModelWithProjection,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3VLTextConfig,
    Qwen3VLTextModel,
)

from families.clip import tiny_clip, tiny_clip_tokenizer
from families.qwen import FEATURES, tiny_qwen_tokenizer
from families.sana import tiny_gemma, tiny_gemma_tokenizer
from families.t5 import tiny_t5, tiny_t5_tokenizer

CHANNELS = 4
"""Of latents."""
LONG_CLIP = 77
"""Tokens that some pipelines pad to, whatever the tokenizer says."""
CHAT = (
    "{% for turn in messages %}<|im_start|>{{ turn.role }}\n"
    "{{ turn.content if turn.content is string else turn.content[0].text }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def awake(network: torch.nn.Module) -> Any:
    """With random matrices: Diffusers begins many a projection with zeros, which hide mistakes."""
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim > 1:
                weight.normal_(std=min(0.3, (weight.numel() / max(len(weight), 1) or 1) ** -0.5))
    return network.eval()


def flow(**options: Any) -> FlowMatchEulerDiscreteScheduler:
    """The scheduler of most; of a shift that is missed if it is left out."""
    return FlowMatchEulerDiscreteScheduler(**({"shift": 3.0} | options))


def t5() -> dict[str, Any]:
    """One text encoder."""
    return {"tokenizer": tiny_t5_tokenizer(), "text_encoder": tiny_t5()}


def gemma() -> dict[str, Any]:
    """One text encoder."""
    return {"tokenizer": tiny_gemma_tokenizer(), "text_encoder": tiny_gemma()}


def reader(num_layers: int = 4, see: bool = False) -> dict[str, Any]:
    """A language model of `FEATURES`, whose hidden states are read; stands for all of them.

    One that could `see`, too, has positions of three axes.
    """
    tokenizer = chat_tokenizer()
    config, model = (
        (Qwen3VLTextConfig, Qwen3VLTextModel) if see else (Qwen3Config, Qwen3ForCausalLM)
    )
    axes = {"mrope_section": [2, 1, 1]} if see else {}
    made = config(
        vocab_size=len(tokenizer),
        hidden_size=FEATURES,
        intermediate_size=32,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0} | axes,
    )
    return {"tokenizer": tokenizer, "text_encoder": model(made).eval()}


class Processor:
    """What a processor of text and images does with text."""

    def __init__(self) -> None:
        self.tokenizer = chat_tokenizer()

    def __call__(self, images: None = None, **arguments: Any) -> Any:
        return self.tokenizer(**arguments)

    def apply_chat_template(self, messages: Any, tokenize: bool, **options: Any) -> Any:
        found = self.tokenizer.apply_chat_template(messages, tokenize=tokenize, **options)
        return [found] if tokenize else found


def chat_tokenizer() -> Qwen2Tokenizer:
    """With turns."""
    tokenizer = tiny_qwen_tokenizer()
    tokenizer.chat_template = CHAT
    return tokenizer


def long_clip(with_projection: bool = False) -> dict[str, Any]:
    """A second text encoder, of `LONG_CLIP` tokens."""
    config: Any = tiny_clip(with_projection).config
    config.max_position_embeddings = LONG_CLIP
    kind = CLIPTextModelWithProjection if with_projection else CLIPTextModel
    return {"tokenizer_2": tiny_clip_tokenizer(), "text_encoder_2": kind(config).eval()}
