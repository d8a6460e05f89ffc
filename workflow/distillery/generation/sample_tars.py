"""Samples in tars of a fixed number of samples each, which grow sample by sample.

A tar that is written has another name, and grows at its end alone: after a crash all whole samples
in it are found again. It gets its name when it is complete, in the order of its samples. So its
bytes depend neither on the number of jobs nor on where one of them was stopped. A complete tar
with damage in it is read as far as it is whole, and written anew with what was made again.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from distillery.files import atomic_path, canonical_json, rename
from distillery.generation.sample_folder import SampleFolder
from distillery.generation.sample_store import Encoded, SampleStore, Units
from distillery.images import Pixels
from distillery.noise import noise_seed
from distillery.stage import balanced_range
from distillery.store.sample_files import HASHES, IMAGE, LATENTS, SPANS
from distillery.store.tars import (
    END,
    JSON,
    PART,
    TAR,
    Span,
    TarSample,
    entry,
    placed,
    read_span,
    samples_in,
)

SUFFIXES = {IMAGE: "png", LATENTS: "safetensors"}


@dataclass(frozen=True)
class Found:
    """A sample that is there, whole: the tar that has it, where, and its JSON."""

    tar: Path
    sample: TarSample
    about: dict[str, Any]


@dataclass
class Part:
    """The tar that a job works at, and what is there of it.

    Attributes:
        rows: of its samples, in order.
    """

    tar: Path
    rows: Sequence[int]
    found: dict[int, Found] = field(default_factory=dict)

    @property
    def growing(self) -> Path:
        """The tar while it is written."""
        return self.tar.with_name(self.tar.name + PART)

    def is_exact(self, tar: Path, end: bytes) -> bool:
        """Whether a file holds the samples in order, then `end`, and nothing else."""
        found = [self.found.get(row) for row in self.rows]
        there = [it.sample for it in found if it is not None and it.tar == tar]
        if len(there) < len(found) or there[0].begin != 0:
            return False
        is_joined = all(one.end == other.begin for one, other in pairwise(there))
        rest = Span(there[-1].end, len(end))
        return (
            is_joined
            and tar.stat().st_size == rest.begin + rest.size
            and read_span(tar, rest) == end
        )


@dataclass
class SampleTars(SampleStore):
    """images-00000.tar and so on, see `store.tars`.

    Attributes:
        images_per_tar: rounded up to whole units.
        seed: of the run, from which each sample's noise follows.
    """

    images_per_tar: int = 1
    seed: int = 0
    _part: Part = field(default_factory=lambda: Part(Path(), ()), init=False)

    def parts(self, units: Units, shard: tuple[int, int]) -> list[tuple[int, Units]]:
        """A part is a tar."""
        each = -(-self.images_per_tar // max(map(len, units), default=1))
        tars = [units[first : first + each] for first in range(0, len(units), each)]
        return [(number, tars[number]) for number in balanced_range(len(tars), *shard)]

    def begin(self, number: int, units: Units) -> None:
        """Read a tar, and what was written of it; take over what lies in files of its own."""
        rows = [row for unit in units for row in unit]
        part = self._part = Part(self.root / TAR.format(number=number), rows)
        if part.tar.is_file():
            self._find(part.tar)
        if part.growing.is_file() and not part.is_exact(part.tar, END):
            # What is torn off at the end would hide what follows.
            end = self._find(part.growing)
            with part.growing.open("r+b") as file:
                file.truncate(end)
        if any(self.root.glob("*/")):
            self._take_over()

    def _find(self, tar: Path) -> int:
        """Note the samples that are whole and of this recipe; returns where the last one ends."""
        rows, end = {self.name(row): row for row in self._part.rows}, 0
        for sample in samples_in(tar):
            end, row = sample.end, rows.get(sample.name)
            if row is not None and row not in self._part.found:
                about = read_about(tar, sample)
                if about is not None and self._about(row).items() <= about.items():
                    self._part.found[row] = Found(tar, sample, about)
        return end

    def _take_over(self) -> None:
        folder = SampleFolder(
            self.root, self.table, self.samples, self.images_per_prompt, self.recipe_hash,
            self.guided, self.fps,
        )  # fmt: skip
        for row in self._part.rows:
            if not self.is_done(row) and folder.is_done(row):
                files = (folder.image(row), folder.latents(row))
                image, latents = (path.read_bytes() for path in files)
                self.keep(Encoded(row, image, latents, folder.is_black(row)))

    def is_done(self, row: int) -> bool:
        """As was found when the part began, or kept since."""
        return row in self._part.found

    def save(self, row: int, image: Pixels, latents: torch.Tensor) -> Encoded:
        """Its compression; the tar grows in order."""
        return self.encode(row, image, latents)

    def keep(self, encoded: Encoded | None) -> None:
        """Append a sample to the tar, in one write."""
        assert encoded is not None, "save returns it"
        row, name, growing = encoded.row, self.name(encoded.row), self._part.growing
        contents = {IMAGE: encoded.image, LATENTS: encoded.latents}
        hashes = {HASHES[kind]: hashlib.sha256(contents[kind]).hexdigest() for kind in contents}
        about = {**self._about(row), "is_black": encoded.is_black, **hashes}
        files = {f"{name}.{SUFFIXES[kind]}": contents[kind] for kind in contents}
        files[f"{name}.{JSON}"] = canonical_json(about).encode()
        self.root.mkdir(parents=True, exist_ok=True)
        with growing.open("ab") as file:
            begin = file.tell()
            file.write(b"".join(entry(*it) for it in files.items()))
        self._part.found[row] = Found(growing, placed(name, begin, files), about)

    def finish(self) -> None:
        """Name the tar, if all of it is there; written anew unless it grew in order."""
        part = self._part
        if part.is_exact(part.tar, END):
            part.growing.unlink(missing_ok=True)
        elif part.is_exact(part.growing, b""):
            with part.growing.open("ab") as file:
                file.write(END)
            rename(part.growing, part.tar)
            part.found = {
                row: Found(part.tar, it.sample, it.about) for row, it in part.found.items()
            }
        elif all(map(self.is_done, part.rows)):
            self._write_anew()
            part.growing.unlink(missing_ok=True)

    def _write_anew(self) -> None:
        part, found = self._part, dict[int, Found]()
        with atomic_path(part.tar) as temporary, temporary.open("wb") as file:
            for row in part.rows:
                it = part.found[row]
                found[row] = Found(part.tar, it.sample.moved(file.tell()), it.about)
                with it.tar.open("rb") as source:
                    source.seek(it.sample.begin)
                    file.write(source.read(it.sample.end - it.sample.begin))
            file.write(END)
        part.found = found

    def is_black(self, row: int) -> bool:
        """As its JSON says."""
        return bool(self._part.found[row].about["is_black"])

    def record(self, row: int) -> dict[str, Any]:
        """With the places in the tar."""
        it, record = self._part.found[row], dict[str, Any]()
        for kind, suffix in SUFFIXES.items():
            span = it.sample.files[suffix]
            record[kind] = f"{it.tar.name}/{it.sample.name}.{suffix}"
            record[HASHES[kind]] = it.about[HASHES[kind]]
            record |= zip(SPANS[kind], (span.begin, span.size), strict=True)
        return {**record, "is_black": self.is_black(row)}

    def _about(self, row: int) -> dict[str, Any]:
        """What a sample's JSON says of it beside its hashes; all follows from its identity."""
        sample, identity = self.samples[row], self.identity(row)
        return {
            "prompt_id": sample.prompt_id,
            "index": sample.index,
            **self.texts(row),
            "noise_seed": noise_seed(self.seed, sample),
            "recipe": identity.recipe,
            "members": identity.members,
        }


def read_about(tar: Path, sample: TarSample) -> dict[str, Any] | None:
    """The JSON of a sample in a tar; None unless its files are there with the hashes it gives."""
    if set(sample.files) != {*SUFFIXES.values(), JSON}:
        return None
    contents = {suffix: read_span(tar, span) for suffix, span in sample.files.items()}
    try:
        about = json.loads(contents[JSON] or b"")
    except ValueError:
        return None
    is_whole = isinstance(about, dict) and all(
        hashlib.sha256(contents[suffix] or b"").hexdigest() == about.get(HASHES[kind])
        for kind, suffix in SUFFIXES.items()
    )
    return about if is_whole else None
