"""What a terminal shows last when Snakemake is stopped there: real processes in a real terminal."""

import fcntl
import os
import re
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest

from checkout import SNAKEMAKE

pytestmark = pytest.mark.slow
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
BOARD = "0 of 2 jobs"
COMMAND = ["snakemake", "--cores", "1", "--nolock", "--logger", "distillery"]
SNAKEFILE = """
rule all:
    input: "a.txt"
rule targets:
    output: "a.txt"
    log: "results/demo/logs/targets.log"
    shell: "exec python slow.py {log}"
"""
JOB = """
import sys, time
try:
    time.sleep(60)
except KeyboardInterrupt:
    open(sys.argv[1], "w").write("interrupted: what is finished is kept\\n")
    until = time.time() + 1.5
    while time.time() < until:  # as a job does that saves what it has
        try:
            time.sleep(0.1)
        except KeyboardInterrupt:
            pass
    sys.exit(130)
"""


DONE_JOB = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)  # as where Python has ended
line = "2026-11-23 17:12:00,968 INFO targets [cpu] targets done in 10.9 s\\n"
open(sys.argv[1], "w").write(line)
time.sleep(60)
"""
LOG = "results/demo/logs/targets.log"


def _heed_quit() -> None:
    """As in a terminal: a shell's background job, as a CI's may be, is started with it ignored."""
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


class Terminal:
    """Snakemake in a terminal of its own, of 30 lines with 120 columns."""

    def __init__(self, folder: Path) -> None:
        (folder / "Snakefile").write_text(SNAKEFILE)
        (folder / "slow.py").write_text(JOB)
        self._ours, its = os.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        self.process = subprocess.Popen(
            [SNAKEMAKE, *COMMAND[1:]],
            cwd=folder,
            env=os.environ | {"TERM": "xterm"},
            stdin=its,
            stdout=its,
            stderr=its,
            start_new_session=True,
            preexec_fn=_heed_quit,
        )
        os.close(its)
        self.text = ""

    def read_until(self, expected: str | None = None) -> None:
        """Up to some text, or to the end."""
        os.set_blocking(self._ours, False)
        until = time.monotonic() + 60
        while expected is None or expected not in self.text:
            assert time.monotonic() < until, self.text
            try:
                self.text += os.read(self._ours, 65536).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:  # all who could write have ended
                break

    def send(self, number: signal.Signals) -> None:
        """As a key does, to all processes in the foreground."""
        os.killpg(self.process.pid, number)

    def last_lines(self) -> list[str]:
        """Without what a terminal obeys."""
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text).replace("\r", "\n")
        return [line for line in plain.splitlines() if line.strip()][-5:]


@pytest.mark.parametrize("num_times", [1, 4])
def test_the_command_that_resumes_comes_last_however_often_ctrl_c_is_pressed(
    tmp_path: Path, num_times: int
) -> None:
    terminal = Terminal(tmp_path)
    terminal.read_until(BOARD)
    time.sleep(1)  # the job's Python has begun
    for _ in range(num_times):
        terminal.send(signal.SIGINT)
        time.sleep(0.15)
    terminal.read_until()
    assert terminal.process.wait(10) == 1
    assert "Terminating processes on user request" in terminal.text
    *_, stopped, log, counts, resume = terminal.last_lines()
    assert stopped == "targets stopped: interrupted: what is finished is kept"
    assert log == f"  log: {LOG}"
    assert counts.startswith("0 of 2 jobs done in ")
    assert resume == f"resume with: {' '.join(COMMAND)}"
    assert "Traceback" not in terminal.text
    assert terminal.text.rfind(SHOW) > terminal.text.rfind(HIDE) >= 0


def test_a_job_that_ends_just_then_is_said_to_be_interrupted(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    (tmp_path / "slow.py").write_text(DONE_JOB)
    terminal.read_until(BOARD)
    until = time.monotonic() + 30
    while not (tmp_path / LOG).is_file() and time.monotonic() < until:
        time.sleep(0.05)
    terminal.send(signal.SIGINT)
    terminal.read_until()
    said = "targets stopped: interrupted; its last line: targets [cpu] targets done in 10.9 s"
    assert said in terminal.last_lines()


def test_ctrl_c_before_the_first_job_ends_without_a_traceback(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    start = "import time\nprint('read\\n', end='')\ntime.sleep(20)\n"  # one write: a line is whole
    (tmp_path / "Snakefile").write_text(f"{start}{SNAKEFILE}")
    terminal.read_until("read")
    terminal.send(signal.SIGINT)
    terminal.read_until()
    assert terminal.process.wait(10) == -signal.SIGINT, "as a shell expects"
    last = ["stopped before the first job", f"resume with: {' '.join(COMMAND)}"]
    assert terminal.last_lines()[-2:] == last
    assert "Traceback" not in terminal.text


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
def test_the_cursor_is_shown_when_the_process_is_ended(
    tmp_path: Path, number: signal.Signals
) -> None:
    terminal = Terminal(tmp_path)
    terminal.read_until(BOARD)
    assert terminal.text.rfind(HIDE) > terminal.text.rfind(SHOW)
    terminal.send(number)
    terminal.read_until()
    assert terminal.process.wait(10) == -number
    assert terminal.text.rfind(SHOW) > terminal.text.rfind(HIDE)
