"""The images of one sampled model on disk: each saved whole, with its latents, as it is made."""

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pandas as pd
import torch
from PIL import Image

from distillery.files import hash_json
from distillery.images import Pixels, write_png
from distillery.noise import SampleId
from distillery.prompts import NEGATIVE, made_of_rows, texts_of_rows
from distillery.store.chunks import ChunkIdentity, is_intact, write_chunk

MAX_THREADS = 8
BLACK = "black"
"""Text in the PNG of an image whose every pixel is 0."""
PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
"""The last chunk of every PNG, which Pillow does not check."""
MAX_WAITING = 128
"""Images made but not yet saved, at most; 3 MB each at 1024 px."""


@dataclass(frozen=True)
class SampleFolder:
    """Where the images of one model lie, and which of them are there.

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
    samples: list[SampleId]
    images_per_prompt: int
    recipe_hash: str
    guided: bool = True
    fps: int = 1

    @cached_property
    def _texts(self) -> list[list[str]]:
        return texts_of_rows(self.table, self.guided)

    @cached_property
    def _made_of(self) -> list[list[Any]]:
        return made_of_rows(self.table, self.guided)

    def prompt(self, row: int) -> str:
        """The text of a sample."""
        return str(self.table["prompt"].iloc[row // self.images_per_prompt])

    def name(self, row: int) -> str:
        """Prompt id and index, in messages."""
        return str(self.samples[row])

    def image(self, row: int) -> Path:
        """Where a sample's image lies."""
        sample = self.samples[row]
        return self.root / sample.prompt_id / f"{sample.index}.png"

    def latents(self, row: int) -> Path:
        """Where a sample's latents lie."""
        return self.image(row).with_suffix(".safetensors")

    def identity(self, row: int) -> ChunkIdentity:
        """Recipe and member of one image, as in its PNG and beside its latents."""
        made_of = self._made_of[row // self.images_per_prompt]
        return ChunkIdentity(self.recipe_hash, member_of(self.samples[row], made_of))

    def is_done(self, row: int) -> bool:
        """Whether image and latents are there, whole, and of this recipe."""
        identity = self.identity(row)
        try:
            latents_done = is_intact(self.latents(row), identity)
        except ValueError:  # latents of an earlier recipe: they are derived, so they are replaced
            latents_done = False
        return latents_done and identity_in(self.image(row)) == identity

    def save(self, row: int, image: Pixels, latents: torch.Tensor) -> None:
        """Save latents (*latent), then the image: where the image is, both are."""
        identity = self.identity(row)
        write_chunk(
            self.latents(row), {"latents": latents}, identity, {"samples": [self.name(row)]}
        )
        texts = {"recipe": identity.recipe, "members": identity.members}
        own = self._texts[row // self.images_per_prompt]
        texts |= dict(zip(("prompt", NEGATIVE), own, strict=False))
        if not image.any():
            texts[BLACK] = "every pixel is 0"
        write_png(self.image(row), image, texts, self.fps)

    def is_black(self, row: int) -> bool:
        """Whether every pixel of an image that is there is 0; reads only its texts."""
        with Image.open(self.image(row)) as image:
            return BLACK in getattr(image, "text", {})


def member_of(sample: SampleId, made_of: Sequence[Any]) -> str:
    """The digest of an image's sample and of what it is made from, see `made_of_rows`."""
    return hash_json({"samples": [[sample.prompt_id, sample.index, *made_of]]})


def identity_in(path: Path) -> ChunkIdentity | None:
    """The identity in a PNG; None where it is none of ours, or damaged (a CRC does not hold)."""
    try:
        with Image.open(path) as image:
            image.verify()
        with Image.open(path) as image:
            texts = getattr(image, "text", {})
        with path.open("rb") as file:
            file.seek(-len(PNG_END), os.SEEK_END)
            is_ended = file.read() == PNG_END
        return ChunkIdentity(texts["recipe"], texts["members"]) if is_ended else None
    except (OSError, SyntaxError, ValueError, KeyError):
        return None


class SaveThreads:
    """Threads that save while the GPU continues; the compression releases Python's lock.

    Leaving the context waits for all, and raises the first error that saving met.
    """

    def __init__(self, num_frames: int = 1) -> None:
        """As many threads as the job has cores, within reason.

        Args:
            num_frames: of each sample; fewer clips than images wait, since each is larger.
        """
        self._most = max(MAX_THREADS, MAX_WAITING // num_frames)
        self._pool = ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), MAX_THREADS))
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        """Start."""
        return self

    def submit(self, work: Callable[[], None]) -> None:
        """Queue `work`; waits while too much is queued. Raises what earlier work raised."""
        self._waiting.append(self._pool.submit(work))
        while self._waiting and (self._waiting[0].done() or len(self._waiting) > self._most):
            self._waiting.popleft().result()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish what was submitted; a disk that is full must not pass unnoticed."""
        self._pool.shutdown(wait=True)
        if error is None:
            for future in self._waiting:
                future.result()
