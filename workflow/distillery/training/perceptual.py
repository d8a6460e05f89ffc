"""The distance of two latents as the teacher's VAE decoder sees them: its intermediate features."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from distillery.config.teacher import Teacher
from distillery.families import Family, Setting
from distillery.model_folder import load_denoiser
from distillery.teacher.weights import choose_variant

EPSILON = 1e-6
"""Beside a channel's variance, which may be zero."""


@dataclass(frozen=True)
class PerceptualLoss:
    """The latent perceptual loss of Berrada et al. 2024 (arXiv:2411.04873, §3.2).

    Features of every block of the decoder, standardised by channel as the target's are over its
    pixels; the mean square of their difference, averaged over the blocks. Their weights of the
    blocks and their mask of outliers are left out.

    Attributes:
        vae: a Diffusers autoencoder with frozen weights in float32.
        family: whose latents these are.
        setting: their size.
    """

    vae: Any
    family: Family
    setting: Setting

    def __call__(self, latents: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The distance (b,) of latents to their targets, both (b, *latent) float32, normalised."""
        with torch.no_grad():
            theirs = self.features(target)
        ours = self.features(latents)
        distances = [_distance(left, right) for left, right in zip(ours, theirs, strict=True)]
        return torch.stack(distances).mean(dim=0)

    def features(self, latents: torch.Tensor) -> list[torch.Tensor]:
        """What the decoder's blocks give while it decodes, each (b, c, ...)."""
        found: list[torch.Tensor] = []
        decoder = self.vae.decoder
        blocks = [getattr(decoder, "mid_block", None), *decoder.up_blocks]
        hooks = [
            block.register_forward_hook(lambda _block, _given, output: found.append(output))
            for block in blocks
            if block is not None
        ]
        try:
            self.decode(latents)
        finally:
            for hook in hooks:
                hook.remove()
        return found

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """The pictures (b, 3, ...) in [-1, 1] of a sampler's latents (b, *latent)."""
        packed = self.family.vae_latents(latents, self.setting)
        decoded: torch.Tensor = self.vae.decode(
            denormalised(packed, self.vae.config), return_dict=False
        )[0]
        return decoded


def denormalised(latents: torch.Tensor, config: Any) -> torch.Tensor:
    """Latents (b, c, ...) as the VAE made them, by its configuration, as stock pipelines do it."""
    scale = config.get("scaling_factor", None) or 1.0
    shift = config.get("shift_factor", None) or 0.0
    mean, std = config.get("latents_mean", None), config.get("latents_std", None)
    if mean is None or std is None:
        return latents / scale + shift
    shape = (1, -1, *[1] * (latents.ndim - 2))
    return latents * latents.new_tensor(std).view(shape) / scale + latents.new_tensor(mean).view(
        shape
    )


def load_perceptual(
    teacher: Teacher, folder: Path, family: Family, setting: Setting, device: torch.device
) -> PerceptualLoss:
    """The teacher's VAE in float32 with frozen weights; nothing else of the teacher is read.

    Raises FileNotFoundError where the teacher in `folder` has none.
    """
    variant = choose_variant(folder / "vae", teacher.variant)
    vae = load_denoiser(folder / "vae", torch.float32, variant).to(device)
    return PerceptualLoss(vae.requires_grad_(False), family, setting)


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Mean square (b,) of the difference of features (b, c, ...), in units of theirs' variance.

    The mean, by which features are standardised too, cancels.
    """
    pixels = tuple(range(2, theirs.ndim))
    std = (theirs.var(dim=pixels, keepdim=True, correction=0) + EPSILON).sqrt()
    return F.mse_loss(ours / std, theirs / std, reduction="none").flatten(1).mean(dim=1)
