"""Tar files of samples: whole samples one after another, the same bytes for the same samples.

The files of a sample have its name and lie side by side, `p0001/0.png`, `p0001/0.safetensors`,
`p0001/0.json`, as webdataset and `datasets` read them; its JSON comes last, so that a sample with
JSON is whole. The format is POSIX's ustar without times, owners and padding beyond its end.
"""

import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

END = tarfile.NUL * (2 * tarfile.BLOCKSIZE)
"""What every tar ends with; one that is still written has none."""
JSON = "json"
TAR = "images-{number:05d}.tar"
TARS = "images-*.tar"
PART = ".part"
"""The suffix of a tar that is still written."""


@dataclass(frozen=True)
class Span:
    """Where a file's bytes lie in a tar."""

    begin: int
    size: int

    @property
    def end(self) -> int:
        """Where the next entry begins."""
        return self.begin + self.size + -self.size % tarfile.BLOCKSIZE


@dataclass(frozen=True)
class TarSample:
    """The files of one sample, by their suffix.

    Attributes:
        name: without suffix, `p0001/0`.
        begin, end: of all its entries.
    """

    name: str
    begin: int
    end: int
    files: Mapping[str, Span]

    def moved(self, begin: int) -> "TarSample":
        """The same in a tar where it begins elsewhere."""
        by = begin - self.begin
        files = {suffix: Span(it.begin + by, it.size) for suffix, it in self.files.items()}
        return TarSample(self.name, begin, self.end + by, files)


def placed(name: str, begin: int, files: Mapping[str, bytes]) -> TarSample:
    """A sample whose files are written one after another."""
    spans, at = dict[str, Span](), begin
    for file, content in files.items():
        spans[file.rpartition(".")[2]] = span = Span(at + tarfile.BLOCKSIZE, len(content))
        at = span.end
    return TarSample(name, begin, at, spans)


def entry(name: str, content: bytes) -> bytes:
    """A file as it stands in a tar."""
    header = tarfile.TarInfo(name)
    header.size = len(content)
    padding = tarfile.NUL * (-len(content) % tarfile.BLOCKSIZE)
    return header.tobuf(tarfile.USTAR_FORMAT) + content + padding


def samples_in(tar: Path) -> Iterator[TarSample]:
    """The whole samples of a tar, in order; by its headers alone.

    Bytes that are no header are passed over, so that damage to one sample hides no other, and so is
    what is torn off at the end.
    """
    name, begin, end = "", 0, 0
    files: dict[str, Span] = {}
    with tar.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        at = 0
        while at + tarfile.BLOCKSIZE <= size:
            block = os.pread(file.fileno(), tarfile.BLOCKSIZE, at)
            try:
                header = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
            except (tarfile.HeaderError, UnicodeDecodeError):
                at += tarfile.BLOCKSIZE
                continue
            span = Span(at + tarfile.BLOCKSIZE, header.size)
            own, _, suffix = header.name.rpartition(".")
            if own != name or at != end or suffix in files:
                name, begin, files = own, at, {}
            if span.end > size:
                return
            files[suffix] = span
            at = end = span.end
            if suffix == JSON:
                yield TarSample(name, begin, end, files)
                name = ""


def read_span(tar: Path, span: Span) -> bytes | None:
    """A file's bytes; None where the tar is not there, or shorter."""
    try:
        with tar.open("rb", buffering=0) as file:
            content = os.pread(file.fileno(), span.size, span.begin)
    except OSError:
        return None
    return content if len(content) == span.size else None
