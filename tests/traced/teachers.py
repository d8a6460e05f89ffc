"""Tiny pipelines of `traced` as teachers' folders that a run can use, and how they are called."""

import inspect
from pathlib import Path
from typing import Any

import diffusers
import torch

from families.sdxl import tiny_kl
from traced import ROWS
from traced.parts import awake

NEGATIVE = "the house"


def save_teacher(name: str, folder: Path) -> dict[str, Any]:
    """Save a row's pipeline, with a VAE so that it can draw; returns the section `teacher`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pipeline, vae = ROWS[name].make(), awake(tiny_kl())
    if pipeline.vae is None:
        vae.register_to_config(scaling_factor=0.4, shift_factor=0.1)
        pipeline.register_modules(vae=vae)
    pipeline.save_pretrained(folder)
    terms = ROWS[name].terms
    takes = inspect.signature(getattr(diffusers, name).__call__).parameters
    return {
        "path": str(folder),
        "height": terms.height,
        "width": terms.width,
        "max_sequence_length": terms.max_sequence_length,
        "negative_prompt": NEGATIVE if "negative_prompt" in takes else None,
        "trace": {"unguided": dict(terms.unguided), "always": dict(terms.always)},
    }
