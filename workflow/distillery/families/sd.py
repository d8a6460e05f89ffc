"""Stable Diffusion 1.5 and 2.1: one CLIP encoder and a UNet."""

from collections.abc import Mapping, Sequence
from math import lcm

import torch

from distillery.families.protocol import (
    Conditioning,
    Denoiser,
    Family,
    Pipeline,
    Setting,
)
from distillery.families.size import Size, check_size
from distillery.families.text import Reader, stack
from distillery.schedulers import Scheduler


class ClipUnet(Family):
    """What Stable Diffusion and SDXL share: CLIP, and a UNet; latents are (c, h, w)."""

    denoisers = ("unet",)
    time_embeddings = ("time_embedding", "time_emb_proj")
    compiles_by_block = False
    casts_latents = False
    stock_multiple = 8
    max_sequence_length = 77
    longest_sequence = 77

    def readers(self, pipeline: Pipeline, max_sequence_length: int) -> Sequence[Reader]:
        """All CLIP tokenizers; the stock pipeline takes what their encoders can read."""
        names = [name for name in self.text_components if name.startswith("tokenizer")]
        tokenizers = [(name, getattr(pipeline, name)) for name in names]
        return [Reader(name, it, it.model_max_length) for name, it in tokenizers if it is not None]

    def stored_tokens(self, max_sequence_length: int) -> int | None:
        """CLIP's padding is stored."""
        return max_sequence_length

    def latent_shape(self, pipeline: Pipeline, size: Size) -> tuple[int, ...]:
        """(c, height / factor, width / factor); the UNet itself takes odd sizes too."""
        config, factor = pipeline.unet.config, pipeline.vae_scale_factor
        if config.get("time_cond_proj_dim") is not None:
            raise ValueError(
                "the teacher's unet takes the guidance as an input (time_cond_proj_dim), as "
                "distilled ones do: use the model that it was distilled from"
            )
        multiple = lcm(factor, self.stock_multiple)
        check_size(size, multiple)
        return (config.in_channels, size.height // factor, size.width // factor)


class Sd(ClipUnet):
    """Adapter of `StableDiffusionPipeline`.

    The released schedulers are PNDM, which calls the network twice in its first step: choose
    another with `teacher.scheduler`. The safety checker counts as a text component, which means
    that neither teacher nor student is sampled with it: it would put black images among those
    that are compared. The student's exported pipeline has the teacher's.
    """

    name = "sd"
    pipeline_classes = ("StableDiffusionPipeline",)
    interface = ("in_channels", "out_channels", "cross_attention_dim")
    text_components = ("tokenizer", "text_encoder", "safety_checker", "feature_extractor")
    may_lack = ("safety_checker", "feature_extractor")

    @torch.no_grad()
    def encode(
        self, pipeline: Pipeline, prompts: Sequence[str], max_sequence_length: int
    ) -> list[Conditioning]:
        """Encode as `StableDiffusionPipeline.encode_prompt`; CLIP sees its padding."""
        embeds_bld, _ = pipeline.encode_prompt(
            list(prompts),
            device=pipeline._execution_device,
            num_images_per_prompt=1,
            do_classifier_free_guidance=False,
        )
        return [{"prompt_embeds": embeds.cpu().clone()} for embeds in embeds_bld]

    def pad(self, prompts: Sequence[Conditioning], max_sequence_length: int) -> Conditioning:
        """All prompts have the length that CLIP pads to."""
        return {"prompt_embeds": stack(prompts, "prompt_embeds")}

    def set_timesteps(
        self, scheduler: Scheduler, steps: int, latent_shape: tuple[int, ...]
    ) -> None:
        """Set the timesteps; refuse a scheduler that `StableDiffusionPipeline` changes when loaded.

        It sets `steps_offset` to 1, so that a student's pipeline would not take the steps that the
        student was trained for.
        """
        config = scheduler.config
        offset = config.get("steps_offset", 1)
        if config.get("timestep_spacing") == "leading" and offset != 1:
            raise ValueError(
                f"the {type(scheduler).__name__} for {steps} steps has timestep_spacing 'leading' "
                f"and steps_offset {offset}, which Stable Diffusion's pipeline sets to 1 when it "
                "is loaded: set teacher.scheduler, for example {class: DDIMScheduler, "
                "timestep_spacing: trailing, clip_sample: false}"
            )
        scheduler.set_timesteps(steps)

    def call_arguments(
        self, pipeline: Pipeline, prompts: Conditioning, negative: Conditioning, setting: Setting
    ) -> Mapping[str, object]:
        """Embeddings of both branches, and guidance."""
        return {
            "prompt_embeds": prompts["prompt_embeds"],
            "negative_prompt_embeds": negative["prompt_embeds"],
            "guidance_scale": setting.guidance_scale,
        }

    def predict(
        self,
        denoiser: Denoiser,
        noisy: torch.Tensor,
        timestep: torch.Tensor,
        conditioning: Conditioning,
        setting: Setting,
    ) -> torch.Tensor:
        """The conditional branch of `StableDiffusionPipeline.__call__`."""
        prediction: torch.Tensor = denoiser(
            noisy,
            timestep,
            encoder_hidden_states=conditioning["prompt_embeds"],
            return_dict=False,
        )[0]
        return prediction
