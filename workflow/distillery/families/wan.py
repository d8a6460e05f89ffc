"""Wan (2.1 and 2.2), images and clips: text attends to zero padding, without a mask."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from distillery.families.protocol import (
    Conditioning,
    Denoiser,
    Family,
    Pipeline,
    Setting,
)
from distillery.families.size import Size, check_positions, check_size, latent_frames
from distillery.families.text import Reader, pad_with_zeros


class Wan(Family):
    """Adapter of `WanPipeline`; latents are (c, f, h, w), an image is a clip of one frame.

    Wan2.2-A14B has two networks: `transformer` for the noisier part of the schedule, and
    `transformer_2` below `boundary_ratio`. Wan2.2-5B, whose network takes a timestep for every
    token (`expand_timesteps`), is refused: it can be traced.
    """

    name = "wan"
    pipeline_classes = ("WanPipeline",)
    is_flow = True
    denoisers: tuple[str, ...] = ("transformer", "transformer_2")
    single_network: Mapping[str, object] = MappingProxyType({"boundary_ratio": None})
    text_components = ("tokenizer", "text_encoder")
    max_sequence_length = 512
    time_embeddings = ("time_embedder", "time_proj", "scale_shift_table")
    interface = (*Family.interface, "text_dim")
    image = "frames[0][0]"
    clip = "frames[0]"
    starts_in_float32 = True

    def call_options(self, max_sequence_length: int) -> Mapping[str, object]:
        """How far prompts are padded."""
        return {"max_sequence_length": max_sequence_length}

    def readers(self, pipeline: Pipeline, max_sequence_length: int) -> Sequence[Reader]:
        """UMT5, after the pipeline's own cleaning."""
        from diffusers.pipelines.wan.pipeline_wan import prompt_clean

        return [Reader("tokenizer", pipeline.tokenizer, max_sequence_length, prompt_clean)]

    @torch.no_grad()
    def encode(
        self, pipeline: Pipeline, prompts: Sequence[str], max_sequence_length: int
    ) -> list[Conditioning]:
        """Encode as `WanPipeline.encode_prompt`, cut each prompt's zero padding away."""
        (reader,) = self.readers(pipeline, max_sequence_length)
        cleaned = [reader.clean(prompt) for prompt in prompts]
        lengths = [len(tokens) for tokens in pipeline.tokenizer(cleaned, verbose=False).input_ids]
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
        return {"prompt_embeds": pad_with_zeros(embeds, max_sequence_length)}

    def latent_shape(self, pipeline: Pipeline, size: Size) -> tuple[int, ...]:
        """(c, f, height / factor, width / factor): a frame of latents for the first of the clip,
        and one for each `vae_scale_factor_temporal` after it."""
        _check_networks(pipeline)
        scale = pipeline.vae_scale_factor_spatial
        config = (pipeline.transformer or pipeline.transformer_2).config
        patch_f, patch_h, patch_w = config.patch_size
        temporal = pipeline.vae_scale_factor_temporal
        check_size(size, scale * patch_h, scale * patch_w, temporal)
        positions = config.rope_max_seq_len  # of each axis, in patches
        largest = {
            "height": positions * scale * patch_h,
            "width": positions * scale * patch_w,
            "num_frames": (positions * patch_f - 1) * temporal + 1,
        }
        check_positions(size, largest)
        num_frames = latent_frames(size.num_frames, temporal)
        return (config.in_channels, num_frames, size.height // scale, size.width // scale)

    def call_arguments(
        self, pipeline: Pipeline, prompts: Conditioning, negative: Conditioning, setting: Setting
    ) -> Mapping[str, object]:
        """Embeddings of both branches, and the guidance of one network or of both."""
        return {
            "prompt_embeds": prompts["prompt_embeds"],
            "negative_prompt_embeds": negative["prompt_embeds"],
            **setting.guidance,
        }

    def images(self, result: torch.Tensor, size: Size) -> torch.Tensor:
        """The frames of each video, or the one."""
        return result[:, 0] if size.num_frames == 1 else result

    def predict(
        self,
        denoiser: Denoiser,
        noisy: torch.Tensor,
        timestep: torch.Tensor,
        conditioning: Conditioning,
        setting: Setting,
    ) -> torch.Tensor:
        """The conditional branch of `WanPipeline.__call__`."""
        prediction: torch.Tensor = denoiser(
            hidden_states=noisy,
            timestep=timestep,
            encoder_hidden_states=conditioning["prompt_embeds"],
            return_dict=False,
        )[0]
        return prediction


def _check_networks(pipeline: Pipeline) -> None:
    """Raise ValueError for a network that the stock call needs and has not, or feeds otherwise."""
    if pipeline.config.get("expand_timesteps"):
        raise ValueError(
            "the teacher has expand_timesteps, as Wan2.2-TI2V-5B: its network takes a timestep for "
            "each token, which this adapter does not give; let it be learnt from its own calls by "
            "teacher.trace: {unguided: {guidance_scale: 1.0}}"
        )
    boundary = pipeline.config.get("boundary_ratio")
    is_number = isinstance(boundary, int | float) and not isinstance(boundary, bool)
    if boundary is not None and not (is_number and 0 <= boundary <= 1):
        raise ValueError(f"boundary_ratio in model_index.json is {boundary}: use 0 to 1, or null")
    if boundary and pipeline.transformer_2 is None:
        raise ValueError(
            f"boundary_ratio in model_index.json is {boundary}, and the folder has no "
            "transformer_2 for the steps below it: add that network, or set boundary_ratio to null"
        )
