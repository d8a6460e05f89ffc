"""Tiny pipelines that make videos, one function a class."""

from typing import Any

import diffusers

from families.clip import FEATURES as CLIP_FEATURES
from families.clip import tiny_clip, tiny_clip_tokenizer
from families.qwen import FEATURES
from families.sana import FEATURES as GEMMA_FEATURES
from families.sd15 import tiny_unet
from families.sdxl import tiny_kl
from families.t5 import tiny_t5, tiny_t5_tokenizer
from tiny import (
    TEXT_FEATURES,
    tiny_scheduler,
    tiny_text_encoder,
    tiny_tokenizer,
    tiny_transformer,
    tiny_vae,
)
from traced.images import HEADS, ROPE, kandinsky5_text, tiny_kandinsky5
from traced.parts import CHANNELS, awake, flow, gemma, long_clip, reader, t5
from traced.unets import parts


def _umt5() -> dict[str, Any]:
    tokenizer = tiny_tokenizer()
    return {"tokenizer": tokenizer, "text_encoder": tiny_text_encoder(len(tokenizer))}


def _wan(**options: Any) -> Any:
    return diffusers.WanPipeline(
        scheduler=tiny_scheduler(), vae=None, transformer=tiny_transformer(), **_umt5(), **options
    )


def wan() -> Any:
    return _wan()


def wan_expanded() -> Any:
    """Wan2.2-TI2V-5B, which has a time of each token."""
    return _wan(expand_timesteps=True)


def _skyreels(kind: Any) -> Any:
    transformer = diffusers.SkyReelsV2Transformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        text_dim=TEXT_FEATURES,
        freq_dim=16,
        ffn_dim=32,
        num_layers=1,
        rope_max_seq_len=32,
    )
    return kind(scheduler=tiny_scheduler(), vae=None, transformer=awake(transformer), **_umt5())


def skyreels_v2() -> Any:
    return _skyreels(diffusers.SkyReelsV2Pipeline)


def skyreels_v2_forcing() -> Any:
    return _skyreels(diffusers.SkyReelsV2DiffusionForcingPipeline)


def hunyuan_video() -> Any:
    transformer = diffusers.HunyuanVideoTransformer3DModel(
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        text_embed_dim=FEATURES,
        pooled_projection_dim=CLIP_FEATURES,
        rope_axes_dim=ROPE,
        **HEADS,
    )
    return diffusers.HunyuanVideoPipeline(
        scheduler=flow(),
        vae=None,
        transformer=awake(transformer),
        **reader(),
        **long_clip(),
    )


def hunyuan_video15() -> Any:
    transformer = diffusers.HunyuanVideo15Transformer3DModel(
        in_channels=2 * CHANNELS + 1,
        out_channels=CHANNELS,
        num_layers=1,
        num_refiner_layers=1,
        text_embed_dim=FEATURES,
        text_embed_2_dim=TEXT_FEATURES,
        image_embed_dim=8,
        rope_axes_dim=ROPE,
        target_size=64,
        task_type="t2v",
        **HEADS,
    )
    pipeline = diffusers.HunyuanVideo15Pipeline(
        scheduler=flow(),
        vae=diffusers.AutoencoderKLHunyuanVideo15(
            latent_channels=CHANNELS,
            block_out_channels=(8, 8, 8, 8),
            layers_per_block=1,
            spatial_compression_ratio=8,
            temporal_compression_ratio=4,
        ),
        transformer=awake(transformer),
        tokenizer_2=tiny_t5_tokenizer(),
        text_encoder_2=tiny_t5(),
        guider=diffusers.ClassifierFreeGuidance(guidance_scale=1.0),
        **reader(),
    )
    pipeline.system_message, pipeline.prompt_template_encode_start_idx = "the image", 8
    pipeline.tokenizer_max_length = 64
    pipeline.tokenizer_2_max_length = 16
    pipeline.vision_num_semantic_tokens = 4
    return pipeline


def kandinsky5() -> Any:
    return diffusers.Kandinsky5T2VPipeline(
        scheduler=flow(), vae=None, transformer=tiny_kandinsky5(), **kandinsky5_text()
    )


def ltx() -> Any:
    return _ltx(diffusers.LTXPipeline)


def ltx_condition() -> Any:
    return _ltx(diffusers.LTXConditionPipeline, ltx_vae())


def ltx_vae() -> Any:
    return diffusers.AutoencoderKLLTXVideo(
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
    )


def _ltx(kind: Any, vae: Any = None) -> Any:
    transformer = diffusers.LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        cross_attention_dim=32,
        num_layers=1,
        caption_channels=TEXT_FEATURES,
        **HEADS,
    )
    return kind(
        scheduler=flow(use_dynamic_shifting=vae is None),
        vae=vae,
        transformer=awake(transformer),
        **t5(),
    )


def cogvideox() -> Any:
    transformer = diffusers.CogVideoXTransformer3DModel(
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        time_embed_dim=8,
        text_embed_dim=TEXT_FEATURES,
        num_layers=1,
        sample_width=4,
        sample_height=8,
        sample_frames=9,
        max_text_seq_length=16,
        **HEADS,
    )
    scheduler = diffusers.CogVideoXDDIMScheduler(
        prediction_type="v_prediction", timestep_spacing="trailing", rescale_betas_zero_snr=True
    )
    return diffusers.CogVideoXPipeline(
        scheduler=scheduler, vae=None, transformer=awake(transformer), **t5()
    )


