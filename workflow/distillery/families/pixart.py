"""PixArt-Σ: T5 with an attention mask, and a network that predicts its own variance too."""

from collections.abc import Sequence

import torch

from distillery.families.masked import MaskedText, unmasked
from distillery.families.protocol import (
    Conditioning,
    Denoiser,
    Pipeline,
    Setting,
)
from distillery.families.text import Reader


class PixArt(MaskedText):
    """Adapter of `PixArtSigmaPipeline`; latents are (c, h, w)."""

    name = "pixart"
    pipeline_classes = ("PixArtSigmaPipeline",)
    text_components = ("tokenizer", "text_encoder")
    max_sequence_length = 300
    stock_multiple = 8
    time_embeddings = ("timestep_embedder", "adaln_single.linear", "scale_shift_table")
    interface = (*MaskedText.interface, "caption_channels", "use_additional_conditions")

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
