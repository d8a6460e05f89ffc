"""Tiny pipelines of `traced` as teachers' folders that a run can use, and how they are called."""

import inspect
from pathlib import Path
from typing import Any

import torch

from families.sdxl import tiny_kl
from tiny import tiny_vae
from traced import ROWS
from traced.parts import awake

NEGATIVE = "the house"


def save_teacher(name: str, folder: Path) -> dict[str, Any]:
    """Save a row's pipeline, with a VAE so that it can draw; returns the section `teacher`."""
    terms = ROWS[name].terms
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pipeline = ROWS[name].make()
        vae = tiny_vae() if terms.size.is_clip else awake(tiny_kl())
    if pipeline.vae is None:
        if not terms.size.is_clip:
            vae.register_to_config(scaling_factor=0.4, shift_factor=0.1)
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
    }
