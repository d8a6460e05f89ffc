"""A LoRA under the names that programs other than Diffusers read.

For UNets these are the names of Kohya's scripts. Of a transformer, ComfyUI reads Diffusers' names
as they are where its own layers can be told from them one by one, and else the names of its own
layers. What is said of it here is what `comfy/lora.py` and the maps `*_to_diffusers` of
`comfy/utils.py` look for, and the attributes of the networks in `comfy/ldm`. It does not read a
file's header, in which Diffusers keeps alpha.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from distillery.model_folder import full_disk_as_os_error
from distillery.student.lora import read_config

KOHYA_FILE = "lora_kohya.safetensors"
"""Under the names of Kohya's scripts, which AUTOMATIC1111, ComfyUI and others read for UNets."""
COMFYUI_FILE = "lora_comfyui.safetensors"


@dataclass(frozen=True)
class Names:
    """How ComfyUI names the layers of a network in a LoRA.

    Attributes:
        start: what comes before a layer's name.
        changes: patterns of Diffusers' names, and what ComfyUI has in their place.
        unread: pattern of the layers that it has no such name for.
    """

    start: str = "transformer."
    changes: Mapping[str, str] = field(default_factory=dict)
    unread: str | None = None

    def of(self, layer: str) -> str | None:
        """The name of a layer; None: it has none."""
        if self.unread is not None and re.match(self.unread, layer):
            return None
        for pattern, name in self.changes.items():
            layer = re.sub(pattern, name, layer)
        return self.start + layer


WAN = Names(
    "diffusion_model.",
    {
        r"\.attn1\.": ".self_attn.",
        r"\.attn2\.": ".cross_attn.",
        r"attn\.to_([qkv])$": r"attn.\1",
        r"attn\.to_out\.0$": "attn.o",
        r"\.ffn\.net\.0\.proj$": ".ffn.0",
        r"\.ffn\.net\.2$": ".ffn.2",
        r"^condition_embedder\.text_embedder\.linear_1$": "text_embedding.0",
        r"^condition_embedder\.text_embedder\.linear_2$": "text_embedding.2",
        r"^condition_embedder\.time_embedder\.linear_1$": "time_embedding.0",
        r"^condition_embedder\.time_embedder\.linear_2$": "time_embedding.2",
        r"^condition_embedder\.time_proj$": "time_projection.1",
        r"^proj_out$": "head.head",
    },
)
LTX = Names("diffusion_model.", {r"^proj_in$": "patchify_proj", r"^time_embed\.": "adaln_single."})
NETWORKS = {
    "AuraFlowTransformer2DModel": Names(),
    "ChromaTransformer2DModel": Names(unread="distilled_guidance_layer"),
    "Flux2Transformer2DModel": Names(unread=r"time_guidance_embed|\w+_modulation"),
    "FluxTransformer2DModel": Names(),
    "Krea2Transformer2DModel": Names(),
    "LTXVideoTransformer3DModel": LTX,
    "QwenImageTransformer2DModel": Names(),
    "SD3Transformer2DModel": Names(),
    "SkyReelsV2Transformer3DModel": WAN,
    "WanTransformer3DModel": WAN,
    "ZImageTransformer2DModel": Names(),
}
"""By the class of the network. Absent are those that ComfyUI does not have (Sana), and those whose
queries, keys and values are one layer there, with no name for each (HunyuanVideo, Lumina 2, Mochi):
their additions would be one of three times the rank."""


def write_other_names(lora: Path, network: str) -> str | None:
    """Write a LoRA beside itself once more, if ComfyUI would not read it as it is.

    Args:
        network: class of what it belongs to.

    Returns:
        The name of the file that ComfyUI reads; None where it reads none.
    """
    config, tensors = read_config(lora), load_file(lora)
    if next(iter(tensors)).startswith("unet."):
        _write_kohya(tensors, config["lora_alpha"], lora.with_name(KOHYA_FILE))
        return KOHYA_FILE
    if network not in NETWORKS:
        return None
    layers = {name: name.partition(".lora_")[0] for name in tensors}
    named = {it: NETWORKS[network].of(it.partition(".")[2]) for it in layers.values()}
    if None in named.values():  # a part of a LoRA is another one
        return None
    if all(layer == name for layer, name in named.items()) and config["lora_alpha"] == config["r"]:
        return lora.name
    renamed = {
        f"{named[layer]}{name.removeprefix(layer)}": tensors[name] for name, layer in layers.items()
    }
    alphas = {f"{name}.alpha": torch.tensor(float(config["lora_alpha"])) for name in named.values()}
    _save(renamed | alphas, lora.with_name(COMFYUI_FILE))
    return COMFYUI_FILE


def _write_kohya(tensors: dict[str, torch.Tensor], alpha: float, output: Path) -> None:
    """Diffusers' own conversion, but for alpha, which it takes to be the rank."""
    from diffusers.utils import convert_state_dict_to_kohya

    converted = convert_state_dict_to_kohya(tensors)
    alphas = {name: torch.tensor(float(alpha)) for name in converted if name.endswith(".alpha")}
    _save(converted | alphas, output)


def _save(tensors: dict[str, torch.Tensor], output: Path) -> None:
    with full_disk_as_os_error(output):
        save_file(tensors, output)
