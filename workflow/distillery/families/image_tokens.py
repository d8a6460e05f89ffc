"""Images as tokens: packed latents, and the timestep shift that the number of tokens asks for."""

from collections.abc import Mapping, Sequence
from math import isqrt

import torch

from distillery.families.protocol import Denoiser, Family, Pipeline, Setting
from distillery.families.size import Size, check_size
from distillery.noise import draw_noise
from distillery.schedulers import Scheduler

PACKED = 2
"""Rows and columns of latents in one token of FLUX and Qwen-Image."""
TIMESTEPS = 1000
"""Their networks receive a timestep divided by it, between 0 and 1."""


class PackedTokens(Family):
    """What FLUX and Qwen-Image share: latents are (tokens, features), as the scheduler sees them,
    and the stock call has a length for prompts."""

    def call_options(self, max_sequence_length: int) -> Mapping[str, object]:
        """Where prompts are cut, and how far FLUX pads them."""
        return {"max_sequence_length": max_sequence_length}

    def latent_shape(self, pipeline: Pipeline, size: Size) -> tuple[int, ...]:
        """(tokens, features).

        Raises ValueError unless tokens fill the image; the stock pipelines would shrink it
        silently.
        """
        factor = PACKED * pipeline.vae_scale_factor
        check_size(size, factor)
        num_tokens = (size.height // factor) * (size.width // factor)
        return num_tokens, pipeline.transformer.config.in_channels

    def noise(self, pipeline: Pipeline, seeds: Sequence[int], setting: Setting) -> torch.Tensor:
        """(b, tokens, features), drawn as (c, h, w) and then packed, as the stock calls do."""
        size, factor = setting.size, pipeline.vae_scale_factor
        _, features = self.latent_shape(pipeline, size)
        shape = (features // PACKED**2, size.height // factor, size.width // factor)
        noise_bchw = draw_noise(seeds, shape)
        packed: torch.Tensor = pipeline._pack_latents(noise_bchw, *noise_bchw.shape)
        return packed

    def stock_timestep(self, float32_timestep: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """`network_timestep` of a network of `dtype`, from the stock call's for float32 states.

        Rounded before it is divided. In float64 the product is the schedule's timestep again, to
        its last bit.
        """
        return (float32_timestep.double() * TIMESTEPS).float().to(dtype) / TIMESTEPS

    def vae_latents(self, latents: torch.Tensor, setting: Setting) -> torch.Tensor:
        """(b, tokens, features) as (b, c, h, w), as the stock calls' `_unpack_latents`."""
        rows, columns = token_grid(latents.shape[1], setting)
        patches = latents.reshape(len(latents), rows, columns, -1, PACKED, PACKED)
        return patches.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


def network_timestep(denoiser: Denoiser, timestep_b: torch.Tensor) -> torch.Tensor:
    """The timesteps (b,), between 0 and 1, that stock calls pass to a network for the schedule's.

    They hold a timestep in the type of the states, which is the network's: in bfloat16 it is
    rounded before the division, and again after it.
    """
    kind = timestep_b.device.type
    is_autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    # Not `denoiser.dtype`: the wrapper of a network that learns on several processes has none.
    own = next(denoiser.parameters()).dtype
    dtype = torch.get_autocast_dtype(kind) if is_autocast else own
    return timestep_b.to(dtype) / TIMESTEPS


def token_grid(num_tokens: int, setting: Setting) -> tuple[int, int]:
    """Rows and columns of an image's tokens, which are square."""
    size = setting.size
    factor = isqrt(size.height * size.width // num_tokens)
    return size.height // factor, size.width // factor


def image_shift(scheduler: Scheduler, num_tokens: int) -> float:
    """The `mu` that stock pipelines give a scheduler for an image of so many tokens.

    Larger images need more noise to be as disturbed: Esser et al. 2024, arXiv:2403.03206, §5.3.2.
    """
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift

    config = scheduler.config
    return float(
        calculate_shift(
            num_tokens,
            config.get("base_image_seq_len", 256),
            config.get("max_image_seq_len", 4096),
            config.get("base_shift", 0.5),
            config.get("max_shift", 1.15),
        )
    )
