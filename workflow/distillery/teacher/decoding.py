"""Pictures that a VAE of lower precision spoils: found, decoded again in float32, counted.

float16 overflows in some VAEs, and what is not finite becomes a black picture without a word.
"""

import logging
from typing import Any

import torch

from distillery.families.protocol import Pipeline

BLACK = -1.0 + 1.0 / 255.0
"""Decoded values lie in [-1, 1]; up to here they round to 0 of 255."""


def is_black(pictures_b: torch.Tensor) -> torch.Tensor:
    """Which pictures (b, 3, h, w) in [0, 1] are black or not finite; (b,) bool."""
    return is_spoiled(pictures_b * 2 - 1)


def is_spoiled(decoded_b: torch.Tensor) -> torch.Tensor:
    """Which of a VAE's decoded pictures (b, ...) are not finite, or black; (b,) bool."""
    flat = decoded_b.flatten(1)
    return ~flat.isfinite().all(dim=1) | (flat <= BLACK).all(dim=1)


class DecodeGuard:
    """Stands in the place of a VAE's `decode`; see `guard_decoding`.

    Attributes:
        num_repeated: pictures that were decoded again since the last `take_num_repeated`.
    """

    def __init__(self, vae: Any) -> None:
        """`vae` is a Diffusers autoencoder, whose `decode` is not replaced here."""
        self._vae = vae
        self._decode = vae.decode
        self.num_repeated = 0

    def __call__(self, latents: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Decode as the VAE does; again in float32 what is spoiled.

        Raises ValueError if that is not finite either.
        """
        # States are float32 everywhere; stock pipelines cast them only for a float16 VAE.
        result = self._decode(latents.to(self._vae.dtype), *args, **kwargs)
        decoded_b: torch.Tensor = result[0]
        spoiled = is_spoiled(decoded_b)
        if self._vae.dtype == torch.float32 or not spoiled.any():
            return result
        repeated = self._decode_in_float32(latents[spoiled], *args, **kwargs)
        if not repeated.isfinite().all():
            raise ValueError(
                f"{int(spoiled.sum())} pictures are not finite, decoded in float32 neither: the "
                "teacher's VAE or the latents are damaged"
            )
        decoded_b[spoiled] = repeated.to(decoded_b.dtype)
        self.num_repeated += len(repeated)
        logging.getLogger("distillery.teacher.decoding").warning(
            f"{len(repeated)} of {len(decoded_b)} pictures were black or not finite in "
            f"{self._vae.dtype} and were decoded again in float32; teacher.vae_dtype: float32 "
            "avoids the second try"
        )
        return result

    def _decode_in_float32(self, latents: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The VAE's own `decode` with all weights cast for this once."""
        tensors = list(self._vae.state_dict(keep_vars=True).values())
        dtypes = [tensor.dtype for tensor in tensors]
        try:
            for tensor in tensors:
                tensor.data = tensor.data.float() if tensor.is_floating_point() else tensor.data
            decoded: torch.Tensor = self._decode(latents.float(), *args, **kwargs)[0]
        finally:
            for tensor, dtype in zip(tensors, dtypes, strict=True):
                tensor.data = tensor.data.to(dtype)
        return decoded


def guard_decoding(pipeline: Pipeline) -> None:
    """Let a pipeline's VAE decode again in float32 what it spoils in a lower precision."""
    if pipeline.vae is not None and pipeline.vae.dtype != torch.float32:
        pipeline.vae.decode = DecodeGuard(pipeline.vae)


def take_num_repeated(pipeline: Pipeline) -> int:
    """Pictures that were decoded twice since this was last asked."""
    guard = getattr(pipeline.vae, "decode", None)
    if not isinstance(guard, DecodeGuard):
        return 0
    number, guard.num_repeated = guard.num_repeated, 0
    return number
