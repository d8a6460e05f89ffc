"""Files that are either whole or absent: atomic writes, canonical JSON, hashes."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distillery.typed import command, typed_options

GIB = 1 << 30
BLOCK_BYTES = 1 << 25
MAX_THREADS = 8
SINGLE_FILES = (".safetensors", ".ckpt", ".gguf", ".pt", ".pth")
"""Suffixes of files that hold a whole pipeline."""
WEIGHT_FILES = (*SINGLE_FILES, ".bin")
"""Suffixes of files of weights."""
SEAL = "content_sha256"
"""The key of a JSON object that holds the hash of all others."""
JsonObject = Mapping[str, Any]
"""A JSON object. `Any` because JSON is untyped; models in `config` and `store` give it types."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success flush it to disk and rename it to `path`.

    A reader sees the old content or the new, never a part; a folder is absent for a moment between
    the removal of the old and the renaming of the new. On an error the temporary file or folder is
    removed and `path` stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    temporary.unlink()
    try:
        yield temporary
        rename(temporary, path)
    finally:
        remove(temporary)


def rename(written: Path, path: Path) -> None:
    """Flush a file or a folder to the disk and give it a name, in place of what has it."""
    for each in (written, *written.rglob("*")):
        _sync(each)
    if written.is_dir() and path.is_dir():
        shutil.rmtree(path)
    written.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Force a file's bytes, or a folder's entries, to the disk (POSIX fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file or a whole folder; do nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically with the permissions of an ordinary new file."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: JsonObject, sort_keys: bool = True) -> None:
    """Write a JSON object atomically, one key per line (for people and diffs).

    Keys are sorted, or stay in their order where that means something.
    """
    write_text(path, json.dumps(value, indent=2, sort_keys=sort_keys, allow_nan=False) + "\n")


def read_json(path: Path, made_with: Path | None = None) -> dict[str, Any]:
    """Read a JSON object; a file that is not one raises ValueError with its path.

    `made_with` is what the workflow must make again then, the file itself or the folder it is in;
    None for a file that it has not made, which it never advises to remove.
    """
    hint = repair_hint(made_with) if made_with else "copy or download it again"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # too many digits, or nested too deeply
        raise ValueError(f"{path} is not valid JSON ({error}): {hint}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a JSON {type(value).__name__}, an object is needed: {hint}")
    return value


def write_sealed(path: Path, value: JsonObject, sort_keys: bool = True) -> None:
    """Write a JSON object atomically with the hash of its content; see `read_sealed`."""
    content = {key: value[key] for key in value if key != SEAL}
    write_json(path, content | {SEAL: hash_json(content)}, sort_keys)


def read_sealed(
    path: Path, made_with: Path | None = None, may_be_open: bool = False
) -> dict[str, Any]:
    """Read what `write_sealed` wrote, without the seal.

    Args:
        made_with: the folder that must be made again; None where the file alone can be.
        may_be_open: whether a file without a seal is taken as it is.

    Raises:
        ValueError: the content is not what was written, or was written without a seal.
    """
    value = read_json(path, made_with or path)
    if may_be_open and SEAL not in value:
        return value
    if value.pop(SEAL, None) != hash_json(value):
        raise ValueError(
            f"{path} is damaged, or was written by another version (its content does not match "
            f"its {SEAL}): {repair_hint(made_with or path)}"
        )
    return value


def repair_hint(*paths: Path) -> str:
    """The advice at the end of a message about damage: a shell command, and what comes then.

    The rule `all` asks for everything that a rule declares as an output, so what is removed is made
    again also where the run was finished.

    Args:
        paths: what is damaged, and the files that list it; those that are there are named.
    """
    remove = command("rm", "-r", *(path for path in paths if path.exists()))
    return f"run `{remove}` and start the workflow again; undamaged files are kept"


def repair_commands(paths: Iterable[Path], frozen: Path, named: Sequence[str] = ()) -> list[str]:
    """The shell commands that make again what is damaged, for the folder of who calls the workflow.

    The run's frozen configuration is a configuration file like any other; where it is damaged
    itself, the user's own is needed.

    Args:
        paths: what is damaged or gone, and the files that list it; what is there is removed.
        frozen: results/{run}/config/run.json.
        named: files that the rule `all` does not ask for, nor for what is made of them.
    """
    paths = list(dict.fromkeys(paths))
    config = frozen if frozen.is_file() and frozen not in paths else "config/mine.yaml"
    targets = ["--", "all", *named] if named else []
    return [
        command("rm", "-r", *(path for path in paths if path.exists())),
        command("snakemake", *typed_options(), "--cores", "all", "--configfile", config, *targets),
    ]


def canonical_json(value: JsonObject) -> str:
    """One string per value: sorted keys, no white space, no NaN; what hashes are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def hash_json(value: JsonObject) -> str:
    """SHA-256 of the canonical JSON, as 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def readable(num_bytes: float) -> str:
    """A size for people: in GiB, small ones in MiB or KiB."""
    for unit, size in (("GiB", GIB), ("MiB", 1 << 20)):
        if num_bytes >= size / 10:
            value = num_bytes / size
            return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"
    return f"{num_bytes / 1024:.1f} KiB"


def could_be_hub_id(path: str) -> bool:
    """Whether a path in a configuration may name a hub repository, owner/name, and no file here."""
    is_local = path.startswith((".", "/", "~")) or path.lower().endswith(WEIGHT_FILES)
    return path.count("/") == 1 and not is_local


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes, as 64 hexadecimal digits.

    Python's lock is asked for twice a block, and each time a busy thread may keep it for 5 ms: with
    the quarter of a MiB that `hashlib.file_digest` reads, a checkpoint would take minutes beside a
    training.
    """
    digest = hashlib.sha256()
    block = memoryview(bytearray(min(BLOCK_BYTES, path.stat().st_size)))
    with path.open("rb", buffering=0) as file:
        while num_bytes := file.readinto(block):
            digest.update(block[:num_bytes])
    return digest.hexdigest()


def hash_files(paths: Iterable[Path]) -> dict[Path, str]:
    """`hash_file` of many, several at once."""
    paths = list(paths)
    with ThreadPoolExecutor(MAX_THREADS) as threads:
        return dict(zip(paths, threads.map(hash_file, paths), strict=True))
