"""The error that ended a training of several processes, from the log that torchrun leaves."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

import forks
from distillery.terminal.jobs import Job
from distillery.terminal.tracebacks import first_error

SCRIPT = """
import os, sys
import torch.distributed as dist
from pathlib import Path
from distillery.telemetry import explain_errors

def body():
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        {failure}
    dist.barrier()

sys.exit(explain_errors(body, Path(sys.argv[1]) if {is_explained} else None))
"""
UNEXPLAINED = SCRIPT.replace("sys.exit(explain_errors(body, ", "body() # ")


def launched(folder: Path, script: str, python: str = "python") -> str:
    """What the terminal says of two processes that torchrun started and that failed.

    They are forks, or what `python` is.
    """
    log = folder / "results/tiny/logs/training.log"
    log.parent.mkdir(parents=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    begin_s = time.time() - 1
    with log.open("ab") as file:
        done = subprocess.run(
            ["python", *launcher, python, "-c", script, str(log)],
            stdout=file,
            stderr=file,
            env=forks.environ(OMP_NUM_THREADS="1"),
            check=False,
        )
    assert done.returncode == 1
    assert "Root Cause" in log.read_text()
    return Job("training", log, begin_s).last_words()


@pytest.mark.slow
@pytest.mark.parametrize("script", [SCRIPT, UNEXPLAINED], ids=["explained", "PyTorch's own"])
def test_the_first_rank_s_error_is_told(tmp_path: Path, script: str) -> None:
    """Not torchrun's banner, nor the lost connection of the rank that waited."""
    failure = "raise RuntimeError('Unexpected floating ScalarType')"
    script = script.format(failure=failure, is_explained=True)
    assert launched(tmp_path, script) == (
        "training failed: RuntimeError: Unexpected floating ScalarType"
    )


@pytest.mark.slow
def test_a_rank_that_is_killed_is_told_by_its_signal(tmp_path: Path) -> None:
    """Not by the connection that the other one loses. A fork's end would be its client's."""
    script = SCRIPT.format(failure="os.kill(os.getpid(), 9)", is_explained=True)
    words = launched(tmp_path, script, python=sys.executable)
    assert words.startswith(
        "training failed: rank 1 ended with status -9: Signal 9 (SIGKILL) received by PID "
    )


CHAINED = """\
Traceback (most recent call last):
  File "a.py", line 1, in a
KeyError: 'a'
The above exception was the direct cause of the following exception:
Traceback (most recent call last):
  File "b.py", line 1, in b
    b()
torch.OutOfMemoryError: CUDA out of memory
================
"""


@pytest.mark.parametrize(
    ("log", "error"),
    [
        (CHAINED, "torch.OutOfMemoryError: CUDA out of memory"),
        ("".join(f"3: {line}\n" for line in CHAINED.splitlines()), "torch.OutOfMemoryError: CUDA "
         "out of memory"),
        ("Traceback (most recent call last):\n  File x\n", None),
        ("Traceback (most recent call last):\n  File x\nno exception\n", None),
        ("Traceback (most recent call last):\n  File x\nAssertionError\n", "AssertionError"),
        (
            "[rank1]: Traceback (most recent call last):\nTraceback (most recent call last):\n"
            "[rank1]:   File x\n  File y\nOSError: second\n[rank1]: ValueError: first\n",
            "ValueError: first",
        ),
        ("all is well\n", None),
        ("", None),
    ],
)  # fmt: skip
def test_errors_in_logs(log: str, error: str | None) -> None:
    assert first_error(log.splitlines()) == error
