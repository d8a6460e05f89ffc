"""All that a trace has learnt of a pipeline, and its JSON."""

import base64
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Self

import numpy as np
import torch

from distillery.families.encodings import Asked, Encodings, Reading, Slot
from distillery.families.of_images import Beside, ImageEncodings
from distillery.families.rearranged import Rearranged
from distillery.families.size import Size
from distillery.families.tracing import Entry, Exit, LateEntry, Signature


@dataclass(frozen=True)
class Learnt:
    """What is known of a pipeline without an adapter.

    Attributes:
        pipeline_class: in Diffusers.
        signature: how it feeds its network without guidance.
        encodings: how it encodes prompts.
        text_components: names of the components that only encode prompts.
        scale: the argument that is the guidance scale; "" where the call takes none.
        unguided: arguments of a call without guidance, the scale's among them. Empty: the network
            takes the scale as an input, if at all.
        always: further arguments of every call.
        size: the only one that was traced.
        guidance_scale: of the calls with guidance.
        latent_shape: of one sample.
        timesteps: of the traced steps, by which a state's step is known.
        exact: the argument `timestep` of a call with states in float32 at these steps, where one in
            the pipeline's own type rounds it; else empty.
        spacings: by number of steps, what the call asks of its scheduler's `set_timesteps`.
        calls_per_step: of a guided call.
        max_sequence_length: what the call is told, 0 where it takes none.
        prompt_bytes: that are stored of a prompt.
        image: where a call's result has the image, e.g. `images[0]`.
        clip: where it has a clip's frames; None: it has none.
        drawn: how a state is made of noise; None: not known.
        decoded: what becomes of a state before its VAE decodes it; None: not known.
    """

    pipeline_class: str
    signature: Signature
    encodings: Encodings
    text_components: tuple[str, ...]
    scale: str
    unguided: Mapping[str, Any]
    always: Mapping[str, Any]
    size: Size
    guidance_scale: float
    latent_shape: tuple[int, ...]
    timesteps: tuple[float, ...]
    exact: tuple[float, ...]
    spacings: Mapping[int, Mapping[str, Any]]
    calls_per_step: int
    max_sequence_length: int
    prompt_bytes: int
    image: str
    clip: str | None
    drawn: Rearranged | None = None
    decoded: Rearranged | None = None

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        written: dict[str, Any] = to_json(self)
        return written

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Raises ValueError for what another version wrote."""
        try:
            read = from_json(raw)
        except (AttributeError, IndexError, KeyError, TypeError, zlib.error) as error:
            raise ValueError("this is no trace of this version: make it again") from error
        if not isinstance(read, cls):
            raise ValueError("this is no trace of a pipeline")
        return read


# ---- values that JSON has no types for -----------------------------------------------------------

RECORDS = {
    it.__name__: it
    for it in (
        *(Learnt, Signature, Entry, Exit, Encodings, Asked, Reading, Slot, Size),
        *(ImageEncodings, Beside, LateEntry, Rearranged),
    )
}
KIND = "kind"
"""Of an object that stands for something else; what is no record has a `value`."""


def to_json(value: Any) -> Any:
    """A value with tensors, tuples, types and records as JSON."""
    if is_dataclass(value):
        kind = type(value).__name__
        own = ((it, getattr(value, it.name)) for it in fields(value))
        # What was learnt before there was such a field is the same as it was.
        written = {it.name: to_json(item) for it, item in own if item is not None or it.default}
        return {KIND: kind} | written
    if isinstance(value, torch.Tensor):
        return {KIND: "tensor", "value": _packed(value), "dtype": _name(value.dtype),
                "shape": list(value.shape)}  # fmt: skip
    if isinstance(value, torch.dtype):
        return {KIND: "dtype", "value": _name(value)}
    if isinstance(value, torch.device):
        return {KIND: "device"}
    if isinstance(value, np.generic | np.ndarray):
        return to_json(value.tolist())
    if isinstance(value, Mapping):
        return {KIND: "mapping", "value": [[to_json(it) for it in item] for item in value.items()]}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if isinstance(value, tuple | frozenset):
        items = sorted(value, key=str) if isinstance(value, frozenset) else value
        return {KIND: type(value).__name__, "value": [to_json(item) for item in items]}
    return value


def from_json(raw: Any) -> Any:
    """The inverse of `to_json`; devices come back as the CPU."""
    if isinstance(raw, list):
        return [from_json(item) for item in raw]
    if not isinstance(raw, Mapping):
        return raw
    kind = raw[KIND]
    if kind in RECORDS:
        record = RECORDS[kind]
        known = {name: from_json(item) for name, item in raw.items() if name != KIND}
        return record(**known)
    return READERS[kind](raw)


READERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "tensor": lambda raw: _unpacked(raw),
    "dtype": lambda raw: getattr(torch, raw["value"]),
    "device": lambda raw: torch.device("cpu"),
    "mapping": lambda raw: {from_json(key): from_json(item) for key, item in raw["value"]},
    "tuple": lambda raw: tuple(from_json(raw["value"])),
    "frozenset": lambda raw: frozenset(from_json(raw["value"])),
}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _packed(tensor: torch.Tensor) -> str:
    """Its bytes: tables of positions become a thousandth."""
    # Not `contiguous`, which leaves one number that was expanded with a stride of zero.
    flat = tensor.detach().cpu().reshape(-1)
    flat = flat.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    return base64.b64encode(zlib.compress(flat.numpy().tobytes(), 9)).decode("ascii")


def _unpacked(raw: Mapping[str, Any]) -> torch.Tensor:
    data = bytearray(zlib.decompress(base64.b64decode(raw["value"])))
    dtype = getattr(torch, raw["dtype"])
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(raw["shape"])
