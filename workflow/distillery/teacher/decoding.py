"""Decode images again in float32 that a VAE of lower precision spoils.

float16 overflows in some VAEs: NaN silently becomes a black image, infinity a white one.
"""

import logging
import time
from typing import Any

import torch

from distillery.families.protocol import Pipeline

BLACK = -1.0 + 1.0 / 255.0
"""Decoded values lie in [-1, 1]; up to here they round to 0 of 255."""


def is_spoiled(decoded_b: torch.Tensor) -> torch.Tensor:
    """Which of a VAE's decoded images (b, ...) are not finite, or black; (b,) bool."""
    return ~is_finite(decoded_b) | (decoded_b.flatten(1) <= BLACK).all(dim=1)


def is_finite(values_b: torch.Tensor) -> torch.Tensor:
    """Which samples (b, ...) hold numbers only; (b,) bool."""
    return values_b.flatten(1).isfinite().all(dim=1)


class Moment:
    """A moment in a device's work, which the host does not wait for."""

    def __init__(self, device: torch.device) -> None:
        """Now: after all that the device has been given so far."""
        self._host_s = time.perf_counter()
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(device))

    def seconds_to(self, later: "Moment") -> float:
        """Between two moments of one device; waits for the later one."""
        if self._event is None or later._event is None:
            return later._host_s - self._host_s
        later._event.synchronize()
        return float(self._event.elapsed_time(later._event)) / 1000


class DecodeGuard:
    """Stands in the place of a VAE's `decode`; see `guard_decoding`."""

    def __init__(self, vae: Any) -> None:
        """`vae` is a Diffusers autoencoder, whose `decode` is not replaced here."""
        self._vae = vae
        self._decode = vae.decode
        self._spans: list[tuple[Moment, Moment]] = []

    def __call__(self, latents: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Decode as the VAE does; again in float32 what it spoils in a lower precision.

        An image that is not finite even so is returned as NaN throughout: the caller finds it,
        also where the stock pipeline clamps infinite values to white.
        """
        begin = Moment(latents.device)
        # Not all stock pipelines cast them.
        result = self._decode_all(latents.to(self._vae.dtype), *args, **kwargs)
        decoded_b: torch.Tensor = result[0]
        if self._vae.dtype != torch.float32:
            self._repair(decoded_b, latents, *args, **kwargs)
        # Without asking the device whether there is one, for which the host would wait.
        lost = ~is_finite(decoded_b).view(-1, *[1] * (decoded_b.ndim - 1))
        decoded_b.masked_fill_(lost, torch.nan)
        self._spans.append((begin, Moment(latents.device)))
        return result

    def _decode_all(self, latents: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """A batch at once, or one by one where the VAE takes no batch, as HunyuanVideo 1.5's."""
        try:
            return self._decode(latents, *args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            if len(latents) == 1:
                raise
        each = [self._decode(one, *args, **kwargs) for one in torch.split(latents, 1)]
        whole = torch.cat([one[0] for one in each])
        return (whole,) if isinstance(each[0], tuple) else type(each[0])(sample=whole)

    def pop_seconds(self) -> float:
        """How long the device has decoded since this was last asked; waits until it has."""
        spans, self._spans = self._spans, []
        return sum(begin.seconds_to(end) for begin, end in spans)

    def _repair(
        self, decoded_b: torch.Tensor, latents: torch.Tensor, *args: Any, **kwargs: Any
    ) -> None:
        """Decode again in float32, in place, what is spoiled.

        Not where the latents are not finite: that is the network's fault, not the VAE's.
        """
        spoiled = is_spoiled(decoded_b) & is_finite(latents)
        if not spoiled.any():
            return
        repeated = self._decode_in_float32(latents[spoiled], *args, **kwargs)
        decoded_b[spoiled] = repeated.to(decoded_b.dtype)
        logging.getLogger("distillery.teacher.decoding").warning(
            f"{len(repeated)} of {len(decoded_b)} images were black or not finite in "
            f"{self._vae.dtype} and were decoded again in float32; teacher.vae_dtype: float32 "
            "avoids the second try"
        )

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


def pop_decode_seconds(pipeline: Pipeline) -> float:
    """How long a pipeline's VAE has decoded since this was last asked; waits for its device."""
    decode = getattr(pipeline.vae, "decode", None)
    return decode.pop_seconds() if isinstance(decode, DecodeGuard) else 0.0


def guard_decoding(pipeline: Pipeline, in_tiles: bool = False) -> None:
    """Let a pipeline's VAE decode again in float32 what it spoils; see `DecodeGuard`."""
    if pipeline.vae is not None:
        if in_tiles:
            pipeline.vae.enable_tiling()
        pipeline.vae.decode = DecodeGuard(pipeline.vae)
