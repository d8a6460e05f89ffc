"""Qwen-Image: packed latents, and a language model that reads the prompt inside a template."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from distillery.families.image_tokens import (
    PackedTokens,
    image_shift,
    network_timestep,
    token_grid,
)
from distillery.families.masked import pad_and_mask, unmasked
from distillery.families.protocol import (
    Conditioning,
    Denoiser,
    Pipeline,
    Setting,
)
from distillery.families.text import Reader
from distillery.schedulers import Scheduler


class QwenImage(PackedTokens):
    """Adapter of `QwenImagePipeline`; latents are (tokens, features), as its scheduler sees them.

    The stock call rescales a guided prediction to the length of the conditional one, token by
    token. The trajectories hold that, so a student learns it too.
    """

    name = "qwen_image"
    pipeline_classes = ("QwenImagePipeline",)
    is_flow = True
    text_components = ("tokenizer", "text_encoder")
    max_sequence_length = 512
    longest_sequence = 1024
    time_embeddings = (
        "timestep_embedder",
        "img_mod.1.bias",
        "txt_mod.1.bias",
        "norm_out.linear.bias",
    )
    interface = (*PackedTokens.interface, "joint_attention_dim", "guidance_embeds")
    guidance_argument = "true_cfg_scale"
    no_negative = " "  # which its authors use for none

    def readers(self, pipeline: Pipeline, max_sequence_length: int) -> Sequence[Reader]:
        """The language model, which reads the template too and forgets the beginning of it.

        The template's end comes after the prompt and is the first that would be cut.
        """
        limit = pipeline.prompt_template_encode_start_idx + max_sequence_length
        clean = pipeline.prompt_template_encode.format
        return [Reader("tokenizer, with Qwen-Image's template,", pipeline.tokenizer, limit, clean)]

    @torch.no_grad()
    def encode(
        self, pipeline: Pipeline, prompts: Sequence[str], max_sequence_length: int
    ) -> list[Conditioning]:
        """Encode as `QwenImagePipeline.encode_prompt`, cut each prompt's padding away."""
        embeds_bld, mask_bl = pipeline.encode_prompt(
            list(prompts), max_sequence_length=max_sequence_length
        )
        if mask_bl is None:  # what the pipeline says where no prompt is padded
            mask_bl = torch.ones(embeds_bld.shape[:2])
        return unmasked(embeds_bld, mask_bl)

    def pad(self, prompts: Sequence[Conditioning], max_sequence_length: int) -> Conditioning:
        """Masked zeros up to the longest prompt of the batch."""
        return pad_and_mask(prompts, max(len(prompt["prompt_embeds"]) for prompt in prompts))

    def set_timesteps(
        self, scheduler: Scheduler, steps: int, latent_shape: tuple[int, ...]
    ) -> None:
        """Equal steps from 1 to 1 / steps, which the scheduler shifts by the image's size."""
        from diffusers.pipelines.qwenimage.pipeline_qwenimage import retrieve_timesteps

        mu = image_shift(scheduler, latent_shape[0])
        retrieve_timesteps(scheduler, steps, sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)

    def vae_latents(self, latents: torch.Tensor, setting: Setting) -> torch.Tensor:
        """Unpacked, as `QwenImagePipeline._unpack_latents`: a video of one frame."""
        return super().vae_latents(latents, setting).unsqueeze(2)

    def call_arguments(
        self, pipeline: Pipeline, prompts: Conditioning, negative: Conditioning, setting: Setting
    ) -> Mapping[str, object]:
        """Embeddings and masks; the negative ones with guidance only, else each call would warn."""
        arguments: dict[str, object] = {
            "prompt_embeds": prompts["prompt_embeds"],
            "prompt_embeds_mask": prompts["attention_mask"],
            "true_cfg_scale": setting.guidance_scale,
            # Its default would cut what was encoded longer.
            "max_sequence_length": max(
                part["prompt_embeds"].shape[1] for part in (prompts, negative)
            ),
        }
        if setting.guidance_scale > 1.0:
            arguments["negative_prompt_embeds"] = negative["prompt_embeds"]
            arguments["negative_prompt_embeds_mask"] = negative["attention_mask"]
        return arguments

    def predict(
        self,
        denoiser: Denoiser,
        noisy: torch.Tensor,
        timestep: torch.Tensor,
        conditioning: Conditioning,
        setting: Setting,
    ) -> torch.Tensor:
        """The conditional branch of `QwenImagePipeline.__call__`."""
        mask = conditioning["attention_mask"]
        rows, columns = token_grid(noisy.shape[1], setting)
        prediction: torch.Tensor = denoiser(
            hidden_states=noisy,
            timestep=network_timestep(denoiser, timestep),
            encoder_hidden_states=conditioning["prompt_embeds"],
            encoder_hidden_states_mask=None if mask.all() else mask,  # attention is faster without
            img_shapes=[[(1, rows, columns)]] * len(noisy),
            return_dict=False,
        )[0]
        return prediction
