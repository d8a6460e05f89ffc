"""A student as it lies on the disk: whole, or what it has learned beside its teacher's network."""

from pathlib import Path

import torch

from distillery.families import Family
from distillery.families.protocol import Denoiser
from distillery.model_folder import load_denoiser, save_denoiser
from distillery.student.lora import has_lora, load_fused, load_with_lora, save_lora
from distillery.student.time_embeddings import (
    has_time_embeddings,
    load_with_learned,
    load_with_trainable,
    save_time_embeddings,
)
from distillery.teacher.weights import link_network

BASE = "base"
"""Folder in a trained student's, of links to the network of which little or nothing is trained: a
folder that loads as a network would load without what was learned."""


def load_trainable(folder: Path, dtype: torch.dtype) -> Denoiser:
    """The student in a folder, ready to train; only the trained weights, float32, need a gradient.

    Args:
        folder: of the untrained student.
        dtype: of the forward pass. Frozen weights are held in it, which takes half the memory:
            autocast would cast them so in each pass, and nothing is ever added to them.
    """
    if has_lora(folder):
        return load_with_lora(folder, folder, dtype)
    if has_time_embeddings(folder):
        return load_with_trainable(folder, dtype)
    return load_denoiser(folder, torch.float32).requires_grad_(True)


def save_trained(trained: Denoiser, initial: Path, output: Path, family: Family) -> None:
    """Write a trained student as a float32 model folder, or what it has learned beside links.

    Args:
        trained: as `load_trainable` gave it, on the CPU.
        initial: folder it was loaded from.
        output: temporary folder to write.
    """
    if has_lora(initial):
        link_network(initial, output / BASE)
        save_lora(trained, output, family)
    elif has_time_embeddings(initial):
        link_network(initial, output / BASE)
        save_time_embeddings(trained, output, family)
    else:
        save_denoiser(trained, output)


def load_student(folder: Path, dtype: torch.dtype) -> Denoiser:
    """The student in a folder as one network, trained or not."""
    base = folder / BASE
    if not base.is_dir():
        return load_denoiser(folder, dtype)
    load = load_fused if has_lora(folder) else load_with_learned
    return load(folder, base, dtype)
