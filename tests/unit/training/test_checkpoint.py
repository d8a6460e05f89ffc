"""A folder of checkpoints: what counts as one, who may write there, and a disk that is full."""

import errno
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from distillery.telemetry import Reporter, explain_errors
from distillery.training import checkpoint, loop
from distillery.training.state import Window
from in_process import train

WORKFLOW = Path(__file__).parents[3] / "workflow"
RECIPE = "0" * 64
HOLDER = """
import os, pathlib, sys, time
from distillery.telemetry import Reporter
from distillery.training import checkpoint
root = pathlib.Path(sys.argv[1])
checkpoint.claim(root, Reporter(root / "telemetry", "training", "training", "cpu"))
child = os.fork()
if child == 0:
    os.close(1)
    time.sleep(60)
print(child, flush=True)
time.sleep(60)
"""


@pytest.fixture
def reporter(tmp_path: Path) -> Reporter:
    return Reporter(tmp_path / "telemetry", "training", "training", "cpu")


def write(root: Path, samples_seen: int, keep: int = 2) -> Path:
    tensors = {checkpoint.WEIGHTS: {"weight": torch.zeros(100_000)}}
    snapshot = checkpoint.Snapshot(tensors, [], Window.empty(4), samples_seen)
    return checkpoint.write(snapshot, root, RECIPE, keep)


@pytest.mark.parametrize("suffix", ["-best", ".bak", "0"])
def test_a_users_copy_is_no_checkpoint(tmp_path: Path, reporter: Reporter, suffix: str) -> None:
    copy = tmp_path / f"samples-000000000032{suffix}"
    copy.mkdir()
    for samples_seen in (16, 48, 64, 80):
        newest = write(tmp_path, samples_seen, keep=1)
    assert copy.is_dir()
    assert checkpoint.find_newest(tmp_path, RECIPE, reporter) == newest
    with pytest.raises(ValueError, match="kept are those after 80 samples"):
        checkpoint.read_student(tmp_path, 16, RECIPE)


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """Python ignores the signal, so a longer file is an error as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_cannot_be_written_is_an_error_of_the_disk(tmp_path: Path) -> None:
    before = write(tmp_path, 8)
    with files_of_at_most(100_000), pytest.raises(OSError, match=r"weights\.safetensors") as found:
        write(tmp_path, 16)
    assert found.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == [before]


def test_a_full_disk_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", fail)
    assert explain_errors(lambda: str(write(tmp_path, 8)) and None) == 1
    message = capsys.readouterr().err
    assert "No space left on device" in message
    assert "free some space" in message
    assert "Traceback" not in message


@pytest.mark.parametrize("old", ["48", '"losses": [', "files", RECIPE])
def test_a_state_that_changed_is_passed_over_for_an_older_one(
    tmp_path: Path, reporter: Reporter, caplog: pytest.LogCaptureFixture, old: str
) -> None:
    """A position in the stream that is not the weights' would go on, and end somewhere else."""
    older, newer = write(tmp_path, 32), write(tmp_path, 48)
    state = newer / checkpoint.STATE
    text = state.read_text()
    changed = text.replace(old, old[:-1] + ("7" if old[-1].isalnum() else "[7,"))
    assert changed != text
    state.write_text(changed)
    assert checkpoint.find_newest(tmp_path, RECIPE, reporter) == older
    assert f"{newer} is skipped: state.json is damaged" in caplog.text
    with pytest.raises(ValueError, match=r"cannot be used: state\.json is damaged"):
        checkpoint.read_student(tmp_path, 48, RECIPE)
    assert checkpoint.find_problem(older) is None
    assert checkpoint.find_problem(newer) is not None


@contextmanager
def holder(root: Path) -> Iterator["tuple[subprocess.Popen[str], int]"]:
    """Another process that writes in a folder, and one that it has forked."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(WORKFLOW)},
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        yield process, child
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.kill(child, signal.SIGKILL)


@pytest.mark.slow
def test_a_second_training_in_a_folder_ends_at_once(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also after kill -9, when what the first had forked still lives: the folder is then free."""
    # This process holds the folder of its own training for good, so the other takes a copy.
    assert train(data, tmp_path / "once") == 0
    again = tmp_path / "again"
    shutil.copytree(tmp_path / "once", again)
    (root,) = (again / "student/checkpoints").iterdir()
    before = sorted(root.glob("samples-*"))
    half = root / ".samples-000000000064.x1.tmp"
    half.mkdir()
    with holder(root) as (first, child):
        assert train(data, again) == 1
        assert f"another training, process {first.pid} of " in capsys.readouterr().err
        assert half.is_dir(), "the first one writes it"
        first.kill()
        first.wait()
        os.kill(child, 0)
        assert train(data, again) == 0
    assert not half.exists()
    assert sorted(root.glob("samples-*")) == before


def test_a_file_system_without_locks_is_worth_a_warning(
    tmp_path: Path,
    reporter: Reporter,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", fail)
    checkpoint.claim(tmp_path, reporter)
    assert "cannot be locked (No locks available)" in caplog.text


def test_a_folder_that_cannot_be_written_to_is_found_before_anything_is_learned(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(loop, "loop", lambda *_: pytest.fail("it has begun to learn"))
    (tmp_path / "student").mkdir()
    (tmp_path / "student/checkpoints").touch()
    assert train(data, tmp_path) == 1
    message = capsys.readouterr().err
    assert "no checkpoints can be written, Not a directory" in message
    assert str(tmp_path / "student/checkpoints") in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_no_place_for_checkpoints(tmp_path: Path, reporter: Reporter) -> None:
    """Also where the file of the lock is there from before."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / checkpoint.LOCK).touch()
    (tmp_path / "folder").chmod(0o500)
    with pytest.raises(PermissionError, match="no checkpoints can be written"):
        checkpoint.claim(tmp_path / "folder", reporter)
