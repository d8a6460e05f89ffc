"""SDXL: two CLIP encoders, a pooled vector, and the image's size as an input of the UNet."""

from collections.abc import Sequence

import torch

from distillery.families.pooled import PooledText, with_pooled
from distillery.families.protocol import (
    Conditioning,
    Denoiser,
    Pipeline,
    Setting,
)
from distillery.families.sd import ClipUnet


class Sdxl(PooledText, ClipUnet):
    """Adapter of `StableDiffusionXLPipeline`."""

    name = "sdxl"
    pipeline_classes = ("StableDiffusionXLPipeline",)
    interface = (
        "in_channels",
        "out_channels",
        "cross_attention_dim",
        "addition_embed_type",
        "addition_time_embed_dim",
        "projection_class_embeddings_input_dim",
    )
    text_components = (
        "tokenizer",
        "tokenizer_2",
        "text_encoder",
        "text_encoder_2",
    )
    may_lack = ("tokenizer", "text_encoder")

    @torch.no_grad()
    def encode(
        self, pipeline: Pipeline, prompts: Sequence[str], max_sequence_length: int
    ) -> list[Conditioning]:
        """Encode as `StableDiffusionXLPipeline.encode_prompt`; CLIP sees its padding."""
        embeds_bld, _, pooled_bd, _ = pipeline.encode_prompt(
            list(prompts), do_classifier_free_guidance=False
        )
        return with_pooled(embeds_bld, pooled_bd)

    def encode_no_negative(self, pipeline: Pipeline, max_sequence_length: int) -> Conditioning:
        """Zeros where the pipeline says so, as SDXL is released, else the empty prompt."""
        empty = self.encode(pipeline, [""], max_sequence_length)[0]
        if pipeline.config.force_zeros_for_empty_prompt:
            return {name: torch.zeros_like(value) for name, value in empty.items()}
        return empty

    def predict(
        self,
        denoiser: Denoiser,
        noisy: torch.Tensor,
        timestep: torch.Tensor,
        conditioning: Conditioning,
        setting: Setting,
    ) -> torch.Tensor:
        """The conditional branch of `StableDiffusionXLPipeline.__call__`."""
        size = (setting.size.height, setting.size.width)
        embeds = conditioning["prompt_embeds"]
        # Original size, upper left corner, target size: those of the stock call.
        time_ids = torch.tensor([[*size, 0, 0, *size]], dtype=embeds.dtype)
        time_ids = time_ids.to(noisy.device, non_blocking=True)  # else the host waits for the GPU
        prediction: torch.Tensor = denoiser(
            noisy,
            timestep,
            encoder_hidden_states=embeds,
            added_cond_kwargs={
                "text_embeds": conditioning["pooled"],
                "time_ids": time_ids.repeat(len(noisy), 1),
            },
            return_dict=False,
        )[0]
        return prediction
