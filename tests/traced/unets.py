"""Tiny pipelines with a U-Net, or with the parts of a family's pipeline."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import diffusers
import sentencepiece
import torch
from diffusers.pipelines.kolors.text_encoder import ChatGLMConfig, ChatGLMModel
from diffusers.pipelines.kolors.tokenizer import ChatGLMTokenizer
from diffusers.pipelines.latent_diffusion.pipeline_latent_diffusion import (
    LDMBertConfig,
    LDMBertModel,
)

from families.clip import FEATURES as CLIP_FEATURES
from families.clip import tiny_clip_tokenizer
from families.qwen import FEATURES
from families.sd15 import tiny_unet
from families.sdxl import tiny_kl
from tiny import TEXT_FEATURES, WORDS
from traced.parts import awake, t5


def stock(name: str) -> Callable[[], Any]:
    """Makes the tiny teacher of a family, tests/families/{name}.py, and loads it."""

    def make() -> Any:
        case = import_module(f"families.{name}").CASE
        with TemporaryDirectory() as folder:
            case.make(Path(folder))
            return diffusers.DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32)

    return make


def parts(name: str) -> dict[str, Any]:
    """The components of a family's tiny teacher."""
    found: dict[str, Any] = stock(name)().components
    return found


def _sd15() -> dict[str, Any]:
    scheduler = diffusers.DDIMScheduler(timestep_spacing="trailing", clip_sample=False)
    return parts("sd15") | {"scheduler": scheduler}


def sd_pag() -> Any:
    return diffusers.StableDiffusionPAGPipeline(**_sd15())


def sdxl_pag() -> Any:
    return diffusers.StableDiffusionXLPAGPipeline(**parts("sdxl"))


def sd3_pag() -> Any:
    components = parts("sd3")
    del components["image_encoder"], components["feature_extractor"]
    return diffusers.StableDiffusion3PAGPipeline(**components, pag_applied_layers="blocks.1")


def deepfloyd_if() -> Any:
    unet = diffusers.UNet2DConditionModel(
        sample_size=16,
        in_channels=3,
        out_channels=6,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "SimpleCrossAttnDownBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        up_block_types=("SimpleCrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
        cross_attention_dim=16,
        encoder_hid_dim=TEXT_FEATURES,
        encoder_hid_dim_type="text_proj",
        addition_embed_type="text",
        addition_embed_type_num_heads=2,
    )
    return diffusers.IFPipeline(
        scheduler=diffusers.DDPMScheduler(variance_type="learned_range"),
        unet=awake(unet),
        safety_checker=None,
        feature_extractor=None,
        watermarker=None,
        requires_safety_checker=False,
        **t5(),
    )


def kandinsky3() -> Any:
    unet = diffusers.Kandinsky3UNet(
        time_embedding_dim=16,
        groups=4,
        attention_head_dim=8,
        layers_per_block=3,
        block_out_channels=(8, 16, 32, 64),
        cross_attention_dim=16,
        encoder_hid_dim=TEXT_FEATURES,
    )
    return diffusers.Kandinsky3Pipeline(
        scheduler=diffusers.DDIMScheduler(timestep_spacing="trailing", clip_sample=False),
        unet=awake(unet),
        movq=tiny_kl(),
        **t5(),
    )


def latent_consistency() -> Any:
    unet = tiny_unet(attention_head_dim=2, time_cond_proj_dim=8)
    changed = {"scheduler": diffusers.LCMScheduler(), "unet": unet}
    return diffusers.LatentConsistencyModelPipeline(**(parts("sd15") | changed))


def latent_diffusion() -> Any:
    bert = LDMBertModel(
        LDMBertConfig(
            vocab_size=64,
            encoder_layers=1,
            encoder_ffn_dim=16,
            encoder_attention_heads=2,
            head_dim=8,
            d_model=CLIP_FEATURES,
        )
    )
    return diffusers.LDMTextToImagePipeline(
        scheduler=diffusers.DDIMScheduler(clip_sample=False),
        vqvae=tiny_kl(),
        bert=bert.eval(),
        tokenizer=tiny_clip_tokenizer(),
        unet=tiny_unet(attention_head_dim=2),
    )


def kolors() -> Any:
    return _kolors(diffusers.KolorsPipeline)


def kolors_pag() -> Any:
    return _kolors(diffusers.KolorsPAGPipeline)


def _kolors(kind: Any) -> Any:
    unet = diffusers.UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=6 * 8 + FEATURES,
        cross_attention_dim=16,
        encoder_hid_dim=FEATURES,
        encoder_hid_dim_type="text_proj",
    )
    glm = ChatGLMConfig(
        num_layers=2,
        padded_vocab_size=128,
        hidden_size=FEATURES,
        ffn_hidden_size=16,
        kv_channels=8,
        num_attention_heads=2,
        seq_length=32,
        multi_query_attention=True,
        multi_query_group_num=1,
        add_qkv_bias=True,
        rmsnorm=True,
        original_rope=True,
    )
    text_encoder = ChatGLMModel(glm)
    for weight in text_encoder.parameters():  # which are not initialised
        torch.nn.init.normal_(weight, std=0.3)
    return kind(
        scheduler=diffusers.EulerDiscreteScheduler(beta_schedule="scaled_linear"),
        vae=tiny_kl(),
        unet=awake(unet),
        tokenizer=_glm_tokenizer(),
        text_encoder=text_encoder.eval(),
    )


@cache
def _folder() -> TemporaryDirectory[str]:
    """While this process runs: a tokenizer is saved as its file is."""
    return TemporaryDirectory()


def _glm_tokenizer() -> ChatGLMTokenizer:
    """Of letters."""
    folder = Path(_folder().name)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(WORDS)] * 4),
        model_prefix=str(folder / "glm"),
        model_type="char",
        vocab_size=24,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return ChatGLMTokenizer(str(folder / "glm.model"))
