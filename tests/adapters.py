"""Adapters for tiny teachers: trained by nobody, saved as Diffusers' training scripts save them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline
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
    pipeline = DiffusionPipeline.from_pretrained(teacher)
    name = "unet" if hasattr(pipeline, "unet") else "transformer"
    tensors, config = train(getattr(pipeline, name), DENOISER_TARGETS, dora, seed)
    if spoil is not None:
        spoil(tensors)
    layers: dict[str, Any] = {
        f"{name}_lora_layers": tensors,
        f"{name}_lora_adapter_metadata": config.to_dict(),
    }
    if text:
        tensors, config = train(pipeline.text_encoder, TEXT_TARGETS, dora, seed + 1)
        layers["text_encoder_lora_layers"] = convert_state_dict_to_diffusers(tensors)
        layers["text_encoder_lora_adapter_metadata"] = config.to_dict()
    type(pipeline).save_lora_weights(folder, **layers)
    return folder / FILE


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
