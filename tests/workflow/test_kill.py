"""A Snakemake that is killed: nothing to unlock, and a job that outlives it is not begun twice.

It is a real one with real shells, but for one that is not killed; what they start are forks, which
live as long as who asked.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import forks
from checkout import ONE_SHARD, SNAKEMAKE, TARGETS, configure, skeleton, snakemake, succeed

JOB = Path("results/tiny/.jobs/targets-0-of-1")
LOG = Path("results/tiny/logs/targets-0-of-1.log")
OUTPUT = "snakemake.log"


def start(folder: Path, *arguments: str, command: str = SNAKEMAKE) -> "subprocess.Popen[bytes]":
    """Snakemake in a process group of its own, as a shell starts it; its output in a file."""
    with (folder / OUTPUT).open("w") as output:
        return subprocess.Popen(
            [command, "--cores", "2", *arguments],
            cwd=folder,
            env=forks.environ(),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait_for(what: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 240
    while not what():
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


def at_work(folder: Path, before: int = 0) -> int:
    """The number of the process that makes the targets, 0 before it has begun."""
    note = (folder / JOB).read_text() if (folder / JOB).is_file() else ""
    found = re.match(r"process (\d+) of ", note)
    number = int(found[1]) if found else 0
    return 0 if number == before else number


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_snakemake_needs_no_unlock_and_its_jobs_are_not_begun_twice(
    teacher: Path, tmp_path: Path
) -> None:
    folder = skeleton(tmp_path)
    configure(folder, teacher, **ONE_SHARD)
    first = start(folder, TARGETS)
    wait_for(lambda: at_work(folder) > 0, first)
    job = at_work(folder)
    os.kill(job, signal.SIGSTOP)  # so that it is at work for as long as is needed here

    beside = snakemake(folder, TARGETS)
    assert beside.returncode != 0
    assert f"is being made by another snakemake, process {first.pid} of" in beside.stdout
    assert "LockException" not in beside.stdout
    assert "Traceback" not in beside.stdout

    first.kill()
    first.wait()
    second = start(folder, TARGETS, command="snakemake")
    said = f"waiting for process {job} of"
    wait_for(lambda: said in (folder / OUTPUT).read_text(), second)
    assert not (folder / TARGETS).exists()
    os.kill(job, signal.SIGCONT)
    assert second.wait(240) == 0, (folder / OUTPUT).read_text()
    assert "LockException" not in (folder / OUTPUT).read_text()
    assert "all 3 chunks were there" in (folder / LOG).read_text(), "the first has made them all"

    third = start(folder, "--forcerun", "targets", "--", TARGETS)
    last = at_work(folder)
    wait_for(lambda: at_work(folder, before=last) > 0, third)
    os.killpg(third.pid, signal.SIGKILL)
    third.wait()
    assert "LockException" not in succeed(folder, TARGETS)
    assert (folder / TARGETS).is_file()
