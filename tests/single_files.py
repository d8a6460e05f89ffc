"""Weights as other tools write them into one file: the inverse of what Diffusers converts."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]

UNET = {
    "conv_in": "input_blocks.0.0",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
    "mid_block.resnets.0": "middle_block.0",
    "mid_block.attentions.0": "middle_block.1",
    "mid_block.resnets.1": "middle_block.2",
}
RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
VAE = {
    "mid_block.resnets.0": "mid.block_1",
    "mid_block.resnets.1": "mid.block_2",
    "mid_block.attentions.0.group_norm": "mid.attn_1.norm",
    "mid_block.attentions.0.to_q": "mid.attn_1.q",
    "mid_block.attentions.0.to_k": "mid.attn_1.k",
    "mid_block.attentions.0.to_v": "mid.attn_1.v",
    "mid_block.attentions.0.to_out.0": "mid.attn_1.proj_out",
    "downsamplers.0.conv": "downsample.conv",
    "upsamplers.0.conv": "upsample.conv",
    "conv_norm_out": "norm_out",
    "conv_shortcut": "nin_shortcut",
    "down_blocks": "down",
    "resnets": "block",
}
OPEN_CLIP = {
    "encoder.layers": "transformer.resblocks",
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
    "final_layer_norm": "ln_final",
    "embeddings.token_embedding": "token_embedding",
    "embeddings.position_embedding.weight": "positional_embedding",
}
WAN = {
    "norm2": "norm__",
    "norm3": "norm2",
    "norm__": "norm3",
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    "attn1": "self_attn",
    "attn2": "cross_attn",
    ".to_out.0.": ".o.",
    ".to_q.": ".q.",
    ".to_k.": ".k.",
    ".to_v.": ".v.",
    "proj_out": "head.head",
    "ffn.net.0.proj": "ffn.0",
    "ffn.net.2": "ffn.2",
}


def weights_in(component: Path) -> Tensors:
    """Of a component's folder."""
    (file,) = component.glob("*.safetensors")
    return load_file(file)


def write(tensors: Mapping[str, torch.Tensor], file: Path) -> Path:
    """A single file."""
    save_file({name: value.contiguous() for name, value in tensors.items()}, file)
    return file


def renamed(name: str, words: Mapping[str, str]) -> str:
    """Each of the words replaced, one after another."""
    for word, other in words.items():
        name = name.replace(word, other)
    return name


def unet(tensors: Tensors, layers_per_block: int = 1) -> Tensors:
    """Stable Diffusion's network in its first authors' layout."""
    size = layers_per_block + 1
    found = {}
    for name, value in tensors.items():
        match = re.match(r"(down|up)_blocks\.(\d)\.(resnets|attentions|\w+samplers)\.(\d)\.", name)
        if match is None:
            found[f"model.diffusion_model.{_of_resnet(renamed(name, UNET), name)}"] = value
            continue
        way, block, kind, layer = match[1], int(match[2]), match[3], int(match[4])
        rest = name[match.end() :]
        if kind == "downsamplers":
            place = f"input_blocks.{size * (block + 1)}.0.{rest.replace('conv', 'op')}"
        elif kind == "upsamplers":
            has_attention = any(f"up_blocks.{block}.attentions" in other for other in tensors)
            place = f"output_blocks.{size * block + layers_per_block}.{1 + has_attention}.{rest}"
        else:
            number = size * block + layer + (way == "down")
            blocks = "input_blocks" if way == "down" else "output_blocks"
            place = f"{blocks}.{number}.{int(kind == 'attentions')}.{_of_resnet(rest, name)}"
        found[f"model.diffusion_model.{place}"] = value
    return found


def _of_resnet(rest: str, name: str) -> str:
    return renamed(rest, RESNET) if "resnets" in name else rest


def vae(tensors: Tensors, num_levels: int = 2) -> Tensors:
    """The first authors' VAE, whose attention is a convolution and whose levels count down."""
    found = {}
    for name, value in tensors.items():
        turned = re.sub(r"up_blocks\.(\d)", lambda it: f"up.{num_levels - 1 - int(it[1])}", name)
        is_linear = "attentions" in name and value.ndim == 2
        own = value[:, :, None, None] if is_linear else value
        found[f"first_stage_model.{renamed(turned, VAE)}"] = own
    return found


def clip(tensors: Tensors, prefix: str = "cond_stage_model.transformer.text_model.") -> Tensors:
    """A text encoder as in Stable Diffusion 1's file."""
    return {prefix + name.removeprefix("text_model."): value for name, value in tensors.items()}


def open_clip(tensors: Tensors, prefix: str = "cond_stage_model.model.") -> Tensors:
    """A text encoder as OpenCLIP writes it, with queries, keys and values in one matrix."""
    plain = {name.removeprefix("text_model."): value for name, value in tensors.items()}
    found: Tensors = {}
    for name, value in plain.items():
        if "self_attn.q_proj" in name:
            parts = [plain[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            joined = name.replace("self_attn.q_proj.", "attn.in_proj_")
            found[prefix + renamed(joined, OPEN_CLIP)] = torch.cat(parts)
        elif name == "text_projection.weight":
            found[f"{prefix}text_projection"] = value.T
        elif not re.search(r"self_attn\.[kv]_proj", name):
            found[prefix + renamed(name, OPEN_CLIP)] = value
    return found


def wan(tensors: Tensors) -> Tensors:
    """Wan's network as released."""
    found = {}
    for name, value in tensors.items():
        table = "head.modulation" if name == "scale_shift_table" else name
        found[renamed(table.replace("scale_shift_table", "modulation"), WAN)] = value
    return found


def plain(tensors: Tensors, prefix: str = "") -> Tensors:
    """In Diffusers' own layout."""
    return {f"{prefix}{name}": value for name, value in tensors.items()}


def strip_weights(folder: Path, components: Any) -> None:
    """Leave of components what a single file does not have: their configurations."""
    for name in components:
        for file in (folder / name).glob("*.safetensors"):
            file.unlink()
