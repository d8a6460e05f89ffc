"""The durable unit: a chunk is one safetensors file of a fixed group of samples.

A chunk's header carries the recipe's hash, the digest of its members, and a checksum of the header
and the tensors. So a truncated, damaged or foreign file is refused by name.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from distillery.files import atomic_path, canonical_json

if TYPE_CHECKING:
    import torch

HEADER = "distillery"
"""The one key of our metadata. safetensors writes several keys in an order that changes from call
to call, and a chunk's bytes must not."""


class DamagedChunkError(ValueError):
    """A chunk file that is not what was written."""


class ForeignChunkError(ValueError):
    """A whole chunk, but of another recipe or of other samples than asked for."""


class StaleChunkError(ForeignChunkError):
    """A whole chunk of the right recipe, but of other samples than asked for."""


@dataclass(frozen=True)
class ChunkIdentity:
    """What a chunk must match to be used: its recipe and its members.

    Attributes:
        recipe: hash of the recipe (`files.hash_json`).
        members: hash of the members' identities in their order, with all they depend on.
    """

    recipe: str
    members: str


def chunk_path(folder: Path, index: int) -> Path:
    """The path of chunk `index` in its recipe's folder."""
    return folder / f"chunk-{index:06d}.safetensors"


def chunk_folder(root: Path, recipe_hash: str) -> Path:
    """The folder of one recipe's chunks: another recipe never shares, or overwrites, a file."""
    return root / recipe_hash[:12]


def write_chunk(
    path: Path,
    tensors: "Mapping[str, torch.Tensor]",
    identity: ChunkIdentity,
    about: Mapping[str, Any],
) -> None:
    """Write `as_chunk` atomically; parents of the path are made."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(as_chunk(tensors, identity, about))


def as_chunk(
    tensors: "Mapping[str, torch.Tensor]", identity: ChunkIdentity, about: Mapping[str, Any]
) -> bytes:
    """A chunk's bytes.

    Args:
        tensors: name to tensor on any device.
        identity: recipe and members, checked by every reader.
        about: JSON facts for people (which prompts); not interpreted.
    """
    from safetensors.torch import save

    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"recipe": identity.recipe, "members": identity.members, "about": about}
    sealed = canonical_json({**header, "checksum": _checksum(header, on_cpu)})
    return save(on_cpu, metadata={HEADER: sealed})


def check_header(path: Path, identity: ChunkIdentity) -> None:
    """Check without reading the tensors that a chunk exists, is whole, and is the one asked for.

    Raises:
        DamagedChunkError: missing, truncated, or not a chunk.
        ForeignChunkError: of another recipe.
        StaleChunkError: of other members.
    """
    actual = read_identity(path)
    if actual.recipe != identity.recipe:
        raise ForeignChunkError(
            f"{path} was made by recipe {actual.recipe[:12]}, this run's recipe is "
            f"{identity.recipe[:12]}: move the file away, or restore its configuration"
        )
    if actual.members != identity.members:
        raise StaleChunkError(
            f"{path} was made from other prompts or samples than the prompt table now has there"
        )


def read_chunk(path: Path, identity: ChunkIdentity) -> "dict[str, torch.Tensor]":
    """Read a chunk's tensors and verify every byte against its checksum.

    Raises:
        DamagedChunkError, ForeignChunkError: as `check_header`, and for a flipped bit.
    """
    check_header(path, identity)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise _damaged(path, str(error)) from error
    header = _read_header(path)
    if _checksum(header, tensors) != header["checksum"]:
        raise _damaged(path, "its bytes do not match its checksum")
    return tensors


def read_identity(path: Path) -> ChunkIdentity:
    """The identity in a chunk's header, whatever was asked for; raises DamagedChunkError."""
    header = _read_header(path)
    return ChunkIdentity(header["recipe"], header["members"])


def is_intact(path: Path, identity: ChunkIdentity) -> bool:
    """Whether this very chunk is there, undamaged. A chunk of another recipe raises.

    One that is missing, damaged, or of other members may be made again by the caller.
    """
    try:
        read_chunk(path, identity)
    except (DamagedChunkError, StaleChunkError):
        return False
    return True


def _read_header(path: Path) -> dict[str, Any]:
    """What `write_chunk` put into the header."""
    if not path.is_file():
        raise DamagedChunkError(f"{path} is missing")
    try:
        with safe_open(path, framework="np") as file:  # whose metadata alone are read: no torch
            header: dict[str, Any] = json.loads((file.metadata() or {})[HEADER])
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise _damaged(path, f"{type(error).__name__} {error}") from error
    missing = {"recipe", "members", "about", "checksum"} - set(header)
    if missing:
        raise _damaged(path, f"its header lacks {', '.join(sorted(missing))}")
    return header


def _damaged(path: Path, why: str) -> DamagedChunkError:
    return DamagedChunkError(f"{path} is damaged ({why})")


def _checksum(header: Mapping[str, Any], tensors: "Mapping[str, torch.Tensor]") -> str:
    """SHA-256 over the header without its checksum, and names, types, shapes, bytes by name."""
    import torch

    about = {key: value for key, value in header.items() if key != "checksum"}
    digest = hashlib.sha256(f"{canonical_json(about)}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
