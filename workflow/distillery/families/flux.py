"""FLUX.1: packed latents, T5 without a mask, CLIP for one vector, guidance as an input or none."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from distillery.families.image_tokens import (
    PackedTokens,
    image_shift,
    network_timestep,
    token_grid,
)
from distillery.families.pooled import PooledText, with_pooled
from distillery.families.protocol import (
    Conditioning,
    Denoiser,
    Pipeline,
    Setting,
)
from distillery.families.text import Reader
from distillery.schedulers import Scheduler


class Flux(PooledText, PackedTokens):
    """Adapter of `FluxPipeline`; latents are (tokens, features), as its scheduler sees them.

    A guidance-distilled network (FLUX.1-dev) receives the guidance scale and is called once a step.
    Any other one (FLUX.1-schnell, or a dev whose distillation was undone) is guided by a second
    call where the scale is above 1, which the stock call names `true_cfg_scale`.
    """

    name = "flux"
    pipeline_classes = ("FluxPipeline",)
    is_flow = True
    text_components = (
        "tokenizer",
        "tokenizer_2",
        "text_encoder",
        "text_encoder_2",
    )
    max_sequence_length = 512
    longest_sequence = 512
    time_embeddings = (
        "timestep_embedder",
        "norm1.linear.bias",
        "norm1_context.linear.bias",
        "norm.linear.bias",
        "norm_out.linear.bias",
    )
    interface = (
        *PackedTokens.interface,
        "joint_attention_dim",
        "pooled_projection_dim",
        "guidance_embeds",
    )
    casts_latents = False
    no_negative = ""

    def readers(self, pipeline: Pipeline, max_sequence_length: int) -> Sequence[Reader]:
        """T5, which reads on where CLIP stops."""
        return [Reader("tokenizer_2", pipeline.tokenizer_2, max_sequence_length)]

    def stored_tokens(self, max_sequence_length: int) -> int | None:
        """T5's padding is stored."""
        return max_sequence_length

    @torch.no_grad()
    def encode(
        self, pipeline: Pipeline, prompts: Sequence[str], max_sequence_length: int
    ) -> list[Conditioning]:
        """Encode as `FluxPipeline.encode_prompt`; all positions count, T5's padding too."""
        embeds_bld, pooled_bd, _ = pipeline.encode_prompt(
            list(prompts), max_sequence_length=max_sequence_length
        )
        return with_pooled(embeds_bld, pooled_bd)

    def set_timesteps(
        self, scheduler: Scheduler, steps: int, latent_shape: tuple[int, ...]
    ) -> None:
        """Equal steps from 1 to 1 / steps, which the scheduler shifts by the image's size."""
        from diffusers.pipelines.flux.pipeline_flux import retrieve_timesteps

        mu = image_shift(scheduler, latent_shape[0])
        has_own = scheduler.config.get("use_flow_sigmas", False)
        sigmas = None if has_own else np.linspace(1.0, 1 / steps, steps)
        retrieve_timesteps(scheduler, steps, sigmas=sigmas, mu=mu)

    def has_guidance_embedding(self, denoiser_config: Mapping[str, Any]) -> bool:
        """True for guidance-distilled networks such as FLUX.1-dev."""
        return bool(denoiser_config.get("guidance_embeds", False))

    def call_arguments(
        self, pipeline: Pipeline, prompts: Conditioning, negative: Conditioning, setting: Setting
    ) -> Mapping[str, object]:
        """Those of pooled prompts, and guidance in the network's way: without guidance embedding
        the call ignores `guidance_scale`."""
        is_guided_by_input = self.has_guidance_embedding(pipeline.transformer.config)
        arguments = super().call_arguments(pipeline, prompts, negative, setting)
        scale = 1.0 if is_guided_by_input else setting.guidance_scale
        return {**arguments, "true_cfg_scale": scale}

    def predict(
        self,
        denoiser: Denoiser,
        noisy: torch.Tensor,
        timestep: torch.Tensor,
        conditioning: Conditioning,
        setting: Setting,
    ) -> torch.Tensor:
        """The conditional branch of `FluxPipeline.__call__`."""
        embeds, guidance = conditioning["prompt_embeds"], None
        if self.has_guidance_embedding(denoiser.config):  # type: ignore[arg-type]
            guidance = torch.full_like(timestep, setting.guidance_scale, dtype=torch.float32)
        prediction: torch.Tensor = denoiser(
            hidden_states=noisy,
            timestep=network_timestep(denoiser, timestep),
            guidance=guidance,
            pooled_projections=conditioning["pooled"],
            encoder_hidden_states=embeds,
            txt_ids=noisy.new_zeros(embeds.shape[1], 3),
            img_ids=_positions(noisy, setting),
            return_dict=False,
        )[0]
        return prediction


def _positions(noisy_bld: torch.Tensor, setting: Setting) -> torch.Tensor:
    """(tokens, 3): zero, row and column of each token; text has (0, 0, 0)."""
    rows, columns = (
        torch.arange(count, device=noisy_bld.device, dtype=noisy_bld.dtype)
        for count in token_grid(noisy_bld.shape[1], setting)
    )
    return torch.cartesian_prod(rows.new_zeros(1), rows, columns)
