"""Adapters for tiny teachers: trained by nobody, saved as Diffusers' training scripts save them."""

import json
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers.utils import convert_state_dict_to_diffusers
from peft import LoraConfig, get_peft_model_state_dict

FILE = "pytorch_lora_weights.safetensors"
DENOISER_TARGETS = ("to_q", "to_v", "to_out.0")
TEXT_TARGETS = ("q_proj", "v_proj")
Spoil = Callable[[dict[str, torch.Tensor]], None]


def make_adapter(
    teacher: Path,
    folder: Path,
    dora: bool = False,
    seed: int = 0,
    text: bool = False,
    spoil: Spoil | None = None,
) -> Path:
    """Save a LoRA or DoRA of rank 2 with random weights that are not zero; returns its file.

    Args:
        teacher: folder of the pipeline that it fits.
        folder: to write.
        dora: with magnitudes.
        seed: of its weights.
        text: whether the first text encoder is adapted too.
        spoil: changes the denoiser's tensors before they are saved.
    """
    index = json.loads((teacher / "model_index.json").read_text())
    name = "unet" if "unet" in index else "transformer"
    tensors, config = _trained(teacher, name, DENOISER_TARGETS, dora, seed)
    if spoil is not None:
        tensors = {key: value.clone() for key, value in tensors.items()}
        spoil(tensors)
    layers: dict[str, Any] = {
        f"{name}_lora_layers": tensors,
        f"{name}_lora_adapter_metadata": config.to_dict(),
    }
    if text:
        tensors, config = _trained(teacher, "text_encoder", TEXT_TARGETS, dora, seed + 1)
        layers["text_encoder_lora_layers"] = convert_state_dict_to_diffusers(tensors)
        layers["text_encoder_lora_adapter_metadata"] = config.to_dict()
    getattr(diffusers, index["_class_name"]).save_lora_weights(folder, **layers)
    return folder / FILE


@cache
def _trained(
    teacher: Path, component: str, targets: tuple[str, ...], dora: bool, seed: int
) -> tuple[dict[str, torch.Tensor], LoraConfig]:
    """An adapter of one component, made once for each: do not change its tensors."""
    library, name = json.loads((teacher / "model_index.json").read_text())[component]
    model = getattr(import_module(library), name).from_pretrained(teacher / component)
    return train(model, targets, dora, seed)


def train(
    model: Any, targets: tuple[str, ...], dora: bool, seed: int
) -> tuple[dict[str, torch.Tensor], LoraConfig]:
    """An adapter's tensors as if a training had ended here."""
    config = LoraConfig(r=2, lora_alpha=4, target_modules=list(targets), use_dora=dora)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.add_adapter(config, "trained")
        for parameter_name, parameter in model.named_parameters():
            if "lora_A" in parameter_name or "lora_B" in parameter_name:
                torch.nn.init.normal_(parameter, std=0.3)
            elif "lora_magnitude" in parameter_name:
                parameter.data *= 1.0 + 0.2 * torch.rand_like(parameter)
    return get_peft_model_state_dict(model, adapter_name="trained"), config
