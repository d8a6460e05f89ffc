"""Folders of released models for plans: all shapes as released, and weights that take no disk.

A plan reads configurations and the headers of weights files. So a file has its header and a hole of
the right size, which reads as zeros. Tokenizers know the words that they are given; their counts
are about right where a prompt has few rare words.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from end_to_end import CLIP_BIG_G, CLIP_L
from models import FLUX, FLUX2_KLEIN, SDXL, WAN, Z_IMAGE, Model
from tokenizers.pre_tokenizers import ByteLevel

from distillery import hash_cache
from distillery.files import write_json

CLIP_TOKENS, T5_TOKENS = 77, 512
XXL: dict[str, Any] = {
    "d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 24, "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
}  # fmt: skip
QWEN3_4B: dict[str, Any] = {
    "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "tie_word_embeddings": True,
}  # fmt: skip
SHARD_BYTES = 5 * 10**9
ITEM_BYTES = {"F16": 2, "BF16": 2, "F32": 4}


@dataclass(frozen=True)
class Released:
    """A released pipeline.

    Attributes:
        model: its denoiser, VAE and scheduler.
        texts: class and configuration of each text encoder, by component.
        denoisers: components of the denoiser's shape.
        variant: of all weights files.
        dtype: of the weights files, as safetensors names it.
        index: further entries of model_index.json.
    """

    model: Model
    texts: Mapping[str, tuple[str, Any]]
    denoisers: tuple[str, ...]
    variant: str | None
    dtype: str
    index: Mapping[str, Any]


RELEASED = {
    "stabilityai/stable-diffusion-xl-base-1.0": Released(
        SDXL,
        {
            "text_encoder": ("CLIPTextModel", CLIP_L),
            "text_encoder_2": ("CLIPTextModelWithProjection", CLIP_BIG_G),
        },
        ("unet",),
        "fp16",
        "F16",
        {},
    ),
    "black-forest-labs/FLUX.1-dev": Released(
        FLUX,
        {
            "text_encoder": ("CLIPTextModel", CLIP_L),
            "text_encoder_2": ("T5EncoderModel", transformers.T5Config(vocab_size=32128, **XXL)),
        },
        ("transformer",),
        None,
        "BF16",
        {},
    ),
    "Wan-AI/Wan2.2-T2V-A14B-Diffusers": Released(
        WAN,
        {
            "text_encoder": (
                "UMT5EncoderModel",
                transformers.UMT5Config(vocab_size=256384, **XXL),
            )
        },
        ("transformer", "transformer_2"),
        None,
        "BF16",
        {"boundary_ratio": 0.875},
    ),
    "Tongyi-MAI/Z-Image": Released(
        Z_IMAGE,
        {"text_encoder": ("Qwen3Model", transformers.Qwen3Config(**QWEN3_4B))},
        ("transformer",),
        None,
        "BF16",
        {},
    ),
    "black-forest-labs/FLUX.2-klein-base-4B": Released(
        FLUX2_KLEIN,
        {"text_encoder": ("Qwen3ForCausalLM", transformers.Qwen3Config(**QWEN3_4B))},
        ("transformer",),
        None,
        "BF16",
        {},
    ),
}
"""By the ids that configurations name."""


def make_released(released: Released, folder: Path, prompts: Iterable[str]) -> None:
    """Write a pipeline's folder.

    Args:
        released: the pipeline.
        folder: to write.
        prompts: whose words the tokenizers know.
    """
    model = released.model
    index: dict[str, Any] = {"_class_name": model.pipeline, **model.index, **released.index}
    for name in released.denoisers:
        _save(folder / name, getattr(diffusers, model.denoiser[1]), model.denoiser[2], released)
        index[name] = ["diffusers", model.denoiser[1]]
    _save(folder / "vae", getattr(diffusers, model.vae[0]), model.vae[1], released)
    index["vae"] = ["diffusers", model.vae[0]]
    scheduler_class, scheduler_config = model.scheduler
    getattr(diffusers, scheduler_class)(**scheduler_config).save_pretrained(folder / "scheduler")
    index["scheduler"] = ["diffusers", scheduler_class]
    words = sorted({word for prompt in prompts for word in prompt.split()})
    for name, (class_name, config) in released.texts.items():
        _save(folder / name, getattr(transformers, class_name), config, released)
        index[name] = ["transformers", class_name]
        tokenizer = _clip_tokenizer() if "CLIP" in class_name else _t5_tokenizer(words)
        component = name.replace("text_encoder", "tokenizer")
        tokenizer.save_pretrained(folder / component)
        index[component] = ["transformers", type(tokenizer).__name__]
    write_json(folder / "model_index.json", index)


def _save(folder: Path, network_class: Any, config: Any, released: Released) -> None:
    """A component's configuration, and weights of its shapes."""
    with torch.device("meta"):
        if isinstance(config, Mapping):
            network = network_class.from_config(config)
            network.save_config(folder)
        else:
            network = network_class(config)
            config.save_pretrained(folder)
    stem = "diffusion_pytorch_model" if isinstance(config, Mapping) else "model"
    shapes = {name: tuple(tensor.shape) for name, tensor in network.named_parameters()}
    _write_shards(folder, stem, shapes, released)


