"""Tiny pipelines that make images, one function a class; none has a VAE that it can do without."""

from typing import Any

import diffusers
from transformers import BertConfig, BertModel, BertTokenizer

from families.clip import FEATURES as CLIP_FEATURES
from families.clip import tiny_clip, tiny_clip_tokenizer
from families.qwen import FEATURES, tiny_qwen
from families.sana import FEATURES as GEMMA_FEATURES
from families.sdxl import tiny_kl
from families.t5 import tiny_t5, tiny_t5_tokenizer
from tiny import TEXT_FEATURES, WORDS
from traced.parts import (
    CHANNELS,
    Processor,
    awake,
    chat_tokenizer,
    flow,
    gemma,
    long_clip,
    reader,
    t5,
)

HEADS: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 16}
ROPE = (4, 4, 8)
"""Of one head: an index, rows, columns."""


def z_image() -> Any:
    return diffusers.ZImagePipeline(scheduler=flow(), vae=None, transformer=_z_image(), **reader())


def z_image_omni() -> Any:
    return diffusers.ZImageOmniPipeline(
        scheduler=flow(),
        vae=None,
        transformer=_z_image(siglip_feat_dim=8),
        siglip=None,
        siglip_processor=None,
        **reader(),
    )


def _z_image(**options: Any) -> Any:
    transformer = diffusers.ZImageTransformer2DModel(
        in_channels=CHANNELS,
        dim=32,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=FEATURES,
        axes_dims=[4, 6, 6],
        axes_lens=[512, 64, 64],
        **options,
    )
    return awake(transformer)


def _flux2(**options: Any) -> Any:
    return awake(
        diffusers.Flux2Transformer2DModel(
            in_channels=4 * CHANNELS,
            num_layers=1,
            num_single_layers=1,
            joint_attention_dim=3 * FEATURES,
            timestep_guidance_channels=32,
            axes_dims_rope=(4, 4, 4, 4),
            **HEADS,
            **options,
        )
    )


def flux2_vae() -> Any:
    """Of which the call reads statistics."""
    return diffusers.AutoencoderKLFlux2(
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        latent_channels=CHANNELS,
        norm_num_groups=4,
    )


def flux2() -> Any:
    return diffusers.Flux2Pipeline(
        scheduler=flow(use_dynamic_shifting=True), vae=None, transformer=_flux2(), **reader(31)
    )


def flux2_klein() -> Any:
    return diffusers.Flux2KleinPipeline(
        scheduler=flow(use_dynamic_shifting=True),
        vae=flux2_vae(),
        transformer=_flux2(guidance_embeds=False),
        **reader(28),
    )


def flux2_klein_kv() -> Any:
    return diffusers.Flux2KleinKVPipeline(
        scheduler=flow(use_dynamic_shifting=True),
        vae=flux2_vae(),
        transformer=_flux2(guidance_embeds=False),
        **reader(28),
    )


def chroma() -> Any:
    transformer = diffusers.ChromaTransformer2DModel(
        in_channels=4 * CHANNELS,
        num_layers=1,
        num_single_layers=1,
        joint_attention_dim=TEXT_FEATURES,
        axes_dims_rope=ROPE,
        approximator_num_channels=8,
        approximator_hidden_dim=16,
        approximator_layers=1,
        **HEADS,
    )
    return diffusers.ChromaPipeline(
        scheduler=flow(use_dynamic_shifting=True), vae=None, transformer=awake(transformer), **t5()
    )


def lumina2() -> Any:
    transformer = diffusers.Lumina2Transformer2DModel(
        sample_size=8,
        in_channels=CHANNELS,
        hidden_size=24,
        num_layers=1,
        num_refiner_layers=1,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=16,
        axes_dim_rope=(4, 4, 4),
        axes_lens=(400, 16, 16),
        cap_feat_dim=GEMMA_FEATURES,
    )
    return diffusers.Lumina2Pipeline(
        scheduler=flow(), vae=None, transformer=awake(transformer), **gemma()
    )


def lumina() -> Any:
    transformer = diffusers.LuminaNextDiT2DModel(
        sample_size=8,
        in_channels=CHANNELS,
        hidden_size=24,
        num_layers=1,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=16,
        cross_attention_dim=GEMMA_FEATURES,
    )
    return diffusers.LuminaPipeline(
        scheduler=flow(), vae=None, transformer=awake(transformer), **gemma()
    )