def mochi() -> Any:
    transformer = diffusers.MochiTransformer3DModel(
        num_layers=2,
        pooled_projection_dim=16,
        in_channels=12,
        text_embed_dim=TEXT_FEATURES,
        time_embed_dim=8,
        max_sequence_length=16,
        **HEADS,
    )
    return diffusers.MochiPipeline(
        scheduler=flow(), vae=None, transformer=awake(transformer), **t5()
    )


def allegro() -> Any:
    transformer = diffusers.AllegroTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        num_layers=1,
        cross_attention_dim=24,
        sample_height=8,
        sample_width=4,
        sample_frames=3,
        caption_channels=TEXT_FEATURES,
    )
    return diffusers.AllegroPipeline(
        scheduler=diffusers.EulerDiscreteScheduler(),
        vae=None,
        transformer=awake(transformer),
        **t5(),
    )


def _magvit() -> Any:
    """Of which the call reads how many channels it has."""
    return diffusers.AutoencoderKLMagvit(
        latent_channels=CHANNELS,
        block_out_channels=[8, 8, 8, 8],
        layers_per_block=1,
        norm_num_groups=4,
    )


def easy_animate() -> Any:
    transformer = diffusers.EasyAnimateTransformer3DModel(
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        patch_size=2,
        sample_width=4,
        sample_height=8,
        num_layers=1,
        mmdit_layers=1,
        time_embed_dim=8,
        text_embed_dim=FEATURES,
        **HEADS,
    )
    return diffusers.EasyAnimatePipeline(
        scheduler=flow(), vae=_magvit(), transformer=awake(transformer), **reader()
    )


def sana_video() -> Any:
    transformer = diffusers.SanaVideoTransformer3DModel(
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        num_attention_heads=2,
        attention_head_dim=12,
        num_layers=1,
        num_cross_attention_heads=2,
        cross_attention_head_dim=12,
        cross_attention_dim=24,
        caption_channels=GEMMA_FEATURES,
        sample_size=8,
    )
    return diffusers.SanaVideoPipeline(
        scheduler=tiny_scheduler(), vae=None, transformer=awake(transformer), **gemma()
    )


def latte() -> Any:
    transformer = diffusers.LatteTransformer3DModel(
        in_channels=CHANNELS,
        out_channels=2 * CHANNELS,
        cross_attention_dim=32,
        attention_bias=True,
        sample_size=8,
        patch_size=2,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_single",
        norm_elementwise_affine=False,
        caption_channels=TEXT_FEATURES,
        video_length=2,
        **HEADS,
    )
    return diffusers.LattePipeline(
        scheduler=_ddim(), vae=None, transformer=awake(transformer), **t5()
    )


def animate_diff() -> Any:
    return _animated(diffusers.AnimateDiffPipeline)


def animate_diff_pag() -> Any:
    return _animated(diffusers.AnimateDiffPAGPipeline)


def _animated(kind: Any) -> Any:
    return kind(
        scheduler=_ddim(),
        vae=tiny_kl(),
        tokenizer=tiny_clip_tokenizer(),
        text_encoder=tiny_clip(),
        unet=tiny_unet(attention_head_dim=2),
        motion_adapter=_motion(),
    )


def animate_diff_xl() -> Any:
    components = parts("sdxl") | {"scheduler": _ddim()}
    return diffusers.AnimateDiffSDXLPipeline(**components, motion_adapter=_motion())


def _motion() -> Any:
    adapter = diffusers.MotionAdapter(
        block_out_channels=(16, 32),
        motion_layers_per_block=1,
        motion_num_attention_heads=2,
        motion_norm_num_groups=8,
    )
    return awake(adapter)


def _ddim() -> Any:
    return diffusers.DDIMScheduler(timestep_spacing="trailing", clip_sample=False)


def motif_video() -> Any:
    transformer = diffusers.MotifVideoTransformer3DModel(
        in_channels=2 * CHANNELS + 1,
        out_channels=CHANNELS,
        num_layers=1,
        num_single_layers=1,
        text_embed_dim=TEXT_FEATURES,
        rope_axes_dim=ROPE,
        **HEADS,
    )
    return diffusers.MotifVideoPipeline(
        scheduler=flow(),
        vae=tiny_vae(),
        transformer=awake(transformer),
        guider=diffusers.ClassifierFreeGuidance(guidance_scale=1.0),
        **t5(),
    )


def anyflow() -> Any:
    transformer = diffusers.AnyFlowTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        text_dim=TEXT_FEATURES,
        freq_dim=16,
        ffn_dim=32,
        num_layers=1,
        rope_max_seq_len=32,
    )
    return diffusers.AnyFlowPipeline(
        scheduler=diffusers.FlowMapEulerDiscreteScheduler(),
        vae=None,
        transformer=awake(transformer),
        **_umt5(),
    )
