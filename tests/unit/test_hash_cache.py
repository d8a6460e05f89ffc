"""Hashes of large files: every bit counts, and what has not changed is not read again."""

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from distillery import hash_cache
from distillery.config.teacher import Teacher
from distillery.files import hash_json, read_json, write_json
from distillery.hash_cache import (
    BLOCK_BYTES,
    REMEMBERED_BYTES,
    cache_folder,
    hash_large_files,
)
from distillery.teacher.adapters import teacher_hash
from distillery.teacher.folder import PipelineFolder
from runs import generating_settings, make_run, planned, settings

DEMO = Path(__file__).parents[2] / "resources/demo/teacher"
SIZES = {"height": 48, "width": 48, "max_sequence_length": 32}
BYTES = (3 << 20) + 5


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's folder; files count as settled after 15 ms, more than a tick of file times."""
    monkeypatch.setenv("DISTILLERY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hash_cache, "SETTLED_NS", 15 * 10**6)
    return tmp_path / "cache"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.safetensors"
    with path.open("wb") as file:
        file.truncate(BYTES)
    return path


def hashed(path: Path) -> str:
    """The hash of a file that was left alone for a while."""
    time.sleep(0.03)
    return hash_large_files([path])[path]


def flip(path: Path, place: int, mtime: bool = False) -> None:
    """Flip a bit; with `mtime` the modification time is put back."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 4]))
    if mtime:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert path.stat().st_mtime_ns == status.st_mtime_ns


def entries(cache: Path) -> list[Path]:
    return sorted((cache / "hashes").glob("*"))


def forge(entry: Path) -> str:
    """Put another hash into an entry, as if the file had it."""
    content = read_json(entry)
    content["digest"] = "f" * 64
    del content["check"]
    write_json(entry, content | {"check": hash_json(content)})
    return "f" * 64


@pytest.mark.parametrize("place", [0, BYTES // 2, BYTES - 1])
def test_one_bit_is_another_hash(cache: Path, weights: Path, place: int) -> None:
    found = {hashed(weights)}
    flip(weights, place)
    found.add(hashed(weights))
    flip(weights, 7, mtime=True)
    found.add(hashed(weights))
    assert len(found) == len(entries(cache)) == 3


def test_a_file_put_in_its_place_is_another_file(cache: Path, weights: Path) -> None:
    before, times = hashed(weights), weights.stat()
    other = weights.with_name("other")
    other.write_bytes(bytes(BYTES - 1) + b"x")
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(weights)
    assert hashed(weights) != before


def test_the_hash_is_that_of_the_blocks(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"", b"abc", os.urandom(2 * BLOCK_BYTES), os.urandom(2 * BLOCK_BYTES + 1)):
        path.write_bytes(content)
        parts = [
            content[start : start + BLOCK_BYTES] for start in range(0, len(content), BLOCK_BYTES)
        ]
        expected = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts))
        assert hash_large_files([path]) == {path: expected.hexdigest()}


def test_what_has_not_changed_is_not_read_again(cache: Path, weights: Path) -> None:
    before = hashed(weights)
    (entry,) = entries(cache)
    assert hash_large_files([weights])[weights] == before
    forged = forge(entry)
    assert hash_large_files([weights])[weights] == forged, "it was read"
    link = weights.with_name("link")
    link.symlink_to(weights)
    assert hash_large_files([link])[link] == forged


def test_a_small_file_is_read_each_time(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    hashed(tmp_path / "config.json")
    assert entries(cache) == []


def test_the_smallest_file_that_is_remembered(cache: Path, weights: Path) -> None:
    os.truncate(weights, REMEMBERED_BYTES - 1)
    hashed(weights)
    assert entries(cache) == []
    os.truncate(weights, REMEMBERED_BYTES)
    hashed(weights)
    (entry,) = entries(cache)
    forged = forge(entry)
    assert hash_large_files([weights])[weights] == forged, "it was read"


def test_an_entry_holds_what_later_versions_look_for(cache: Path, weights: Path) -> None:
    """Another name in it, and each version would read all teachers again."""
    status = weights.stat()
    content = {
        "file": {
            "path": str(weights.resolve()),
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "ctime_ns": status.st_ctime_ns,
            "inode": status.st_ino,
        },
        "block_bytes": BLOCK_BYTES,
        "digest": hashed(weights),
    }
    (entry,) = entries(cache)
    assert read_json(entry) == content | {"check": hash_json(content)}


def test_a_file_just_written_is_not_remembered(
    cache: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hash_cache, "SETTLED_NS", 60 * 10**9)
    hashed(weights)
    assert entries(cache) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"digest": NaN}', b'{"digest": "aa"}', None],
)
def test_a_damaged_entry_is_not_believed(cache: Path, weights: Path, content: bytes | None) -> None:
    before = hashed(weights)
    (entry,) = entries(cache)
    whole = entry.read_bytes()
    entry.write_bytes(whole.replace(before.encode(), b"e" * 64) if content is None else content)
    assert hash_large_files([weights])[weights] == before
    assert entry.read_bytes() == whole, "and it is written anew"


def test_an_entry_of_another_file_is_not_believed(cache: Path, weights: Path) -> None:
    hashed(weights)
    (entry,) = entries(cache)
    forge(entry)
    flip(weights, 1)
    after = hashed(weights)
    (new,) = set(entries(cache)) - {entry}
    entry.replace(new)
    assert hash_large_files([weights])[weights] == after


@pytest.mark.parametrize("kind", ["file in its place", "folder in an entry's place", "no home"])
def test_a_cache_that_cannot_be_written_is_told_once(
    kind: str,
    cache: Path,
    weights: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = hashed(weights)
    if kind == "no home":
        monkeypatch.setattr(hash_cache, "cache_folder", lambda: None)
    elif kind == "file in its place":
        # Root may write everywhere, but not below a file.
        monkeypatch.setenv("DISTILLERY_CACHE", str(weights / "cache"))
    flip(weights, 2)
    if kind == "folder in an entry's place":
        # As on a full disk, what fails is a temporary file, whose name is another each time.
        hash_cache._entry_path(cache, hash_cache._identify(weights)).mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        first, second = hashed(weights), hashed(weights)
    assert first == second != before
    assert [record.message for record in caplog.records if "DISTILLERY_CACHE" in record.message]
    assert len(caplog.records) == 1


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("DISTILLERY_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/someone/.cache/distillery")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path("/home/someone/.cache/distillery")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/distillery")
    monkeypatch.setenv("DISTILLERY_CACHE", "/elsewhere")
    assert cache_folder() == Path("/elsewhere")


def test_a_long_wait_is_told(
    cache: Path,
    weights: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(hash_cache, "TELL_EVERY_S", 0.0)
    with caplog.at_level(logging.INFO):
        hashed(weights)
        hashed(weights)
    (record,) = caplog.records
    assert "0.0 of 0.0 GiB" in record.message
    caplog.clear()
    os.truncate(weights, 2 * BLOCK_BYTES + BLOCK_BYTES // 2)
    monkeypatch.setattr(hash_cache, "GIB", BLOCK_BYTES)
    with caplog.at_level(logging.INFO):
        hashed(weights)
    told = [record.message.split("jobs: ")[1].split(" GiB")[0] for record in caplog.records]
    assert told == ["1.0 of 2.5", "2.0 of 2.5", "2.5 of 2.5"]


def test_a_file_that_cannot_be_read_is_an_error(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        hash_large_files([tmp_path / "none"])


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A copy of the demo's teacher, with files of megabytes."""
    shutil.copytree(DEMO, tmp_path / "demo")
    return tmp_path / "demo"


def scale_attention(folder: Path) -> None:
    """An attention-only fine-tune, as far as the files show it: sizes and ends stay."""
    path = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    tensors, before = load_file(path), path.read_bytes()
    chosen = [name for name in tensors if name.startswith(("blocks.1.attn", "blocks.2.attn"))]
    assert chosen
    save_file(tensors | {name: tensors[name] * -1.5 for name in chosen}, path, {"format": "pt"})
    after = path.read_bytes()
    assert len(after) == len(before) != after
    mib = 1 << 20
    assert (after[:mib], after[-mib:]) == (before[:mib], before[-mib:])


def test_other_attention_weights_are_another_teacher_whose_targets_are_made(
    cache: Path, demo: Path, tmp_path: Path
) -> None:
    quick = {"steps": 2, "guidance_scale": 1.0}
    run = make_run(tmp_path / "run", demo, teacher=SIZES, targets=quick)
    run.encode("train")
    run.all_targets()
    before = set((run.folder / "targets").glob("*/chunk-*"))
    scale_attention(demo)
    run.encode("train")
    run.all_targets()
    after = set((run.folder / "targets").glob("*/chunk-*"))
    assert len(after) == 2 * len(before)
    bytes_of = [sorted(path.read_bytes() for path in paths) for paths in (before, after - before)]
    assert not set(bytes_of[0]) & set(bytes_of[1])


@pytest.mark.parametrize("kind", [settings, generating_settings])
def test_the_plan_reads_the_teacher_and_the_jobs_do_not(
    kind: Callable[..., dict[str, Any]], cache: Path, demo: Path, tmp_path: Path
) -> None:
    time.sleep(0.03)
    found = planned(kind(tmp_path, demo, teacher=SIZES), tmp_path)["teacher"]["hash"]
    section = Teacher(path=str(demo), **SIZES)
    assert teacher_hash(section, PipelineFolder(demo)) == found
    large = [path for path in demo.rglob("*") if path.stat().st_size >= 1 << 20 and path.is_file()]
    assert len(entries(cache)) == len(large) == 2
    forge(entries(cache)[0])
    assert teacher_hash(section, PipelineFolder(demo)) != found, "it was read"