def krea2() -> Any:
    transformer = diffusers.Krea2Transformer2DModel(
        in_channels=4 * CHANNELS,
        num_layers=1,
        num_key_value_heads=1,
        intermediate_size=32,
        timestep_embed_dim=16,
        text_hidden_dim=FEATURES,
        num_text_layers=2,
        text_num_attention_heads=2,
        text_num_key_value_heads=2,
        text_intermediate_size=32,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
        axes_dims_rope=ROPE,
        **HEADS,
    )
    return diffusers.Krea2Pipeline(
        scheduler=flow(use_dynamic_shifting=True),
        vae=None,
        transformer=awake(transformer),
        text_encoder_select_layers=(1, 3),
        **reader(see=True),
    )


def longcat_image() -> Any:
    transformer = diffusers.LongCatImageTransformer2DModel(
        in_channels=64,
        num_layers=1,
        num_single_layers=1,
        joint_attention_dim=FEATURES,
        pooled_projection_dim=FEATURES,
        axes_dims_rope=list(ROPE),
        **HEADS,
    )
    pipeline = diffusers.LongCatImagePipeline(
        scheduler=flow(use_dynamic_shifting=True),
        vae=None,
        transformer=awake(transformer),
        text_processor=None,
        **reader(),
    )
    pipeline.tokenizer_max_length = 64
    return pipeline


def bria() -> Any:
    transformer = diffusers.BriaTransformer2DModel(
        in_channels=4 * CHANNELS,
        num_layers=1,
        num_single_layers=1,
        joint_attention_dim=TEXT_FEATURES,
        axes_dims_rope=list(ROPE),
        **HEADS,
    )
    return diffusers.BriaPipeline(
        scheduler=flow(use_dynamic_shifting=True),
        vae=tiny_kl(),
        transformer=awake(transformer),
        **t5(),
    )


def bria_fibo() -> Any:
    transformer = diffusers.BriaFiboTransformer2DModel(
        in_channels=CHANNELS,
        num_layers=1,
        num_single_layers=1,
        joint_attention_dim=2 * FEATURES,
        text_encoder_dim=FEATURES,
        axes_dims_rope=list(ROPE),
        **HEADS,
    )
    return diffusers.BriaFiboPipeline(
        scheduler=flow(use_dynamic_shifting=True),
        vae=None,
        transformer=awake(transformer),
        **reader(),
    )


def bria_fibo2() -> Any:
    transformer = diffusers.BriaFibo2Transformer2DModel(
        in_channels=CHANNELS,
        dim=32,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        cap_feat_dim=2 * FEATURES,
        injection_layer_ids=(1,),
        perceiver_num_layers=1,
        min_num_gist_tokens=4,
        max_num_gist_tokens=8,
        gist_step=4,
        gist_min_text_len=8,
        gist_max_text_len=32,
        axes_dims=ROPE,
        axes_lens=(512, 16, 16),
    )
    pipeline = diffusers.BriaFibo2Pipeline(
        scheduler=flow(use_dynamic_shifting=True),
        vae=flux2_vae(),
        transformer=awake(transformer),
        text_encoder=reader()["text_encoder"],
        processor=Processor(),
    )
    pipeline.text_encoder_out_layers = ((1, 2), (2, 3))
    return pipeline


def cogview3plus() -> Any:
    transformer = diffusers.CogView3PlusTransformer2DModel(
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        num_layers=1,
        text_embed_dim=TEXT_FEATURES,
        time_embed_dim=16,
        condition_dim=8,
        pos_embed_max_size=16,
        sample_size=8,
        **HEADS,
    )
    scheduler = diffusers.CogVideoXDDIMScheduler(
        prediction_type="v_prediction", timestep_spacing="trailing", rescale_betas_zero_snr=True
    )
    return diffusers.CogView3PlusPipeline(
        scheduler=scheduler, vae=None, transformer=awake(transformer), **t5()
    )


def cogview4() -> Any:
    transformer = diffusers.CogView4Transformer2DModel(
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        num_layers=1,
        text_embed_dim=FEATURES,
        time_embed_dim=16,
        condition_dim=8,
        pos_embed_max_size=16,
        sample_size=8,
        rope_axes_dim=(16, 16),
        **HEADS,
    )
    return diffusers.CogView4Pipeline(
        scheduler=flow(use_dynamic_shifting=True, base_shift=0.25, max_shift=0.75),
        vae=None,
        transformer=awake(transformer),
        **reader(),
    )


