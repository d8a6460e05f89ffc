"""Samples as files of their own: each saved whole, with its latents, as it is made."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from distillery.files import atomic_path, hash_file
from distillery.generation.sample_store import BLACK, Encoded, SampleStore, Units
from distillery.images import Pixels
from distillery.stage import balanced_range
from distillery.store.chunks import ChunkIdentity, is_intact

PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
"""The last chunk of every PNG, which Pillow does not check."""


@dataclass
class SampleFolder(SampleStore):
    """{prompt_id}/{index}.png, and .safetensors beside it."""

    def image(self, row: int) -> Path:
        """Where a sample's image lies."""
        return self.root / f"{self.name(row)}.png"

    def latents(self, row: int) -> Path:
        """Where a sample's latents lie."""
        return self.image(row).with_suffix(".safetensors")

    def parts(self, units: Units, shard: tuple[int, int]) -> list[tuple[int, Units]]:
        """All that a job makes is one part."""
        own = [units[index] for index in balanced_range(len(units), *shard)]
        return [(0, own)] if own else []

    def begin(self, number: int, units: Units) -> None:
        """Files are looked at one by one."""

    def is_done(self, row: int) -> bool:
        """Image and latents are read."""
        identity = self.identity(row)
        try:
            latents_done = is_intact(self.latents(row), identity)
        except ValueError:  # latents of an earlier recipe: they are derived, so they are replaced
            latents_done = False
        return latents_done and identity_in(self.image(row)) == identity

    def save(self, row: int, image: Pixels, latents: torch.Tensor) -> None:
        """The latents, then the image: where the image is, both are."""
        encoded = self.encode(row, image, latents)
        _write(self.latents(row), encoded.latents)
        _write(self.image(row), encoded.image)

    def keep(self, encoded: Encoded | None) -> None:
        """They are saved already."""

    def finish(self) -> None:
        """They have their names already."""

    def is_black(self, row: int) -> bool:
        """Reads only its texts."""
        with Image.open(self.image(row)) as image:
            return BLACK in getattr(image, "text", {})

    def record(self, row: int) -> dict[str, Any]:
        """Hashes the files as they lie on the disk."""
        image, latents = self.image(row), self.latents(row)
        return {
            "file": image.relative_to(self.root).as_posix(),
            "sha256": hash_file(image),
            "latents_file": latents.relative_to(self.root).as_posix(),
            "latents_sha256": hash_file(latents),
            "is_black": self.is_black(row),
        }


def _write(path: Path, content: bytes) -> None:
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def identity_in(png: Path | bytes) -> ChunkIdentity | None:
    """The identity in a PNG; None where it is none of ours, or damaged (a CRC does not hold)."""
    try:
        content = png.read_bytes() if isinstance(png, Path) else png
        with Image.open(io.BytesIO(content)) as image:
            image.verify()
        with Image.open(io.BytesIO(content)) as image:
            texts = getattr(image, "text", {})
        is_ended = content.endswith(PNG_END)
        return ChunkIdentity(texts["recipe"], texts["members"]) if is_ended else None
    except (OSError, SyntaxError, ValueError, KeyError):
        return None
