"""Sana: Gemma reads an instruction before each prompt; latents have a 32nd of the sides."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from distillery.families.masked import MaskedText, unmasked
from distillery.families.protocol import (
    Conditioning,
    Denoiser,
    Pipeline,
    Setting,
)
from distillery.families.text import Reader


class Sana(MaskedText):
    """Adapter of `SanaPipeline`; latents are (c, h, w).

    The stock call puts its `complex_human_instruction` before a prompt, but not before the negative
    prompt.
    """

    name = "sana"
    pipeline_classes = ("SanaPipeline",)
    is_flow = True
    text_components = ("tokenizer", "text_encoder")
    max_sequence_length = 300
    stock_multiple = 32
    starts_in_float32 = True
    time_embeddings = ("timestep_embedder", "time_embed.linear", "scale_shift_table")
    interface = (*MaskedText.interface, "caption_channels", "guidance_embeds")

    def readers(self, pipeline: Pipeline, max_sequence_length: int) -> Sequence[Reader]:
        """Gemma, which reads the instruction too."""
        tokenizer, text = pipeline.tokenizer, "\n".join(instruction(pipeline))
        # Two less, as the pipeline has it: one special token, and one that may join with the text.
        limit = len(tokenizer.encode(text)) + max_sequence_length - 2

        def clean(prompt: str) -> str:
            return text + str(pipeline._text_preprocessing(prompt, clean_caption=False)[0])

        return [Reader("tokenizer, with Sana's instruction,", tokenizer, limit, clean)]

    def encode(
        self, pipeline: Pipeline, prompts: Sequence[str], max_sequence_length: int
    ) -> list[Conditioning]:
        """Encode as the stock call does: after its instruction, of which it keeps the two ends."""
        return _encode(pipeline, prompts, max_sequence_length, instruction(pipeline))

    def encode_negative(
        self, pipeline: Pipeline, prompt: str | None, max_sequence_length: int
    ) -> Conditioning:
        """Encode without the instruction; no negative prompt is the empty one."""
        return _encode(pipeline, [prompt or ""], max_sequence_length, None)[0]

    def predict(
        self,
        denoiser: Denoiser,
        noisy: torch.Tensor,
        timestep: torch.Tensor,
        conditioning: Conditioning,
        setting: Setting,
    ) -> torch.Tensor:
        """The conditional branch of `SanaPipeline.__call__`."""
        config: Any = denoiser.config
        prediction: torch.Tensor = denoiser(
            noisy,
            encoder_hidden_states=conditioning["prompt_embeds"],
            encoder_attention_mask=conditioning["attention_mask"],
            timestep=timestep * config.timestep_scale,
            return_dict=False,
        )[0]
        return prediction[:, : noisy.shape[1]]


def instruction(pipeline: Pipeline) -> list[str]:
    """The lines that the stock call puts before a prompt by default."""
    default = inspect.signature(type(pipeline).__call__).parameters["complex_human_instruction"]
    return list(default.default)


@torch.no_grad()
def _encode(
    pipeline: Pipeline, prompts: Sequence[str], max_sequence_length: int, lines: list[str] | None
) -> list[Conditioning]:
    """Encode as `SanaPipeline.encode_prompt`, keep what the mask shows."""
    embeds_bld, mask_bl, _, _ = pipeline.encode_prompt(
        list(prompts),
        do_classifier_free_guidance=False,
        clean_caption=False,
        max_sequence_length=max_sequence_length,
        complex_human_instruction=lines,
    )
    return unmasked(embeds_bld, mask_bl)