def auraflow() -> Any:
    transformer = diffusers.AuraFlowTransformer2DModel(
        sample_size=8,
        in_channels=CHANNELS,
        num_mmdit_layers=1,
        num_single_dit_layers=1,
        joint_attention_dim=TEXT_FEATURES,
        caption_projection_dim=32,
        pos_embed_max_size=64,
        **HEADS,
    )
    return diffusers.AuraFlowPipeline(
        scheduler=flow(), vae=None, transformer=awake(transformer), **t5()
    )


def _hunyuan_dit(kind: Any) -> Any:
    words = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    bert = BertConfig(
        vocab_size=len(words),
        hidden_size=FEATURES,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=77,
    )
    transformer = diffusers.HunyuanDiT2DModel(
        in_channels=CHANNELS,
        patch_size=2,
        sample_size=8,
        hidden_size=32,
        num_layers=2,
        mlp_ratio=1.0,
        cross_attention_dim=FEATURES,
        cross_attention_dim_t5=TEXT_FEATURES,
        pooled_projection_dim=8,
        text_len=77,
        text_len_t5=256,
        **HEADS,
    )
    return kind(
        scheduler=diffusers.DDIMScheduler(prediction_type="v_prediction", clip_sample=False),
        vae=None,
        transformer=awake(transformer),
        tokenizer=BertTokenizer(vocab=words),
        text_encoder=BertModel(bert).eval(),
        tokenizer_2=tiny_t5_tokenizer(),
        text_encoder_2=tiny_t5(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def hunyuan_dit() -> Any:
    return _hunyuan_dit(diffusers.HunyuanDiTPipeline)


def hunyuan_dit_pag() -> Any:
    return _hunyuan_dit(diffusers.HunyuanDiTPAGPipeline)


def hunyuan_image() -> Any:
    transformer = diffusers.HunyuanImageTransformer2DModel(
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        patch_size=(1, 1),
        text_embed_dim=FEATURES,
        text_embed_2_dim=TEXT_FEATURES,
        rope_axes_dim=(8, 8),
        **HEADS,
    )
    pipeline = diffusers.HunyuanImagePipeline(
        scheduler=flow(),
        vae=None,
        transformer=awake(transformer),
        tokenizer_2=tiny_t5_tokenizer(),
        text_encoder_2=tiny_t5(),
        guider=diffusers.ClassifierFreeGuidance(guidance_scale=1.0),
        **reader(),
    )
    pipeline.tokenizer_max_length = 64
    return pipeline


def hidream() -> Any:
    transformer = diffusers.HiDreamImageTransformer2DModel(
        patch_size=2,
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        num_layers=1,
        num_single_layers=1,
        caption_channels=[TEXT_FEATURES, FEATURES],
        text_emb_dim=2 * CLIP_FEATURES,
        num_routed_experts=2,
        num_activated_experts=1,
        axes_dims_rope=ROPE,
        max_resolution=(16, 16),
        llama_layers=[0, 1],
        **HEADS,
    )
    llama = reader(2)
    pipeline = diffusers.HiDreamImagePipeline(
        scheduler=flow(),
        vae=None,
        transformer=awake(transformer),
        tokenizer=tiny_clip_tokenizer(),
        text_encoder=tiny_clip(with_projection=True),
        tokenizer_2=tiny_clip_tokenizer(),
        text_encoder_2=tiny_clip(with_projection=True),
        tokenizer_3=tiny_t5_tokenizer(),
        text_encoder_3=tiny_t5(),
        tokenizer_4=llama["tokenizer"],
        text_encoder_4=llama["text_encoder"],
    )
    pipeline.default_sample_size = 8
    return pipeline


def kandinsky5() -> Any:
    pipeline = diffusers.Kandinsky5T2IPipeline(
        scheduler=flow(), vae=None, transformer=tiny_kandinsky5(), **kandinsky5_text()
    )
    pipeline.resolutions = [(32, 64)]
    return pipeline


def tiny_kandinsky5() -> Any:
    return awake(
        diffusers.Kandinsky5Transformer3DModel(
            in_visual_dim=CHANNELS,
            out_visual_dim=CHANNELS,
            in_text_dim=FEATURES,
            in_text_dim2=CLIP_FEATURES,
            time_dim=16,
            model_dim=16,
            ff_dim=32,
            num_text_blocks=1,
            num_visual_blocks=1,
            axes_dims=(2, 2, 4),
        )
    )


def kandinsky5_text() -> dict[str, Any]:
    tokenizer = chat_tokenizer()
    return {"tokenizer": tokenizer, "text_encoder": tiny_qwen(len(tokenizer))} | long_clip()


def prx() -> Any:
    return diffusers.PRXPipeline(
        scheduler=flow(), vae=tiny_kl(), transformer=_prx(CHANNELS), **gemma()
    )


def prx_pixel() -> Any:
    return diffusers.PRXPixelPipeline(scheduler=flow(), transformer=_prx(3), **gemma())


def _prx(in_channels: int) -> Any:
    return awake(
        diffusers.PRXTransformer2DModel(
            in_channels=in_channels,
            context_in_dim=GEMMA_FEATURES,
            hidden_size=32,
            num_heads=2,
            depth=1,
            axes_dim=[8, 8],
        )
    )


def qwen_image21() -> Any:
    transformer = diffusers.QwenImage21Transformer2DModel(
        in_channels=64,
        num_layers=1,
        context_in_dim=FEATURES,
        axes_dims_rope=ROPE,
        **HEADS,
    )
    return diffusers.QwenImage21Pipeline(
        scheduler=flow(use_dynamic_shifting=True),
        vae=None,
        transformer=awake(transformer),
        text_encoder=reader()["text_encoder"],
        processor=Processor(),
    )


def nucleus() -> Any:
    transformer = diffusers.NucleusMoEImageTransformer2DModel(
        in_channels=64,
        out_channels=16,
        num_layers=1,
        joint_attention_dim=FEATURES,
        axes_dims_rope=ROPE,
        moe_enabled=False,
        **HEADS,
    )
    return diffusers.NucleusMoEImagePipeline(
        scheduler=flow(use_dynamic_shifting=True),
        vae=None,
        transformer=awake(transformer),
        text_encoder=reader(9)["text_encoder"],
        processor=Processor(),
    )


def ovis() -> Any:
    transformer = diffusers.OvisImageTransformer2DModel(
        in_channels=4 * CHANNELS,
        out_channels=4 * CHANNELS,
        num_layers=1,
        num_single_layers=1,
        joint_attention_dim=FEATURES,
        axes_dims_rope=ROPE,
        **HEADS,
    )
    text = reader()
    text["text_encoder"] = text["text_encoder"].model
    return diffusers.OvisImagePipeline(
        scheduler=flow(use_dynamic_shifting=True),
        vae=None,
        transformer=awake(transformer),
        **text,
    )


def ernie_image() -> Any:
    transformer = diffusers.ErnieImageTransformer2DModel(
        hidden_size=32,
        num_attention_heads=2,
        num_layers=1,
        ffn_hidden_size=32,
        in_channels=4 * CHANNELS,
        out_channels=4 * CHANNELS,
        text_in_dim=FEATURES,
        rope_axes_dim=ROPE,
    )
    return diffusers.ErnieImagePipeline(
        scheduler=flow(), vae=None, transformer=awake(transformer), **reader()
    )


def _pixart(kind: Any, **options: Any) -> Any:
    transformer = diffusers.PixArtTransformer2DModel(
        in_channels=CHANNELS,
        out_channels=2 * CHANNELS,
        num_layers=2,
        cross_attention_dim=24,
        caption_channels=TEXT_FEATURES,
        num_attention_heads=2,
        attention_head_dim=12,
        **options,
    )
    return kind(
        scheduler=diffusers.DPMSolverMultistepScheduler(),
        vae=None,
        transformer=awake(transformer),
        **t5(),
    )


def pixart_alpha() -> Any:
    return _pixart(diffusers.PixArtAlphaPipeline, sample_size=128, use_additional_conditions=True)


def pixart_pag() -> Any:
    return _pixart(diffusers.PixArtSigmaPAGPipeline, sample_size=8, use_additional_conditions=False)


def _sana(kind: Any, scheduler: Any, **options: Any) -> Any:
    transformer = diffusers.SanaTransformer2DModel(
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        num_layers=1,
        num_cross_attention_heads=2,
        cross_attention_head_dim=16,
        cross_attention_dim=32,
        caption_channels=GEMMA_FEATURES,
        sample_size=8,
        **HEADS,
        **options,
    )
    return kind(scheduler=scheduler, vae=None, transformer=awake(transformer), **gemma())


def sana_pag() -> Any:
    return _sana(diffusers.SanaPAGPipeline, flow())


def sana_sprint() -> Any:
    return _sana(
        diffusers.SanaSprintPipeline,
        diffusers.SCMScheduler(prediction_type="trigflow", sigma_data=0.5),
        guidance_embeds=True,
        guidance_embeds_scale=0.1,
        qk_norm="rms_norm_across_heads",
    )
