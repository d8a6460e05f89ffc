"""Tiny pipelines of `traced` as teachers' folders that a run can use, and how they are called."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from traced import ROWS
from traced.parts import awake
from traced.vaes import vae_of

NEGATIVE = "the house"
DDIM = {"class": "DDIMScheduler", "timestep_spacing": "trailing", "clip_sample": False}
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "AllegroPipeline": {"vae_tiling": True, "scheduler": DDIM},
    "CogVideoXPipeline": {"scheduler": DDIM | {"prediction_type": "v_prediction"}},
    "CogView3PlusPipeline": {"scheduler": DDIM | {"prediction_type": "v_prediction"}},
    "KolorsPAGPipeline": {"scheduler": DDIM},
    "KolorsPipeline": {"scheduler": DDIM},
    "StableDiffusionPipeline": {"scheduler": DDIM},
}
"""Settings without which a class cannot be a teacher: Allegro's VAE decodes in tiles alone; the
schedulers of CogVideo and Stable Diffusion (PNDM) are not known; and where one spaces its steps as
Kolors' does, few steps are not among many."""


def save_teacher(name: str, folder: Path) -> dict[str, Any]:
    """Save a row's pipeline, with a VAE so that it can draw; returns the section `teacher`."""
    terms = ROWS[name].terms
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pipeline = ROWS[name].make()
        vae = awake(vae_of(name, terms.size.is_clip))
    if pipeline.vae is None:
        pipeline.register_modules(vae=vae)
    pipeline.save_pretrained(folder)
    takes = inspect.signature(type(pipeline).__call__).parameters
    return {
        "path": str(folder),
        "height": terms.size.height,
        "width": terms.size.width,
        "num_frames": terms.size.num_frames,
        "max_sequence_length": terms.max_sequence_length,
        "negative_prompt": NEGATIVE if "negative_prompt" in takes else None,
        "trace": {"unguided": dict(terms.unguided), "always": dict(terms.always)},
        **NEEDED.get(name, {}),
    }
