"""Tiny pipelines of every class of Diffusers that makes images or videos of text alone.

A class that the pinned Diffusers has and `ROWS` and `UNTRIED` lack fails
tests/numerics/test_traced.py.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from distillery.families import Size, learning
from distillery.families.learning import Terms
from traced import images, unets, videos
from traced.unets import stock

IMAGE = {"height": 64, "width": 32}
BINNED = {"use_resolution_binning": False}
UNBINNED = IMAGE | BINNED
TOKENS = {"max_sequence_length": 16}
PAG_OFF = {"guidance_scale": 1.0, "pag_scale": 0.0}
NEGATIVE = "the house"
"""Where an empty one has no token here."""
TRUE_OFF = {"true_cfg_scale": 1.0}
SMALL = {"height": 32, "width": 32}
VIDEO = IMAGE | {"num_frames": 9}
PLAIN_TEMPLATE = {"prompt_template": {"template": "{}", "crop_start": 0}}
CHAT_TOKENS = {"max_sequence_length": 64}


@contextmanager
def few_spacings() -> Iterator[None]:
    """Learn how a call spaces as many steps as a teacher has here: more take a third of it all."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(learning, "SPACINGS", 8)
        yield


@dataclass(frozen=True)
class Row:
    """How a class is called.

    Attributes:
        make: a pipeline with random weights.
        always: arguments of every call; its size and max_sequence_length are of the teacher.
        unguided: those that leave guidance out.
        negative: the negative prompt.
        further: those of guided calls.
        refused: the beginning of why it cannot be learnt; "" if it can.
    """

    make: Callable[[], Any]
    always: Mapping[str, Any] = field(default_factory=dict)
    unguided: Mapping[str, Any] = field(default_factory=lambda: {"guidance_scale": 1.0})
    negative: str | None = None
    further: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""

    @property
    def terms(self) -> Terms:
        """Of a teacher of eight steps."""
        always = dict(self.always)
        return Terms(
            steps=8,
            size=Size(*(always.pop(name, 1) for name in ("height", "width", "num_frames"))),
            guidance_scale=3.0,
            unguided=self.unguided,
            max_sequence_length=always.pop("max_sequence_length", None),
            always=always,
            negative_prompt=self.negative,
            further=self.further,
            decode=False,
        )


