"""PixArt-Σ: T5 with an attention mask, and a network that predicts its own variance too."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from distillery.families.masked import masked_arguments, pad_and_mask, unmasked
from distillery.families.protocol import (
    Conditioning,
    Denoiser,
    Family,
    Pipeline,
    Setting,
)
from distillery.families.text import Reader, check_size

AS_ASKED: Mapping[str, object] = MappingProxyType(
    {"use_resolution_binning": False, "clean_caption": False}
)
"""The size that is asked for, not one of a list resized to it; the prompt as it is written, whether
or not the packages that rewrite it are installed. The pipeline's own defaults are the opposite."""


class PixArt(Family):
    """Adapter of `PixArtSigmaPipeline`; latents are (c, h, w)."""

    name = "pixart"
    pipeline_classes = ("PixArtSigmaPipeline",)
    text_components = ("tokenizer", "text_encoder")
    max_sequence_length = 300
    blocks: Mapping[str, str] = MappingProxyType({"transformer_blocks": "num_layers"})

    def call_options(self, max_sequence_length: int) -> Mapping[str, object]:
        """`AS_ASKED`, and how far prompts are padded."""
        return {**AS_ASKED, "max_sequence_length": max_sequence_length}

    def readers(self, pipeline: Pipeline, max_sequence_length: int) -> Sequence[Reader]:
        """T5, after the pipeline's own lower case."""

        def clean(prompt: str) -> str:
            return str(pipeline._text_preprocessing(prompt, clean_caption=False)[0])

        return [Reader("tokenizer", pipeline.tokenizer, max_sequence_length, clean)]

    @torch.no_grad()
    def encode(
        self, pipeline: Pipeline, prompts: Sequence[str], max_sequence_length: int
    ) -> list[Conditioning]:
        """Encode as `PixArtSigmaPipeline.encode_prompt`, keep what the mask shows."""
        embeds_bld, mask_bl, _, _ = pipeline.encode_prompt(
            list(prompts),
            do_classifier_free_guidance=False,
            clean_caption=False,
            max_sequence_length=max_sequence_length,
        )
        return unmasked(embeds_bld, mask_bl)

    def pad(self, prompts: Sequence[Conditioning], max_sequence_length: int) -> Conditioning:
        """Masked zeros up to `max_sequence_length`."""
        return pad_and_mask(prompts, max_sequence_length)

    def latent_shape(self, pipeline: Pipeline, height: int, width: int) -> tuple[int, ...]:
        """(c, height / factor, width / factor)."""
        config, factor = pipeline.transformer.config, pipeline.vae_scale_factor
        multiple = factor * config.patch_size
        check_size({"height": height, "width": width}, {"height": multiple, "width": multiple})
        return (config.in_channels, height // factor, width // factor)

    def call_arguments(
        self, pipeline: Pipeline, prompts: Conditioning, negative: Conditioning, setting: Setting
    ) -> Mapping[str, object]:
        """Embeddings and masks of both branches, guidance, and nothing changed on the way."""
        return {
            **masked_arguments(prompts, negative),
            "guidance_scale": setting.guidance_scale,
            **AS_ASKED,
        }

    def predict(
        self,
        denoiser: Denoiser,
        noisy: torch.Tensor,
        timestep: torch.Tensor,
        conditioning: Conditioning,
        setting: Setting,
    ) -> torch.Tensor:
        """The conditional branch of `PixArtSigmaPipeline.__call__`, without the learned variance.

        That is the second half of the channels (Nichol and Dhariwal 2021, arXiv:2102.09672, §3.1).
        """
        prediction: torch.Tensor = denoiser(
            noisy,
            encoder_hidden_states=conditioning["prompt_embeds"],
            encoder_attention_mask=conditioning["attention_mask"],
            timestep=timestep,
            added_cond_kwargs={"resolution": None, "aspect_ratio": None},
            return_dict=False,
        )[0]
        return prediction[:, : noisy.shape[1]]
