"""Hashes of large files, each read once: every job asks for the teacher's, which may be 60 GB.

A hash is kept in a small file of its own under `cache_folder()`, by everything that the file system
says of the hashed file. The change time is part of it, which no program can set back: a file that
was written to and given its old modification time is read again. Entries are written atomically, so
jobs never disturb each other, and each carries a checksum of itself. Without a folder to write to,
everything is read in each job.
"""

import hashlib
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from distillery.files import GIB, MAX_THREADS, hash_json, read_json, write_json

CACHE_VARIABLE = "DISTILLERY_CACHE"
BLOCK_BYTES = 1 << 23
"""Blocks are hashed by several threads: one thread alone reads some 0.4 to 2 GB a second."""
REMEMBERED_BYTES = 1 << 20
"""A smaller file is read as fast as an entry about it."""
SETTLED_NS = 2 * 10**9
"""Times of a file advance in ticks of milliseconds, on some file systems of two seconds. One that
was changed within the last tick could change again and keep its time, so it is not remembered."""
TELL_EVERY_S = 10.0
LOG = logging.getLogger("distillery.hash_cache")


@dataclass(frozen=True)
class Identity:
    """What the file system says of a file's content; times in nanoseconds.

    The device's number is left out: on network file systems it differs between nodes and boots, so
    each node would read all files again.
    """

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


def cache_folder() -> Path | None:
    """$DISTILLERY_CACHE, else distillery in $XDG_CACHE_HOME or ~/.cache; None without a home."""
    chosen_folder = os.environ.get(CACHE_VARIABLE)
    if chosen_folder:
        return Path(chosen_folder).absolute()
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (shared if shared.is_absolute() else Path.home() / ".cache") / "distillery"
    except RuntimeError:
        return None


def hash_large_files(paths: Iterable[Path]) -> dict[Path, str]:
    """A hash of all bytes of each file, as 64 hexadecimal digits; read, or remembered.

    It is the SHA-256 of the SHA-256 of the file's blocks. Slow hashing is logged.
    """
    # Before anything is read: what is written to a file meanwhile changes its times.
    identities = {path: _identify(path) for path in paths}
    asked_ns, folder = time.time_ns(), cache_folder()
    cached = {path: _recall(folder, identity) for path, identity in identities.items()}
    read = _read({path: identities[path].size for path, known in cached.items() if known is None})
    for path, digest in read.items():
        if _is_worth_it(identities[path], asked_ns):
            _remember(folder, identities[path], digest)
    return {path: known or read[path] for path, known in cached.items()}


def _identify(path: Path) -> Identity:
    """Ask the open file: a network file system then asks its server, for a path it may not."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
    return Identity(
        str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
    )


def _is_worth_it(identity: Identity, asked_ns: int) -> bool:
    """Whether a file is large, and was left alone for a while when it was looked at."""
    return identity.size >= REMEMBERED_BYTES and asked_ns - identity.ctime_ns > SETTLED_NS


def _entry(identity: Identity, digest: str) -> dict[str, Any]:
    """What the cache keeps of a file; the last value is a checksum of the others."""
    content = {"file": asdict(identity), "block_bytes": BLOCK_BYTES, "digest": digest}
    return content | {"check": hash_json(content)}


def _entry_path(folder: Path, identity: Identity) -> Path:
    return folder / "hashes" / f"{hash_json(asdict(identity))[:32]}.json"


def _recall(folder: Path | None, identity: Identity) -> str | None:
    """A file's hash by its entry; None where there is none, or it is damaged."""
    if folder is None or identity.size < REMEMBERED_BYTES:
        return None
    try:
        entry = read_json(_entry_path(folder, identity))
        digest = str(entry.get("digest"))
        return digest if entry == _entry(identity, digest) else None
    except (OSError, ValueError, RecursionError):
        return None


def _remember(folder: Path | None, identity: Identity, digest: str) -> None:
    """Write an entry; where that is not possible the next job reads the file again."""
    try:
        if folder is None:
            raise FileNotFoundError("this user has no home folder")
        write_json(_entry_path(folder, identity), _entry(identity, digest))
    except OSError as error:
        # Only its words: the whole error names a temporary file, another one each time.
        reason = error.strerror or str(error)
        _warn_once(
            f"hashes of large files cannot be remembered in {folder} ({reason}), so each job reads "
            f"the teacher once more: set {CACHE_VARIABLE} to a folder that can be written"
        )


@lru_cache
def _warn_once(message: str) -> None:
    LOG.warning(message)


def _read(sizes: Mapping[Path, int]) -> dict[Path, str]:
    """Hash whole files, block by block, several blocks at once."""
    blocks = [(path, start) for path, size in sizes.items() for start in _starts(size)]
    digests = {path: hashlib.sha256() for path in sizes}
    with ThreadPoolExecutor(MAX_THREADS) as threads:
        hashed = threads.map(_hash_block, *zip(*blocks, strict=True)) if blocks else iter(())
        for (path, _), digest in zip(blocks, _logged(hashed, sum(sizes.values())), strict=True):
            digests[path].update(digest)
    return {path: digest.hexdigest() for path, digest in digests.items()}


def _starts(size: int) -> range:
    return range(0, size, BLOCK_BYTES)


def _hash_block(path: Path, start: int) -> bytes:
    """SHA-256 of one block of a file."""
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(BLOCK_BYTES)).digest()


def _logged(digests: Iterable[bytes], num_bytes: int) -> Iterator[bytes]:
    """Pass digests on, and log from time to time how many bytes they stand for."""
    begin_s = logged_s = time.monotonic()
    for number, digest in enumerate(digests, start=1):
        now_s = time.monotonic()
        if now_s - logged_s > TELL_EVERY_S:
            logged_s, done = now_s, min(number * BLOCK_BYTES, num_bytes) / GIB
            LOG.info(
                f"hashing weights, once for all jobs: {done:.1f} of {num_bytes / GIB:.1f} GiB, "
                f"{done / (now_s - begin_s):.2f} GiB/s"
            )
        yield digest
