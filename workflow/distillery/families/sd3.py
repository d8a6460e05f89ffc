"""SD3 and SD3.5: two CLIP encoders and T5 side by side, and a pooled vector; no mask."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from distillery.families.image_tokens import image_shift
from distillery.families.pooled import PooledText, with_pooled
from distillery.families.protocol import (
    Conditioning,
    Denoiser,
    Pipeline,
    Setting,
)
from distillery.families.size import Size, check_positions, check_size
from distillery.families.text import Reader
from distillery.schedulers import Scheduler

CLIP_TOKENS = 77
PATCH = 2
"""Rows and columns of latents in one token, of every released SD3."""


class Sd3(PooledText):
    """Adapter of `StableDiffusion3Pipeline`; latents are (c, h, w).

    T5 may be absent: the stock pipeline then feeds zeros in its place. Diffusers itself loads such
    a pipeline only with `text_encoder_3=None, tokenizer_3=None`.
    """

    name = "sd3"
    pipeline_classes = ("StableDiffusion3Pipeline",)
    is_flow = True
    text_components = (
        "tokenizer",
        "tokenizer_2",
        "tokenizer_3",
        "text_encoder",
        "text_encoder_2",
        "text_encoder_3",
    )
    may_lack = ("tokenizer_3", "text_encoder_3")
    max_sequence_length = 256
    longest_sequence = 512
    time_embeddings = (
        "timestep_embedder",
        "norm1.linear.bias",
        "norm1_context.linear.bias",
        "norm_out.linear.bias",
    )
    interface = (*PooledText.interface, "joint_attention_dim", "pooled_projection_dim")
    casts_latents = False

    def call_options(self, max_sequence_length: int) -> Mapping[str, object]:
        """How far T5's prompts are padded."""
        return {"max_sequence_length": max_sequence_length}

    def readers(self, pipeline: Pipeline, max_sequence_length: int) -> Sequence[Reader]:
        """T5, which reads on where the CLIP encoders stop; without T5, the CLIP encoders."""
        if pipeline.tokenizer_3 is not None:
            return [Reader("tokenizer_3", pipeline.tokenizer_3, max_sequence_length)]
        limit = pipeline.tokenizer_max_length
        names = self.text_components[:2]
        return [Reader(name, getattr(pipeline, name), limit) for name in names]

    def stored_tokens(self, max_sequence_length: int) -> int | None:
        """The padding of CLIP and of T5 is stored."""
        return CLIP_TOKENS + max_sequence_length

    @torch.no_grad()
    def encode(
        self, pipeline: Pipeline, prompts: Sequence[str], max_sequence_length: int
    ) -> list[Conditioning]:
        """Encode as `StableDiffusion3Pipeline.encode_prompt`; all positions count, padding too."""
        if pipeline.text_encoder_3 is None:
            _tell_width(pipeline)
        embeds_bld, _, pooled_bd, _ = pipeline.encode_prompt(
            list(prompts),
            prompt_2=None,
            prompt_3=None,
            device=pipeline.text_encoder.device,
            do_classifier_free_guidance=False,
            max_sequence_length=max_sequence_length,
        )
        return with_pooled(embeds_bld, pooled_bd)

    def latent_shape(self, pipeline: Pipeline, size: Size) -> tuple[int, ...]:
        """(c, height / factor, width / factor)."""
        config, factor = pipeline.transformer.config, pipeline.vae_scale_factor
        if config.patch_size != PATCH:
            raise ValueError(
                f"the teacher's transformer has patch_size {config.patch_size}: an SD3 has {PATCH}"
            )
        multiple = factor * PATCH
        check_size(size, multiple)
        largest = config.pos_embed_max_size * multiple
        check_positions(size, {"height": largest, "width": largest})
        return (config.in_channels, size.height // factor, size.width // factor)

    def set_timesteps(
        self, scheduler: Scheduler, steps: int, latent_shape: tuple[int, ...]
    ) -> None:
        """With the shift of the image's size where the scheduler has `use_dynamic_shifting`."""
        if not scheduler.config.get("use_dynamic_shifting"):
            scheduler.set_timesteps(steps)
            return
        _, height, width = latent_shape
        mu = image_shift(scheduler, (height // PATCH) * (width // PATCH))
        scheduler.set_timesteps(steps, mu=mu)

    def kept_config(
        self, denoiser_config: Mapping[str, Any], layers: Sequence[int]
    ) -> Mapping[str, object]:
        """SD3.5 Medium counts the blocks that attend twice; the last block has no text branch."""
        last = denoiser_config["num_layers"] - 1
        if last not in layers:
            raise ValueError(
                f"student.layers is {list(layers)}: an SD3's last block, {last}, is of a kind of "
                "its own and must be kept"
            )
        dual = denoiser_config.get("dual_attention_layers", ())
        kept = [place for place, layer in enumerate(layers) if layer in dual]
        return {"dual_attention_layers": kept}

    def predict(
        self,
        denoiser: Denoiser,
        noisy: torch.Tensor,
        timestep: torch.Tensor,
        conditioning: Conditioning,
        setting: Setting,
    ) -> torch.Tensor:
        """The conditional branch of `StableDiffusion3Pipeline.__call__`."""
        prediction: torch.Tensor = denoiser(
            hidden_states=noisy,
            timestep=timestep,
            encoder_hidden_states=conditioning["prompt_embeds"],
            pooled_projections=conditioning["pooled"],
            return_dict=False,
        )[0]
        return prediction


def _tell_width(pipeline: Pipeline) -> None:
    """Give a pipeline that was loaded without its transformer one without weights.

    Without T5 the pipeline asks the transformer's configuration how wide the zeros are.
    """
    from diffusers import SD3Transformer2DModel

    if pipeline.transformer is None:
        folder = pipeline.config._name_or_path
        config = SD3Transformer2DModel.load_config(folder, subfolder="transformer")
        with torch.device("meta"):
            pipeline.transformer = SD3Transformer2DModel.from_config(config)
