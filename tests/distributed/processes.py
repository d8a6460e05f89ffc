"""Start several training processes from a test, break one on purpose, and never hang.

They find each other by plain variables, by those of srun, or by torchrun. A fork server imports
everything once; each process is then a clean fork of it that takes milliseconds to start, as are
torchrun and the processes that it starts. Every wait has a limit, after which all are killed.

Alone, under a real torchrun: `torchrun ... tests/distributed/processes.py FAULT ARGUMENTS...`
"""

import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = [ROOT / "workflow", ROOT / "tests", ROOT / "tests" / "distributed"]
sys.path[:0] = [str(room) for room in ROOMS if str(room) not in sys.path]

import pyarrow.dataset  # noqa: E402, F401 - as `tiny`
import tensorboardX  # noqa: E402, F401 - the same
from faults import arrange, fork_teachers  # noqa: E402
from torch.distributed.elastic.multiprocessing.subprocess_handler import (  # noqa: E402
    subprocess_handler,
)
from torch.distributed.run import main as run_torch  # noqa: E402

import tiny  # noqa: E402, F401 - imports what the processes would otherwise each import again
from distillery.stages import training as script  # noqa: E402
from distillery.training import distributed  # noqa: E402

HUNG = "killed by the watchdog"


def run(num_processes, arguments, faults=None, launcher="bare", limit_s=60):
    """Run distillery.stages.training in processes that find each other by environment variables.

    `faults` maps a rank to what goes wrong there, see `arrange`; `launcher` says whose variables
    they have, "bare" or "slurm", or names each one's node, as srun does. Returns the exit codes by
    rank: -9 after SIGKILL, `HUNG` if it had to be killed from here.
    """
    port, faults = _free_port(), faults or {}
    processes = [
        _started(rank, _variables(launcher, rank, num_processes, port), arguments, faults.get(rank))
        for rank in range(num_processes)
    ]
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s and any(map(_is_at_work, processes)):
        time.sleep(0.02)
    return [_reap(process) for process in processes]


@contextmanager
def started(rank, num_processes, port, arguments):
    """One process of several, the others of which may never come; killed at the end."""
    process = _started(rank, _variables("bare", rank, num_processes, port), arguments)
    try:
        yield process
    finally:
        process.kill()
        process.join()


def _started(rank, variables, arguments, fault=None):
    process = _forking().Process(target=_work, args=(rank, variables, arguments, fault or ""))
    with _python_path():
        process.start()
    return process


def _is_at_work(process):
    """Whether it may still end: a frozen one does not."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:  # it is ending
        status = ""
    return process.is_alive() and "\nState:\tT" not in status


def _forking():
    """A server of forks that have imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["processes"])
    return context


def _reap(process):
    if process.is_alive():
        process.kill()
        process.join()
        return HUNG
    return process.exitcode


@contextmanager
def _python_path():
    """The fork server of Python 3.11 ignores `sys.path` and needs the variable."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, ROOMS))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def torchrun(num_processes, arguments, fault="", limit_s=100):
    """Run the training under a real torchrun; `fault` is `rank=fault`, or more by `,`."""
    words = _after_torchrun(num_processes, arguments, fault)
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


@contextmanager
def torchrun_started(num_processes, arguments, stderr, fault="", options=()):
    """A torchrun while it runs; killed at the end, which leaves its processes alone.

    It and what it starts are forks: to signals, waits and parents as the real ones, but all is
    imported. `stderr` is a file for what they say there, `options` are torchrun's own.
    """
    words = _after_torchrun(num_processes, arguments, fault, options)
    launcher = _forking().Process(target=_be_torchrun, args=(words, stderr))
    with _python_path():
        launcher.start()
    try:
        yield launcher
    finally:
        launcher.kill()
        launcher.join()


def _after_torchrun(num_processes, arguments, fault, options=()):
    """The words of its command line."""
    return [
        "--standalone", *options, "--nproc-per-node", str(num_processes),
        __file__, fault or "none", *arguments,
    ]  # fmt: skip


def _be_torchrun(words, stderr):
    """What a fork does that is torchrun; it ends without a look at those that it has started."""
    os.setsid()
    with stderr.open("ab") as file:
        os.dup2(file.fileno(), 2)
    subprocess_handler.Popen = _Fork
    _end_after(lambda: run_torch(words))


class _Fork:
    """What torchrun asks of a `subprocess.Popen`."""

    def __init__(self, args, env, **_):
        self.returncode = None
        self.pid = os.fork()
        if self.pid == 0:
            _be_started(args, env)

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout):
        end_s = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end_s:
                raise subprocess.TimeoutExpired("a fork", timeout)
            time.sleep(0.02)
        return self.returncode


def _be_started(words, environ):
    """What a fork does that torchrun has started; what it has of torchrun it lays down."""
    os.setsid()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ |= environ
    _end_after(lambda: _main(*words[words.index(__file__) + 1 :]))


def _end_after(work):
    """End this process as an interpreter that has done `work` does."""
    status = 1
    try:
        work()
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _variables(launcher, rank, num_processes, port):
    """What a launcher puts into the environment of one process."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if launcher != "bare":
        names = ["n1"] * num_processes if launcher == "slurm" else launcher
        return meeting | {
            "SLURM_PROCID": str(rank),
            "SLURM_STEP_NUM_TASKS": str(num_processes),
            "SLURM_LOCALID": str(names[:rank].count(names[rank])),
            "SLURMD_NODENAME": names[rank],
            "SLURM_JOB_ID": "7",
        }
    return meeting | {"RANK": str(rank), "WORLD_SIZE": str(num_processes)}


def _work(rank, variables, arguments, fault):
    """What a started process does."""
    os.environ |= variables
    if rank:
        wait_for_a_listener(int(variables["MASTER_PORT"]))
    if not fault.startswith("kill-spawner"):
        fork_teachers()
    arrange(fault)
    distributed.leave(script.main(arguments))


def wait_for_a_listener(port, limit_s=10):
    """Come when rank 0 is there: PyTorch tries once, and again only after half a second."""
    listening, end_s = re.compile(rf":{port:04X} \S+ 0A "), time.monotonic() + limit_s
    while time.monotonic() < end_s:
        if any(listening.search(Path(f"/proc/net/{name}").read_text()) for name in ("tcp", "tcp6")):
            return
        time.sleep(0.01)


def _main(wanted, *arguments):
    """What a process under torchrun does."""
    for one in wanted.split(","):
        rank, _, fault = one.partition("=")
        if os.environ["RANK"] == rank:
            arrange(fault)
    distributed.leave(script.main(list(arguments)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