ROWS: Mapping[str, Row] = {
    "AllegroPipeline": Row(videos.allegro, VIDEO | TOKENS),
    "AnimateDiffPAGPipeline": Row(
        videos.animate_diff_pag,
        SMALL | {"num_frames": 2},
        PAG_OFF,
        refused="encoder_hidden_states follows the prompts, and neither",
    ),
    "AnimateDiffPipeline": Row(
        videos.animate_diff,
        SMALL | {"num_frames": 2},
        refused="encoder_hidden_states follows the prompts, and neither",
    ),
    "AnimateDiffSDXLPipeline": Row(
        videos.animate_diff_xl,
        SMALL | {"num_frames": 2},
        refused="encoder_hidden_states follows the prompts, and neither",
    ),
    "AnyFlowPipeline": Row(
        videos.anyflow, VIDEO | TOKENS, refused="not so: a call that is given the first state"
    ),
    "AuraFlowPipeline": Row(images.auraflow, IMAGE | TOKENS),
    "BriaFibo2Pipeline": Row(
        images.bria_fibo2,
        IMAGE,
        negative=NEGATIVE,
        refused="encoder_attention_mask follows the prompts, and neither",
    ),
    "BriaFiboPipeline": Row(
        images.bria_fibo,
        IMAGE | CHAT_TOKENS,
        negative=NEGATIVE,
        refused="its call raises IndexError",
    ),
    "BriaPipeline": Row(images.bria, IMAGE | TOKENS),
    "ChromaPipeline": Row(images.chroma, IMAGE | TOKENS),
    "CogVideoXPipeline": Row(videos.cogvideox, VIDEO | TOKENS),
    "CogView3PlusPipeline": Row(images.cogview3plus, IMAGE | TOKENS),
    "CogView4Pipeline": Row(
        images.cogview4,
        IMAGE | CHAT_TOKENS,
        negative=NEGATIVE,
        refused="not so: a prompt alone is as among others",
    ),
    "EasyAnimatePipeline": Row(videos.easy_animate, VIDEO, negative=NEGATIVE),
    "ErnieImagePipeline": Row(
        images.ernie_image, IMAGE | {"use_pe": False}, refused="it has no prepare_latents"
    ),
    "Flux2KleinKVPipeline": Row(images.flux2_klein_kv, IMAGE | CHAT_TOKENS, {}),
    "Flux2KleinPipeline": Row(images.flux2_klein, IMAGE | CHAT_TOKENS),
    "Flux2Pipeline": Row(images.flux2, IMAGE | {"max_sequence_length": 400}, {}),
    "FluxPipeline": Row(stock("flux_dev"), SMALL | TOKENS, TRUE_OFF, negative=NEGATIVE),
    "HiDreamImagePipeline": Row(
        images.hidream,
        IMAGE | {"max_sequence_length": 12},
        refused="0.2 of what its encode_prompt gives follows the prompt, and neither",
    ),
    "HunyuanDiTPAGPipeline": Row(images.hunyuan_dit_pag, UNBINNED, PAG_OFF),
    "HunyuanDiTPipeline": Row(images.hunyuan_dit, UNBINNED),
    "HunyuanImagePipeline": Row(images.hunyuan_image, IMAGE, {}),
    "HunyuanVideo15Pipeline": Row(videos.hunyuan_video15, VIDEO, {}),
    "HunyuanVideoPipeline": Row(
        videos.hunyuan_video, VIDEO | TOKENS | PLAIN_TEMPLATE, TRUE_OFF, negative=NEGATIVE
    ),
    "IFPipeline": Row(unets.deepfloyd_if, SMALL, refused="it has no prepare_latents"),
    "Kandinsky3Pipeline": Row(
        unets.kandinsky3, SMALL, refused="not so: a prompt alone is as among others"
    ),
    "Kandinsky5T2IPipeline": Row(
        images.kandinsky5, IMAGE | CHAT_TOKENS, refused="not so: a prompt alone is as among others"
    ),
    "Kandinsky5T2VPipeline": Row(
        videos.kandinsky5, VIDEO | CHAT_TOKENS, refused="not so: a prompt alone is as among others"
    ),
    "KolorsPAGPipeline": Row(unets.kolors_pag, SMALL | TOKENS, PAG_OFF),
    "KolorsPipeline": Row(unets.kolors, SMALL | TOKENS),
    "Krea2Pipeline": Row(images.krea2, IMAGE | CHAT_TOKENS, {"guidance_scale": 0.0}),
    "LatentConsistencyModelPipeline": Row(
        unets.latent_consistency, SMALL, {}, refused="not so: a call that is given the first state"
    ),
    "LattePipeline": Row(
        videos.latte,
        IMAGE | {"width": 64, "video_length": 2},
        refused="not so: a prompt alone is as among others",
    ),
    "LDMTextToImagePipeline": Row(
        unets.latent_diffusion, IMAGE, refused="it has no prepare_latents"
    ),
    "LongCatImagePipeline": Row(images.longcat_image, IMAGE | {"enable_prompt_rewrite": False}),
    "LTXConditionPipeline": Row(videos.ltx_condition, VIDEO | TOKENS),
    "LTXPipeline": Row(videos.ltx, VIDEO | TOKENS),
    "Lumina2Pipeline": Row(images.lumina2, IMAGE),
    "LuminaPipeline": Row(
        images.lumina,
        IMAGE,
        refused="its encode_prompt gives 0.2 of the prompt and the negative prompt together",
    ),
    "MochiPipeline": Row(videos.mochi, IMAGE | {"num_frames": 7} | TOKENS),
    "MotifVideoPipeline": Row(videos.motif_video, VIDEO | TOKENS, {}),
    "NucleusMoEImagePipeline": Row(
        images.nucleus, IMAGE | {"max_sequence_length": 496}, refused="its call raises TypeError"
    ),
    "OvisImagePipeline": Row(images.ovis, IMAGE | CHAT_TOKENS),
    "PixArtAlphaPipeline": Row(images.pixart_alpha, UNBINNED | TOKENS),
    "PixArtSigmaPAGPipeline": Row(images.pixart_pag, UNBINNED | TOKENS, PAG_OFF),
    "PixArtSigmaPipeline": Row(stock("pixart"), SMALL | TOKENS | BINNED),
    "PRXPipeline": Row(
        images.prx,
        UNBINNED | {"tokenizer_max_length": 16},
        refused="not so: the scheduler alone makes the states (RuntimeError",
    ),
    "PRXPixelPipeline": Row(
        images.prx_pixel,
        UNBINNED,
        refused="the network returns (2, 3, 64, 32), the scheduler is given (2, 3, 64, 32)",
    ),
    "QwenImage21Pipeline with its cache": Row(
        images.qwen_image21,
        IMAGE,
        TRUE_OFF,
        negative=NEGATIVE,
        refused="kv_cache is of type QwenImage21KVCache",
    ),
    "QwenImage21Pipeline": Row(
        images.qwen_image21,
        IMAGE | {"use_kv_cache": False},
        TRUE_OFF,
        negative=NEGATIVE,
        refused="not so: a prompt alone is as among others",
    ),
    "QwenImagePipeline": Row(
        stock("qwen_image"),
        SMALL | CHAT_TOKENS,
        TRUE_OFF,
        negative=NEGATIVE,
        refused="encoder_hidden_states_mask follows the prompts, and neither",
    ),
    "SanaPAGPipeline": Row(images.sana_pag, UNBINNED | TOKENS, PAG_OFF),
    "SanaPipeline": Row(stock("sana"), SMALL | TOKENS | BINNED),
    "SanaSprintPipeline": Row(
        images.sana_sprint,
        UNBINNED | TOKENS | {"intermediate_timesteps": None},
        {},
        refused="the network returns (2, 4, 2, 1), the scheduler is given (2, 4, 2, 1)",
    ),
    "SanaVideoPipeline": Row(videos.sana_video, VIDEO | BINNED | CHAT_TOKENS),
    "SkyReelsV2DiffusionForcingPipeline": Row(
        videos.skyreels_v2_forcing, VIDEO | TOKENS, refused="it steps with copies of its scheduler"
    ),
    "SkyReelsV2Pipeline": Row(videos.skyreels_v2, VIDEO | TOKENS),
    "StableDiffusion3PAGPipeline": Row(unets.sd3_pag, SMALL | TOKENS, PAG_OFF),
    "StableDiffusion3Pipeline": Row(stock("sd3"), SMALL | TOKENS),
    "StableDiffusionPAGPipeline": Row(unets.sd_pag, SMALL, PAG_OFF),
    "StableDiffusionPipeline": Row(stock("sd15"), SMALL),
    "StableDiffusionXLPAGPipeline": Row(unets.sdxl_pag, SMALL, PAG_OFF),
    "StableDiffusionXLPipeline": Row(stock("sdxl"), SMALL),
    "WanPipeline with a time of each token": Row(videos.wan_expanded, VIDEO | TOKENS),
    "WanPipeline with two experts": Row(stock("wan_two_experts"), SMALL | TOKENS),
    "WanPipeline": Row(videos.wan, VIDEO | TOKENS),
    "ZImageOmniPipeline": Row(
        images.z_image_omni,
        IMAGE | CHAT_TOKENS,
        {"guidance_scale": 0.0},
        refused="no argument of the network is the scheduler",
    ),
    "ZImagePipeline": Row(images.z_image, IMAGE | CHAT_TOKENS, {"guidance_scale": 0.0}),
}

