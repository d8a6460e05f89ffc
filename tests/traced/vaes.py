"""VAEs of the classes of `traced` that are learnt without one, for runs that draw images."""

from collections.abc import Callable, Mapping
from typing import Any

import diffusers

from families.sana import tiny_dc
from families.sdxl import tiny_kl
from tiny import tiny_vae
from traced.images import flux2_vae
from traced.parts import CHANNELS
from traced.videos import ltx_vae

WIDTHS = (8, 8, 8, 8)
"""Of four blocks: an image's side is eight times its latents'."""
MEANS = {"latents_mean": [0.0] * CHANNELS, "latents_std": [1.0] * CHANNELS}


def deep_kl(channels: int = CHANNELS) -> Any:
    """As most are, where `tiny_kl` halves an image's side only."""
    return diffusers.AutoencoderKL(
        **_blocks("DownEncoderBlock2D", "UpDecoderBlock2D"),
        latent_channels=channels,
        norm_num_groups=4,
        scaling_factor=0.4,
        shift_factor=0.1,
    )


def _blocks(down: str, up: str) -> dict[str, Any]:
    return {
        "block_out_channels": WIDTHS,
        "down_block_types": (down,) * len(WIDTHS),
        "up_block_types": (up,) * len(WIDTHS),
    }


def _of_clips(kind: str) -> Any:
    """Of a class whose blocks have its name; a clip's frames are four times its latents'."""
    return getattr(diffusers, f"AutoencoderKL{kind}")(
        **_blocks(f"{kind}DownBlock3D", f"{kind}UpBlock3D"),
        latent_channels=CHANNELS,
        layers_per_block=1,
        norm_num_groups=4,
    )


def _mochi() -> Any:
    """Of twelve channels, as the pipeline takes for granted."""
    return diffusers.AutoencoderKLMochi(
        encoder_block_out_channels=(32, 32, 32, 32),
        decoder_block_out_channels=(32, 32, 32, 32),
        layers_per_block=(1, 1, 1, 1, 1),
    )


def _hunyuan_image() -> Any:
    return diffusers.AutoencoderKLHunyuanImage(
        in_channels=3,
        out_channels=3,
        latent_channels=CHANNELS,
        block_out_channels=(32, 32),
        layers_per_block=1,
        spatial_compression_ratio=2,
        sample_size=32,
        scaling_factor=0.4,
    )


def _qwen() -> Any:
    return diffusers.AutoencoderKLQwenImage(
        base_dim=4, z_dim=CHANNELS, dim_mult=[1, 1, 1, 1], num_res_blocks=1, **MEANS
    )


VAES: Mapping[str, Callable[[], Any]] = {
    "AllegroPipeline": lambda: _of_clips("Allegro"),
    "AuraFlowPipeline": deep_kl,
    "CogVideoXPipeline": lambda: _of_clips("CogVideoX"),
    "Flux2Pipeline": flux2_vae,
    "HunyuanDiTPAGPipeline": deep_kl,
    "HunyuanDiTPipeline": deep_kl,
    "HunyuanVideoPipeline": lambda: _of_clips("HunyuanVideo"),
    "HunyuanImagePipeline": _hunyuan_image,
    "Krea2Pipeline": _qwen,
    "LTXPipeline": ltx_vae,
    "LongCatImagePipeline": lambda: deep_kl(16),
    "MochiPipeline": _mochi,
    "SanaPAGPipeline": tiny_dc,
    "SanaPipeline": tiny_dc,
}
"""Of classes whose calls ask their VAE more than the usual ones tell."""


def vae_of(name: str, is_clip: bool) -> Any:
    """The VAE of a row."""
    if name in VAES:
        return VAES[name]()
    if is_clip:
        return tiny_vae()
    vae = tiny_kl()
    vae.register_to_config(scaling_factor=0.4, shift_factor=0.1)
    return vae
