"""Start several training processes from a test, break one on purpose, and never hang.

A fork server imports everything once; each process is then a clean fork of it that takes
milliseconds to start. Every wait has a limit, after which all processes are killed.

Alone, under torchrun: `torchrun ... tests/distributed/processes.py FAULT ARGUMENTS...`
"""

import multiprocessing
import os
import signal
import socket
import sys
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = [ROOT / "scripts", ROOT / "workflow", ROOT / "tests", ROOT / "tests" / "distributed"]
sys.path[:0] = [str(room) for room in ROOMS if str(room) not in sys.path]

import torch  # noqa: E402
import train as script  # noqa: E402

import tiny  # noqa: E402, F401 - imports what the processes would otherwise each import again
from distillery.training import checkpoint, distributed, loop  # noqa: E402

HUNG = "killed by the watchdog"


def run(num_processes, arguments, faults=None, limit_s=60):
    """Run scripts/train.py in processes that find each other by plain environment variables.

    `faults` maps a rank to what goes wrong there, see `_break`. Returns the exit codes by rank: -9
    after SIGKILL, `HUNG` if the watchdog had to end it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["processes"])
    with _python_path():
        port, faults = _free_port(), faults or {}
        processes = [
            context.Process(
                target=_work, args=(rank, num_processes, port, arguments, faults.get(rank, ""))
            )
            for rank in range(num_processes)
        ]
        for process in processes:
            process.start()
    end_s = time.monotonic() + limit_s
    for process in processes:
        process.join(max(0.0, end_s - time.monotonic()))
    return [_reap(process) for process in processes]


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


def _work(rank, num_processes, port, arguments, fault):
    """What a started process does."""
    if num_processes > 1:
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(num_processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    _break(fault)
    distributed.leave(script.main(arguments))


def _break(fault):
    """Arrange a fault `kind:update`, in the middle of the update of this number, from 1."""
    kind, _, number = fault.partition(":")
    match kind:
        case "kill":
            _at_update(int(number), lambda: os.kill(os.getpid(), signal.SIGKILL))
        case "terminate":
            _at_update(int(number), lambda: os.kill(os.getpid(), signal.SIGTERM))
        case "raise":
            _at_update(int(number), _raise)
        case "perturb":
            _perturb_at(int(number))
        case "kill-in-save":
            _kill_in_save(int(number))


def _raise():
    raise RuntimeError("this rank was broken on purpose")


def _at_update(number, act):
    calls = []
    original = loop.accumulate_gradients

    def accumulate(*arguments):
        calls.append(1)
        if len(calls) == number:
            act()
        return original(*arguments)

    loop.accumulate_gradients = accumulate


def _perturb_at(number):
    """Change one weight of this rank, as a broken memory or a forgotten seed would."""
    calls = []
    original = loop.update_average

    def update(state, training):
        calls.append(1)
        if len(calls) == number:
            with torch.no_grad():
                next(iter(state.denoiser.parameters())).flatten()[0] += 1e-3
        original(state, training)

    loop.update_average = update


def _kill_in_save(number):
    """Die while a checkpoint's files are written but not yet vouched for."""
    calls = []
    original = checkpoint.write_json

    def write(path, value):
        calls.append(1)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        original(path, value)

    checkpoint.write_json = write


if __name__ == "__main__":
    chosen, *rest = sys.argv[1:]
    ranked, _, its_fault = chosen.partition("=")
    if os.environ["RANK"] == ranked:
        _break(its_fault)
    distributed.leave(script.main(rest))
