"""Released models that are measured: published configurations, and what a forward pass costs."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from distillery.families import Setting, Size, family_of
from distillery.families.protocol import Conditioning
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.skeleton import load_skeleton

TERA = 1e12


@dataclass(frozen=True)
class Model:
    """A released model to measure.

    Attributes:
        pipeline: its Diffusers class.
        denoiser: component's name, class and released configuration.
        vae: class and released configuration.
        scheduler: class and released configuration.
        height, width, steps, guidance_scale: of the targets.
        batch_size: of the stages.
        calls_per_step: network calls for one sample and step.
        prompt: shapes of one prompt's embeddings, by the adapter's names.
        index: further entries of model_index.json.
        num_frames: of a clip.
    """

    pipeline: str
    denoiser: tuple[str, str, dict[str, Any]]
    vae: tuple[str, dict[str, Any]]
    scheduler: tuple[str, dict[str, Any]]
    height: int
    width: int
    steps: int
    guidance_scale: float
    batch_size: int
    calls_per_step: int
    prompt: dict[str, tuple[int, ...]]
    index: dict[str, Any]
    num_frames: int = 1


KL = {
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "layers_per_block": 2,
    "sample_size": 1024,
}
SDXL = Model(
    pipeline="StableDiffusionXLPipeline",
    denoiser=(
        "unet",
        "UNet2DConditionModel",
        {
            "sample_size": 128,
            "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
            "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
            "block_out_channels": [320, 640, 1280],
            "layers_per_block": 2,
            "cross_attention_dim": 2048,
            "transformer_layers_per_block": [1, 2, 10],
            "attention_head_dim": [5, 10, 20],
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": 2816,
        },
    ),
    vae=("AutoencoderKL", {**KL, "latent_channels": 4, "scaling_factor": 0.13025}),
    scheduler=(
        "EulerDiscreteScheduler",
        {
            "beta_start": 0.00085,
            "beta_end": 0.012,
            "beta_schedule": "scaled_linear",
            "timestep_spacing": "leading",
            "steps_offset": 1,
        },
    ),
    height=1024,
    width=1024,
    steps=20,
    guidance_scale=5.0,
    batch_size=8,
    calls_per_step=2,
    prompt={"prompt_embeds": (77, 2048), "pooled": (1, 1280)},
    index={"force_zeros_for_empty_prompt": True, "add_watermarker": None},
)
WAN = Model(
    pipeline="WanPipeline",
    denoiser=(
        "transformer",
        "WanTransformer3DModel",
        {
            "num_attention_heads": 40,
            "attention_head_dim": 128,
            "in_channels": 16,
            "out_channels": 16,
            "text_dim": 4096,
            "freq_dim": 256,
            "ffn_dim": 13824,
            "num_layers": 40,
            "cross_attn_norm": True,
            "qk_norm": "rms_norm_across_heads",
        },
    ),
    vae=("AutoencoderKLWan", {}),
    scheduler=(
        "UniPCMultistepScheduler",
        {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0},
    ),
    height=480,
    width=832,
    steps=40,
    guidance_scale=5.0,
    batch_size=8,
    calls_per_step=2,
    prompt={"prompt_embeds": (60, 4096)},
    index={"boundary_ratio": None, "expand_timesteps": False},
)
FLUX = Model(
    pipeline="FluxPipeline",
    denoiser=(
        "transformer",
        "FluxTransformer2DModel",
        {"guidance_embeds": True, "in_channels": 64, "joint_attention_dim": 4096},
    ),
    vae=(
        "AutoencoderKL",
        {
            **KL,
            "latent_channels": 16,
            "scaling_factor": 0.3611,
            "shift_factor": 0.1159,
            "use_quant_conv": False,
            "use_post_quant_conv": False,
        },
    ),
    scheduler=(
        "FlowMatchEulerDiscreteScheduler",
        {"shift": 3.0, "use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15},
    ),
    height=1024,
    width=1024,
    steps=28,
    guidance_scale=3.5,
    batch_size=4,
    calls_per_step=1,
    prompt={"prompt_embeds": (512, 4096), "pooled": (1, 768)},
    index={},
)
Z_IMAGE = Model(
    pipeline="ZImagePipeline",
    denoiser=("transformer", "ZImageTransformer2DModel", {}),
    vae=FLUX.vae,
    scheduler=("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}),
    height=1024,
    width=1024,
    steps=28,
    guidance_scale=4.0,
    batch_size=4,
    calls_per_step=2,
    prompt={},
    index={},
)
FLUX2_KLEIN = Model(
    pipeline="Flux2KleinPipeline",
    denoiser=(
        "transformer",
        "Flux2Transformer2DModel",
        {
            "num_layers": 5,
            "num_single_layers": 20,
            "num_attention_heads": 24,
            "attention_head_dim": 128,
            "in_channels": 128,
            "joint_attention_dim": 7680,
            "guidance_embeds": False,
        },
    ),
    vae=("AutoencoderKLFlux2", {}),
    scheduler=("FlowMatchEulerDiscreteScheduler", {"use_dynamic_shifting": True}),
    height=1024,
    width=1024,
    steps=28,
    guidance_scale=4.0,
    batch_size=4,
    calls_per_step=2,
    prompt={},
    index={"is_distilled": False},
)
WAN_SMALL = replace(
    WAN,
    denoiser=(
        *WAN.denoiser[:2],
        {**WAN.denoiser[2], "num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30},
    ),
)
"""Wan2.1-T2V-1.3B as released."""
WAN_TI2V = replace(
    WAN,
    denoiser=(
        *WAN.denoiser[:2],
        {
            **WAN.denoiser[2],
            "num_attention_heads": 24,
            "in_channels": 48,
            "out_channels": 48,
            "ffn_dim": 14336,
            "num_layers": 30,
        },
    ),
    vae=(
        "AutoencoderKLWan",
        {
            "base_dim": 160,
            "decoder_base_dim": 256,
            "z_dim": 48,
            "in_channels": 12,
            "out_channels": 12,
            "patch_size": 2,
            "is_residual": True,
            "clip_output": False,
            "scale_factor_spatial": 16,
            "latents_mean": [0.0] * 48,
            "latents_std": [1.0] * 48,
        },
    ),
    height=704,
    width=1280,
    batch_size=1,
    index={"boundary_ratio": None, "expand_timesteps": True},
    num_frames=121,
)
"""Wan2.2-TI2V-5B as released, without its statistics of latents."""
MODELS = {"sdxl": SDXL, "wan": WAN, "flux": FLUX}
"""Those of a family with an adapter."""


def random_prompt(model: Model) -> dict[str, torch.Tensor]:
    """Random embeddings of one prompt."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(size, generator=generator).bfloat16()
        for name, size in model.prompt.items()
    }


def padded_prompts(model: Model, batch_size: int) -> Conditioning:
    """Random embeddings of a batch, padded to the length that the stock pipeline pads to."""
    family = family_of(model.pipeline)
    return family.pad([random_prompt(model)] * batch_size, family.max_sequence_length)


def count_teraflops(model: Model, folder: Path) -> float:
    """Of one forward pass for one sample: matrix products, convolutions and attention.

    Counted by PyTorch's `FlopCounterMode` while the network runs on the meta device, called as the
    stock pipeline calls it; `folder` holds that. Norms, activations and the like do not count.
    """
    family = family_of(model.pipeline)
    skeleton = load_skeleton(PipelineFolder(folder))
    shape = family.latent_shape(skeleton, Size(model.height, model.width))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        family.predict(
            getattr(skeleton, family.denoisers[0]),
            torch.empty(1, *shape, device="meta"),
            torch.empty(1, device="meta"),
            {name: value.float().to("meta") for name, value in padded_prompts(model, 1).items()},
            Setting(Size(model.height, model.width), model.guidance_scale),
        )
    return float(counter.get_total_flops()) / TERA
