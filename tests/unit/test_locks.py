"""Locks of runs and jobs: one holder, named; free when its process has ended, however it ended."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from distillery.locks import alone, explain_write, hold_run, job_lock, on_way, quiet
from distillery.notes import refuse

HOLD = """
import sys, time
from pathlib import Path
from distillery import locks
getattr(locks, sys.argv[1])(Path(sys.argv[2]))
print("held", flush=True)
time.sleep(60)
"""


def holder(function: str, path: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, function, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_a_link_to_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "results").symlink_to(tmp_path / "unmounted")
    with pytest.raises(ValueError, match="a link to one that is not there"):
        hold_run(tmp_path / "results" / "demo")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=f"since {tmp_path}/file is no folder"):
        refuse(on_way(tmp_path / "file" / "demo"))
    refuse(on_way(tmp_path / "new" / "demo"))
    assert not (tmp_path / "new").exists()


def test_a_run_has_one_snakemake_until_that_is_killed(tmp_path: Path) -> None:
    process = holder("hold_run", tmp_path)
    with pytest.raises(ValueError, match=f"another snakemake, process {process.pid} of ") as no:
        hold_run(tmp_path)
    assert len(str(no.value).splitlines()) == 1
    kill(process)
    again = holder("hold_run", tmp_path)
    kill(again)


def test_a_job_waits_for_the_one_that_is_at_work_and_says_so(tmp_path: Path) -> None:
    path = job_lock(tmp_path, "targets-0-of-2")
    process, told = holder("take", path), list[str]()
    subprocess.Popen(
        [sys.executable, "-c", f"import os, time; time.sleep(1); os.kill({process.pid}, 9)"]
    )
    begin_s = time.monotonic()
    with alone(path, told.append):
        assert time.monotonic() - begin_s > 0.5
        assert told == [
            f"waiting for process {process.pid} of {os.uname().nodename}, which is still at work "
            "on targets-0-of-2"
        ]
    kill(process)


def test_a_job_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    told: list[str] = []
    for _ in range(2):
        with alone(tmp_path / "job", told.append):
            pass
    assert not told


def test_a_command_inherits_the_lock(tmp_path: Path) -> None:
    """As torchrun does from with_gpus."""
    lock = tmp_path / "train"
    command = [sys.executable, "-m", "distillery.with_gpus", "--num-gpus", "0"]
    command += ["--alone", str(lock), "--", "bash", "-c", "echo held; exec sleep 60"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    assert first.stdout.readline() == "held\n"
    second = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert second.stderr is not None
    assert f"waiting for process {first.pid} of" in second.stderr.readline()
    assert second.poll() is None
    kill(first)
    assert second.stdout is not None
    assert second.stdout.readline() == "held\n"
    second.stderr.close()
    kill(second)


def test_who_comes_second_waits_and_is_told_so(tmp_path: Path) -> None:
    waited: list[bool] = []

    def come_second() -> None:
        with alone(tmp_path / "lock", quiet) as had_to_wait:
            waited.append(had_to_wait)

    second = threading.Thread(target=come_second)
    with alone(tmp_path / "lock", quiet) as had_to_wait:
        assert not had_to_wait
        second.start()
        second.join(0.2)
        assert second.is_alive()
    second.join(10)
    assert waited == [True]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EACCES])
def test_a_file_system_without_locks_stops_nothing(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    if number == errno.EACCES:
        with pytest.raises(PermissionError), alone(tmp_path / "lock", quiet):
            pass
        return
    with alone(tmp_path / "lock", quiet) as had_to_wait:
        assert not had_to_wait


def test_a_full_disk_or_a_folder_of_another_user_is_told_with_advice() -> None:
    full = explain_write(OSError(errno.ENOSPC, "No space left on device", "results/a/.lock"))
    assert full.startswith("results/a/.lock cannot be written, since no space is left")
    assert full.endswith("free some space, or make results/ a link to a larger disk")
    for number in (errno.EACCES, errno.EPERM, errno.EROFS):
        told = explain_write(OSError(number, os.strerror(number), "results/a/.lock"))
        assert told.startswith(f"results/a/.lock cannot be written ({os.strerror(number)}): the")
        assert "chmod -R g+w" in told
    assert explain_write(OSError(errno.EIO, "broken")) == str(OSError(errno.EIO, "broken"))
