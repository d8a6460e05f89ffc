"""Whoever tidies up in the folder of the locks gives no device to two jobs."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distillery import slots

SCRIPT = Path(__file__).parents[2] / "workflow/distillery/with_gpus.py"
LOCK_FOLDER = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
"""

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISTILLERY_PRETEND_GPUS", "1")


@pytest.mark.parametrize("made_again", [False, True])
def test_a_lock_on_a_file_that_was_deleted_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_again: bool
) -> None:
    path, lock, deleted = tmp_path / "GPU-pretend-0", fcntl.flock, []
    path.touch()

    def delete_then_lock(descriptor: int, kind: int) -> None:
        """A cleaner comes once, after the file was opened and before it is locked."""
        if not deleted and os.path.samestat(os.fstat(descriptor), path.stat()):
            deleted.append(path)
            path.unlink()
            if made_again:
                path.touch()
        lock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", delete_then_lock)
    held = slots.acquire(1, tmp_path, 5)
    assert deleted
    with pytest.raises(TimeoutError):
        slots.acquire(1, tmp_path, 0)
    held.release()


def try_folder(folder: Path, *before: object) -> int:
    """Lock the folder as systemd-tmpfiles does, in a process of its own; its exit status."""
    command = [*before, sys.executable, "-I", "-S", "-c", LOCK_FOLDER, folder]
    return subprocess.run(list(map(str, command)), capture_output=True, check=False).returncode


def test_no_cleaner_gets_the_folder_while_a_device_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTILLERY_PRETEND_GPUS", "2")
    first, second = slots.acquire(1, tmp_path, 0), slots.acquire(1, tmp_path, 0)
    first.release()
    assert try_folder(tmp_path) == 1
    second.release()
    assert try_folder(tmp_path) == 0


def test_the_command_keeps_cleaners_out_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTILLERY_SLOTS", str(tmp_path))
    assert try_folder(tmp_path, sys.executable, SCRIPT, "--num-gpus", 1, "--") == 1
    assert try_folder(tmp_path) == 0
