"""Where the samples of one model lie while they are made: which are there, and each new one."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from distillery.files import hash_json
from distillery.images import Pixels, as_png
from distillery.noise import SampleId
from distillery.prompts import NEGATIVE, made_of_rows, texts_of_rows
from distillery.store.chunks import ChunkIdentity, as_chunk

BLACK = "black"
"""Text in the PNG of an image whose every pixel is 0."""
PROMPTS_AT_ONCE = 4096
"""Whose texts are held as Python's objects."""
Units = Sequence[Sequence[int]]
"""Rows of samples in groups that are drawn together."""


@dataclass(frozen=True)
class Encoded:
    """A sample as bytes: its PNG, and its latents as a chunk."""

    row: int
    image: bytes
    latents: bytes
    is_black: bool


@dataclass
class SampleStore(ABC):
    """The samples of one model.

    Attributes:
        root: results/{run}/samples/{model}.
        table: the prompts, by row.
        samples: in their global order; a row number of the methods below counts them.
        images_per_prompt: samples of each prompt.
        guided: whether negative prompts count.
        fps: frames of a clip per second.
    """

    root: Path
    table: pd.DataFrame
    samples: Sequence[SampleId]
    images_per_prompt: int
    recipe_hash: str
    guided: bool = True
    fps: int = 1

    _block: tuple[int, list[list[str]], list[list[Any]]] = field(default=(-1, [], []), init=False)

    def _of_prompt(self, row: int) -> tuple[list[str], list[Any]]:
        """A sample's texts, and all that it is made from; found for a block of prompts at once."""
        number, place = divmod(row // self.images_per_prompt, PROMPTS_AT_ONCE)
        block = self._block
        if block[0] != number:
            first = number * PROMPTS_AT_ONCE
            prompts = self.table.iloc[first : first + PROMPTS_AT_ONCE]
            texts, made_of = (of(prompts, self.guided) for of in (texts_of_rows, made_of_rows))
            self._block = block = number, texts, made_of
        return block[1][place], block[2][place]

    def prompt(self, row: int) -> str:
        """The text of a sample."""
        return str(self.table["prompt"].iloc[row // self.images_per_prompt])

    def name(self, row: int) -> str:
        """Prompt id and index, in messages, and below the root without a suffix."""
        return str(self.samples[row])

    def identity(self, row: int) -> ChunkIdentity:
        """Recipe and member of one image, as in its PNG and beside its latents."""
        _, made_of = self._of_prompt(row)
        return ChunkIdentity(self.recipe_hash, member_of(self.samples[row], made_of))

    def texts(self, row: int) -> dict[str, str]:
        """What a sample's texts are called, and the texts."""
        own, _ = self._of_prompt(row)
        return dict(zip(("prompt", NEGATIVE), own, strict=False))

    def encode(self, row: int, image: Pixels, latents: torch.Tensor) -> Encoded:
        """A sample's files; the same in every store.

        Args:
            latents: (*latent).
        """
        identity, is_black = self.identity(row), not image.any()
        texts = {"recipe": identity.recipe, "members": identity.members, **self.texts(row)}
        if is_black:
            texts[BLACK] = "every pixel is 0"
        chunk = as_chunk({"latents": latents}, identity, {"samples": [self.name(row)]})
        return Encoded(row, as_png(image, texts, self.fps), chunk, is_black)

    @abstractmethod
    def parts(self, units: Units, shard: tuple[int, int]) -> list[tuple[int, Units]]:
        """What a job makes, in numbered parts that are finished one after another.

        Args:
            units: of the whole model.
            shard: the i-th of n balanced ranges, from 0.
        """

    @abstractmethod
    def begin(self, number: int, units: Units) -> None:
        """Look at what is there of a part; the next methods are for its rows."""

    @abstractmethod
    def is_done(self, row: int) -> bool:
        """Whether image and latents are there, whole, and of this recipe."""

    @abstractmethod
    def save(self, row: int, image: Pixels, latents: torch.Tensor) -> Encoded | None:
        """Encode a sample, in one of several threads, and save it where order means nothing."""

    @abstractmethod
    def keep(self, encoded: Encoded | None) -> None:
        """Take what `save` returned; called in the order of the rows."""

    @abstractmethod
    def finish(self) -> None:
        """Give the files of a part their names, if all of it is there."""

    @abstractmethod
    def is_black(self, row: int) -> bool:
        """Whether every pixel of an image that is there is 0."""

    @abstractmethod
    def record(self, row: int) -> dict[str, Any]:
        """Names and hashes of a sample's files as the table has them."""


def member_of(sample: SampleId, made_of: Sequence[Any]) -> str:
    """The digest of an image's sample and of what it is made from, see `made_of_rows`."""
    return hash_json({"samples": [[sample.prompt_id, sample.index, *made_of]]})