def _write_shards(
    folder: Path, stem: str, shapes: Mapping[str, tuple[int, ...]], released: Released
) -> None:
    """Weights in files of some GB, as released: a machine may refuse to map more than it has."""
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    size = 0
    for name, shape in shapes.items():
        size += ITEM_BYTES[released.dtype] * torch.Size(shape).numel()
        if size > SHARD_BYTES and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = shape
    variant = f".{released.variant}" if released.variant else ""
    if len(shards) == 1:
        write_hollow(folder / f"{stem}{variant}.safetensors", shards[0], released.dtype)
        return
    names = [
        f"{stem}{variant}-{number:05d}-of-{len(shards):05d}.safetensors"
        for number in range(1, len(shards) + 1)
    ]
    for name, shard in zip(names, shards, strict=True):
        write_hollow(folder / name, shard, released.dtype)
    files = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    write_json(folder / f"{stem}.safetensors.index{variant}.json", {"weight_map": files})


def write_hollow(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str) -> None:
    """A safetensors file of such tensors, all zero, that takes the disk of its header.

    Its hash is remembered without its bytes being read: tens of GB of zeros.
    """
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + ITEM_BYTES[dtype] * torch.Size(shape).numel()
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    identity = hash_cache._identify(path)
    hash_cache._remember(hash_cache.cache_folder(), identity, "0" * 64)


def _clip_tokenizer() -> Any:
    """It spells bytes; what it gives is padded, so their number does not matter."""
    signs = sorted(ByteLevel.alphabet())
    pieces = [*signs, *(f"{sign}</w>" for sign in signs), "<|startoftext|>", "<|endoftext|>"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    return transformers.CLIPTokenizer(vocab=vocab, merges=[], model_max_length=CLIP_TOKENS)


def _t5_tokenizer(words: Iterable[str]) -> Any:
    """One token a word, as far as the words are known."""
    specials = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces = [(f"\N{LOWER ONE EIGHTH BLOCK}{word}", -3.0) for word in words]
    letters = [(chr(code), -20.0) for code in range(ord("!"), ord("~") + 1)]
    blank = [("\N{LOWER ONE EIGHTH BLOCK}", -20.0)]
    return transformers.T5Tokenizer(
        vocab=[*specials, *pieces, *blank, *letters], extra_ids=0, model_max_length=T5_TOKENS
    )


def write_lora(path: Path, rank: int = 16) -> None:
    """A LoRA of SDXL's attention in one place, all zero."""
    place = "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q"
    shapes = {f"{place}.lora_A.weight": (rank, 640), f"{place}.lora_B.weight": (640, rank)}
    write_hollow(path, shapes, "F32")
