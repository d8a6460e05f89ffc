"""Tiny pipelines that take an image beside the prompt, and runs of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pandas as pd
import torch
from PIL import Image
from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel

from distillery.config.run import parse_config
from families.flux_dev import tiny_flux
from runs import Run, settings
from tiny import (
    LATENT_CHANNELS,
    TEXT_FEATURES,
    tiny_scheduler,
    tiny_text_encoder,
    tiny_tokenizer,
    tiny_vae,
)
from traced.images import flux2_klein
from traced.parts import awake, flow

SIDE = 32
FEATURES = 16
"""Of the image encoder."""
NUM_IMAGES = 4
"""In a run: some prompts share theirs."""


def flux_kontext() -> Any:
    """The image's latents are tokens behind the state."""
    base = tiny_flux(flow(use_dynamic_shifting=True), guidance_embeds=True)
    awake(base.transformer)
    awake(base.vae)
    parts = {name: it for name, it in base.components.items() if it is not None}
    return diffusers.FluxKontextPipeline(**parts)


def wan_image() -> Any:
    """Wan 2.1: the image's latents are channels behind the state, and an image encoder sees it."""
    encoder = CLIPVisionModel(
        CLIPVisionConfig(
            hidden_size=FEATURES,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=16,
            patch_size=8,
        )
    )
    processor = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=16)
    channels = 2 * LATENT_CHANNELS + 4
    return _wan(channels, FEATURES, image_encoder=encoder.eval(), image_processor=processor)


def wan_first_frame() -> Any:
    """Wan2.2-TI2V-5B: the image's latents are the first frame's, whose time is none."""
    return _wan(LATENT_CHANNELS, None, expand_timesteps=True)


def _wan(channels: int, features: int | None, **parts: Any) -> Any:
    tokenizer = tiny_tokenizer()
    transformer = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=channels,
        out_channels=LATENT_CHANNELS,
        text_dim=TEXT_FEATURES,
        freq_dim=16,
        ffn_dim=32,
        num_layers=1,
        image_dim=features,
        rope_max_seq_len=32,
    )
    return diffusers.WanImageToVideoPipeline(
        scheduler=tiny_scheduler(),
        vae=awake(tiny_vae()),
        transformer=awake(transformer),
        tokenizer=tokenizer,
        text_encoder=tiny_text_encoder(len(tokenizer)),
        **parts,
    )


CLIP = {"num_frames": 9, "trace": {"unguided": {"guidance_scale": 1.0}, "image": "image"}}
KONTEXT_CALL = {"max_area": SIDE * SIDE, "_auto_resize": False}
CASES: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "FluxKontextPipeline": (
        flux_kontext,
        {"trace": {"unguided": {"true_cfg_scale": 1.0}, "always": KONTEXT_CALL, "image": "image"}},
    ),
    "WanImageToVideoPipeline": (wan_image, CLIP),
    "WanImageToVideoPipeline with a first frame": (wan_first_frame, CLIP),
    "Flux2KleinPipeline": (
        flux2_klein,
        {"trace": {"unguided": {"guidance_scale": 1.0}, "image": "image"}}
        | {"height": 64, "width": 64, "max_sequence_length": 64, "negative_prompt": None},
    ),
}
"""By class: a pipeline, and what is of its own in the section `teacher`."""


def save_image(path: Path, number: int, height: int = SIDE, width: int = SIDE) -> None:
    """Noise, each number its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(path)


def add_images(prompts: Path, size: tuple[int, int] = (SIDE, SIDE)) -> None:
    """Give a prompt file a column `image`, with files beside it."""
    table = pd.read_csv(prompts)
    table["image"] = [f"images/{row % NUM_IMAGES}.png" for row in range(len(table))]
    for number in range(NUM_IMAGES):
        save_image(prompts.parent / f"images/{number}.png", number, *size)
    table.to_csv(prompts, index=False)


def image_settings(name: str, folder: Path, **changes: Any) -> dict[str, Any]:
    """A configuration of a tiny pipeline, which is saved, and prompts that have images."""
    make, own = CASES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        make().save_pretrained(folder / "teacher")
    teacher = {"height": SIDE, "width": SIDE, "max_sequence_length": 16, **own}
    one_a_call = {"batch_size": "auto", "num_shards": 1}
    changes = {"teacher": teacher, "targets": one_a_call, "samples": one_a_call} | changes
    raw = settings(folder, folder / "teacher", **changes)
    for split in ("train", "eval"):
        size = raw["teacher"]["height"], raw["teacher"]["width"]
        add_images(folder / f"{split}.csv", size)
    return raw


def image_run(name: str, folder: Path, **changes: Any) -> Run:
    """A run of it; nothing is made yet."""
    return Run(folder / "results", parse_config(image_settings(name, folder, **changes), "tiny"))