_CASCADE = "a cascade of pipelines"
_COSMOS = "needs the package cosmos_guardrail"
_ONE = "takes one prompt, not a list"
_PARTS = "makes a video part by part"
_TEXT = "makes text"
UNTRIED: Mapping[str, str] = {
    "AnyFlowFARPipeline": _PARTS,
    "Cosmos2TextToImagePipeline": _COSMOS,
    "Cosmos2_5_PredictBasePipeline": _COSMOS,
    "Cosmos3OmniPipeline": _ONE,
    "CosmosTextToWorldPipeline": _COSMOS,
    "DiffusionGemmaPipeline": _TEXT,
    "DreamLiteMobilePipeline": _ONE,
    "DreamLitePipeline": _ONE,
    "GlmImagePipeline": "draws tokens with a language model first",
    "HeliosPipeline": _PARTS,
    "Ideogram4Pipeline": "guides at every step, with a second network",
    "KandinskyCombinedPipeline": _CASCADE,
    "KandinskyPriorPipeline": "makes embeddings, for a cascade",
    "KandinskyV22CombinedPipeline": _CASCADE,
    "KandinskyV22PriorPipeline": "makes embeddings, for a cascade",
    "LLaDA2Pipeline": _TEXT,
    "LTXI2VLongMultiPromptPipeline": _PARTS,
    "OmniGenPipeline": "needs the package torchvision",
    "QwenImageLayeredPipeline": "takes an image apart",
    "ShapEPipeline": "makes shapes",
    "StableAudio3Pipeline": "makes sound",
    "StableCascadeCombinedPipeline": _CASCADE,
    "StableCascadePriorPipeline": "makes embeddings, for a cascade",
    "StableUnCLIPPipeline": _CASCADE,
    "WanVACEPipeline": "fills a video",
}
"""Classes of which there is no tiny pipeline, with the reason."""
