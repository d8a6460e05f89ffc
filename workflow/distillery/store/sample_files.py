"""The files of samples as a model's table lists them: files of their own, or parts of a tar."""

import hashlib
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path

import pandas as pd

from distillery.run_folder import RunFolder
from distillery.store.tars import PART, TARS, Span, read_span, samples_in

IMAGE, LATENTS = "file", "latents_file"
"""The columns that name a sample's files, relative to the model's folder."""
HASHES = {IMAGE: "sha256", LATENTS: "latents_sha256"}
SPANS = {IMAGE: ("file_begin", "file_bytes"), LATENTS: ("latents_begin", "latents_bytes")}
"""Further columns of a table of tars: where in its tar a file begins, and how long it is."""
SPAN_COLUMNS = tuple(name for names in SPANS.values() for name in names)


@dataclass(frozen=True)
class SampleFile(ABC):
    """One image, or its latents.

    Attributes:
        folder: of the model.
        name: as the table has it.
        sha256: of its bytes.
    """

    folder: Path
    name: str
    sha256: str

    @property
    @abstractmethod
    def path(self) -> Path:
        """The file on the disk that has it."""

    @property
    def page(self) -> Path:
        """What a page links to, to see it."""
        return self.path

    @property
    def remade_without(self) -> tuple[Path, ...]:
        """What has to be removed, beside the tables, for it to be made again."""
        return (self.path,)

    @abstractmethod
    def read(self) -> bytes | None:
        """Its bytes; None where they are not there."""

    def put(self, path: Path) -> None:
        """Give it another path, beside its own or on another disk."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.read() or b"")

    def is_of(self, content: bytes) -> bool:
        """Whether bytes are those that the table lists."""
        return hashlib.sha256(content).hexdigest() == self.sha256

    def is_whole(self) -> bool:
        """Whether its bytes are there and are those that the table lists."""
        content = self.read()
        return content is not None and self.is_of(content)

    def __str__(self) -> str:
        """As messages name it."""
        return str(self.folder / self.name)


@dataclass(frozen=True)
class OwnFile(SampleFile):
    """A file of its own."""

    @property
    def path(self) -> Path:
        """Itself."""
        return self.folder / self.name

    def read(self) -> bytes | None:
        """The whole file."""
        return self.path.read_bytes() if self.path.is_file() else None

    def put(self, path: Path) -> None:
        """By a link, which takes no space, where that can be."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(self.path, path)
        except OSError:
            shutil.copyfile(self.path, path)


@dataclass(frozen=True)
class TarFile(SampleFile):
    """A part of a tar, whose name is the first part of its own."""

    span: Span

    @property
    def path(self) -> Path:
        """The tar."""
        return self.folder / self.name.partition("/")[0]

    @property
    def page(self) -> Path:
        """The gallery, for no browser looks into a tar."""
        return RunFolder(self.folder.parents[1]).gallery / "index.html"

    @property
    def remade_without(self) -> tuple[Path, ...]:
        """Nothing: a job makes what is damaged in a tar, and keeps the rest."""
        return ()

    def read(self) -> bytes | None:
        """Its bytes alone."""
        return read_span(self.path, self.span)


def images_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """The prompt's id and the file on the disk of each image in a model's folder; by names."""
    for path in folder.glob("*/*.png"):
        yield path.parent.name, path
    for tar in (*folder.glob(TARS), *folder.glob(TARS + PART)):
        for sample in samples_in(tar):
            yield sample.name.partition("/")[0], tar


def paths_listed(table: pd.DataFrame) -> set[str]:
    """The files on the disk that a table needs, relative to the model's folder."""
    if is_of_tars(table):
        return set(table[IMAGE].str.partition("/")[0])
    return {*table[IMAGE], *table[LATENTS]}


def is_of_tars(table: pd.DataFrame) -> bool:
    """Whether a table's samples lie in tars."""
    return SPANS[IMAGE][0] in table


def sample_file(folder: Path, table: pd.DataFrame, row: int, kind: str = IMAGE) -> SampleFile:
    """The image of a row, or its latents."""
    (files,) = sample_files(folder, table.iloc[row : row + 1], kind, 1)
    return files[0]


def sample_files(
    folder: Path, table: pd.DataFrame, kind: str, at_once: int
) -> Iterator[list[SampleFile]]:
    """The images of all rows, or their latents, so many at once."""
    for first in range(0, len(table), at_once):
        part = table.iloc[first : first + at_once]
        named = zip(part[kind].tolist(), part[HASHES[kind]].tolist(), strict=True)
        if is_of_tars(table):
            spans = starmap(Span, zip(*(part[name].tolist() for name in SPANS[kind]), strict=True))
            yield [TarFile(folder, *it, span) for it, span in zip(named, spans, strict=True)]
        else:
            yield [OwnFile(folder, *it) for it in named]
