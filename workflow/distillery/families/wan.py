"""Wan (2.1 and its descendants) at one frame: text attends to zero padding, without a mask."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from PIL import Image

from distillery.families.protocol import (
    Conditioning,
    Denoiser,
    Pipeline,
    Request,
    Schedule,
    Scheduler,
)
from distillery.schedule import PredictionType

NUM_FRAMES = 1
MAX_PROMPTS_NAMED = 5


class Wan:
    """Adapter of `WanPipeline`; latents are (c, f, h, w) with one frame."""

    name = "wan"
    pipeline_classes: tuple[str, ...] = ("WanPipeline",)
    denoiser = "transformer"
    text_components: tuple[str, ...] = ("tokenizer", "text_encoder")
    max_sequence_length = 512
    blocks = "blocks"
    blocks_config = "num_layers"
    call_options: Mapping[str, object] = MappingProxyType({"num_frames": NUM_FRAMES})
    picture = "frames[0][0]"

    @torch.no_grad()
    def encode(
        self, pipeline: Pipeline, prompts: Sequence[str], max_sequence_length: int
    ) -> list[Conditioning]:
        """Encode as `WanPipeline.encode_prompt`, cut each prompt's zero padding away."""
        lengths = _count_tokens(pipeline, prompts, max_sequence_length)
        padded_bld, _ = pipeline.encode_prompt(
            list(prompts),
            do_classifier_free_guidance=False,
            max_sequence_length=max_sequence_length,
        )
        return [
            {"prompt_embeds": embeds[:length].cpu().clone()}
            for embeds, length in zip(padded_bld, lengths, strict=True)
        ]

    def pad(self, prompts: Sequence[Conditioning], max_sequence_length: int) -> Conditioning:
        """Zero vectors up to `max_sequence_length`: the network attends to them, so they count."""
        embeds = [prompt["prompt_embeds"] for prompt in prompts]
        padded = embeds[0].new_zeros(len(embeds), max_sequence_length, embeds[0].shape[-1])
        for row, tokens in enumerate(embeds):
            padded[row, : len(tokens)] = tokens
        return {"prompt_embeds": padded}

    def latent_shape(self, pipeline: Pipeline, height: int, width: int) -> tuple[int, ...]:
        """(c, 1, height / factor, width / factor)."""
        scale = pipeline.vae_scale_factor_spatial
        _, patch_h, patch_w = pipeline.transformer.config.patch_size
        for name, pixels, multiple in (
            ("height", height, scale * patch_h),
            ("width", width, scale * patch_w),
        ):
            if pixels % multiple:
                nearest = max(round(pixels / multiple), 1) * multiple
                raise ValueError(
                    f"teacher.{name} is {pixels}: this model needs a multiple of {multiple}; "
                    f"use {nearest}"
                )
        channels = pipeline.transformer.config.in_channels
        return (channels, NUM_FRAMES, height // scale, width // scale)

    def generate(self, pipeline: Pipeline, request: Request) -> list[Image.Image]:
        """One call of the stock pipeline with stored embeddings and the samples' own noise."""
        device = pipeline._execution_device
        frames = pipeline(
            prompt_embeds=request.conditioning["prompt_embeds"].to(device),
            negative_prompt_embeds=request.negative["prompt_embeds"].to(device),
            latents=request.noise.to(device),
            height=request.height,
            width=request.width,
            num_frames=NUM_FRAMES,
            num_inference_steps=request.steps,
            guidance_scale=request.guidance_scale,
            output_type="pil" if request.decode else "latent",
            return_dict=False,
        )[0]
        return [video[0] for video in frames] if request.decode else []

    def predict(
        self,
        denoiser: Denoiser,
        noisy: torch.Tensor,
        timestep: torch.Tensor,
        conditioning: Conditioning,
    ) -> torch.Tensor:
        """The conditional branch of `WanPipeline.__call__`."""
        prediction: torch.Tensor = denoiser(
            hidden_states=noisy,
            timestep=timestep,
            encoder_hidden_states=conditioning["prompt_embeds"],
            return_dict=False,
        )[0]
        return prediction

    def prediction_type(self, scheduler: Scheduler) -> PredictionType:
        """Flow matching; anything else is not a Wan."""
        found = scheduler.config.get("prediction_type", "flow_prediction")
        if found != "flow_prediction":
            raise ValueError(f"the teacher's scheduler predicts {found!r}, a Wan predicts the flow")
        return "flow_prediction"

    def schedule(self, scheduler: Scheduler, steps: int) -> Schedule:
        """Flow matching has alpha = 1 - sigma. The scheduler given is not changed."""
        scheduler = type(scheduler).from_config(scheduler.config)
        scheduler.set_timesteps(steps)
        sigmas = [float(sigma) for sigma in scheduler.sigmas]
        return Schedule(
            timesteps=tuple(timestep.item() for timestep in scheduler.timesteps),
            alphas=tuple(1.0 - sigma for sigma in sigmas),
            sigmas=tuple(sigmas),
        )

    def few_step_scheduler(self, scheduler: Scheduler, steps: int) -> Scheduler:
        """The released Wan scheduler, UniPC, with order one and no corrector: flow Euler.

        First order UniPC with data prediction is DDIM (Zhao et al. 2023, arXiv:2302.04867, §3.4),
        which for a flow is the Euler step. Its grid of k steps is part of the grid of any multiple.
        """
        is_unipc = type(scheduler).__name__ == "UniPCMultistepScheduler"
        if not (is_unipc and scheduler.config.use_flow_sigmas):
            raise ValueError(
                f"the teacher's scheduler is {type(scheduler).__name__}"
                f"{' without use_flow_sigmas' if is_unipc else ''}, whose grid of a few steps is "
                "not part of its grid of many: give the teacher folder a "
                "UniPCMultistepScheduler with use_flow_sigmas: true, as Wan is released"
            )
        return type(scheduler).from_config(
            scheduler.config, solver_order=1, disable_corrector=list(range(steps))
        )


def _count_tokens(
    pipeline: Pipeline, prompts: Sequence[str], max_sequence_length: int
) -> list[int]:
    """Tokens of each prompt, cleaned as the stock pipeline cleans; too long ones raise."""
    from diffusers.pipelines.wan.pipeline_wan import prompt_clean

    cleaned = [prompt_clean(prompt) for prompt in prompts]
    lengths = [len(tokens) for tokens in pipeline.tokenizer(cleaned).input_ids]
    too_long = [
        f"{length} tokens: {prompt[:80]!r}"
        for prompt, length in zip(prompts, lengths, strict=True)
        if length > max_sequence_length
    ]
    if too_long:
        shown = "\n  ".join(too_long[:MAX_PROMPTS_NAMED])
        raise ValueError(
            f"{len(too_long)} prompts are longer than the {max_sequence_length} tokens the teacher "
            f"reads: shorten them, or raise teacher.max_sequence_length:\n  {shown}"
        )
    return lengths
