"""Start several training processes from a test, break one on purpose, and never hang.

They find each other by plain variables, by those of srun, or by torchrun. A fork server imports
everything once; each process is then a clean fork of it that takes milliseconds to start, as are
torchrun and the processes that it starts. Every wait has a limit, after which all are killed.

Alone, under a real torchrun: `torchrun ... tests/distributed/processes.py FAULT ARGUMENTS...`
"""

import ctypes
import json
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
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = [ROOT / "workflow", ROOT / "tests", ROOT / "tests" / "distributed"]
sys.path[:0] = [str(room) for room in ROOMS if str(room) not in sys.path]

import pyarrow.dataset  # noqa: E402, F401 - as `tiny`
import tensorboardX  # noqa: E402, F401 - the same
import torch  # noqa: E402
from torch.distributed.elastic.multiprocessing.subprocess_handler import (  # noqa: E402
    subprocess_handler,
)
from torch.distributed.run import main as run_torch  # noqa: E402

import tiny  # noqa: E402, F401 - imports what the processes would otherwise each import again
from distillery.stages import training as script  # noqa: E402
from distillery.training import (  # noqa: E402
    checkpoint,
    distributed,
    loop,
    microbatch,
    nodes,
    own_teacher,
    update,
)

HUNG = "killed by the watchdog"


def run(num_processes, arguments, faults=None, launcher="bare", limit_s=60):
    """Run distillery.stages.training in processes that find each other by environment variables.

    `faults` maps a rank to what goes wrong there, see `_break`; `launcher` says whose variables
    they have, "bare" or "slurm", or names each one's node, as srun does. Returns the exit codes by
    rank: -9 after SIGKILL, `HUNG` if it had to be killed from here.
    """
    context = _forking()
    with _python_path():
        port, faults = _free_port(), faults or {}
        processes = [
            context.Process(
                target=_work,
                args=(rank, _variables(launcher, rank, num_processes, port), arguments, fault),
            )
            for rank, fault in ((rank, faults.get(rank, "")) for rank in range(num_processes))
        ]
        for process in processes:
            process.start()
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s and any(map(_is_at_work, processes)):
        time.sleep(0.02)
    return [_reap(process) for process in processes]


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
        _wait_for_a_listener(int(variables["MASTER_PORT"]))
    _break(fault)
    distributed.leave(script.main(arguments))


def _wait_for_a_listener(port, limit_s=10):
    """Come when rank 0 is there: PyTorch tries once, and again only after half a second."""
    listening, end_s = re.compile(rf":{port:04X} \S+ 0A "), time.monotonic() + limit_s
    while time.monotonic() < end_s:
        if any(listening.search(Path(f"/proc/net/{name}").read_text()) for name in ("tcp", "tcp6")):
            return
        time.sleep(0.01)


def _break(fault):
    """Arrange a fault `kind:update`, in the middle of the update of this number, from 1."""
    kind, _, number = fault.partition(":")
    at_number = {
        "perturb": _perturb_at, "room": _limit_room, "wait": _wait_at, "estimate": _estimate,
        "teacher": _fail_as_teacher,
    }  # fmt: skip
    match kind:
        case _ if kind in at_number:
            at_number[kind](int(number))
        case "kill-in-save" | "slow-save":
            _in_save(int(number), ACTS_IN_SAVE[kind])
        case "count-teachers":
            _at_update(1, partial(_count_teachers, int(number)))
        case "version":
            nodes.__version__ = number
        case "folder":
            os.chdir(number)
        case "record":
            _record(Path(number))
        case "hold":
            _hold_gradients()
        case "no-kernels":
            torch.compile = partial(torch.compile, backend="aot_eager")
        case _ if kind in ACTS:
            _at_update(int(number), ACTS[kind])


def _fail_as_teacher(number):
    """Raise in the teacher's n-th answer, while the other ranks wait for it."""
    original, calls = own_teacher.OwnTeacher.advance, []

    def advance(teacher, *arguments):
        calls.append(1)
        if len(calls) == number:
            _raise()
        return original(teacher, *arguments)

    own_teacher.OwnTeacher.advance = advance


def _raise():
    raise RuntimeError("this rank was broken on purpose")


def _run_out_of_memory():
    raise torch.OutOfMemoryError("CUDA out of memory on purpose")


def _count_teachers(number):
    assert len(multiprocessing.active_children()) == number


def _kill_teacher():
    """The process that this rank has started."""
    (teacher,) = multiprocessing.active_children()
    teacher.kill()


ACTS = {
    "kill-teacher": _kill_teacher,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "freeze": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": _raise,
    "out-of-memory": _run_out_of_memory,
    "hang": lambda: time.sleep(600),
    # As native code that never gives Python's lock back.
    "hang-with-lock": lambda: ctypes.PyDLL(None).sleep(600),
}

SLOW_SAVE_S = 5.0
ACTS_IN_SAVE = {"kill-in-save": ACTS["kill"], "slow-save": lambda: time.sleep(SLOW_SAVE_S)}


def _limit_room(num_samples):
    """A device with memory for so many samples at once."""
    original = update.batch_losses

    def compute(model, batch, run):
        if len(batch.items) > num_samples:
            _run_out_of_memory()
        return original(model, batch, run)

    update.batch_losses = compute


class _Memory:
    """A device with room for so many samples at once: 100 bytes each, and 1000 for the rest."""

    def __init__(self, num_samples):
        self.limit = 1000 + 100 * num_samples

    def peak_of(self, work):
        work()
        return 1000 + (100 * len(work.args[1].items) if hasattr(work, "args") else 0)


def _estimate(num_samples):
    """Size micro-batches as on GPUs with sharded weights."""

    def sized(state, micro_batches, run):
        share = run.dataset.__getitems__(next(run.batches.positions(0)))
        microbatch.lower_by_estimates(state, share, micro_batches, run, _Memory(num_samples))
        assert all(parameter.grad is None for parameter in state.denoiser.parameters())
        run.reporter.info(f"estimated: {micro_batches.size}")

    microbatch.find_micro_batch_size = sized


def _record(folder):
    """Note the items of each update of this rank."""
    original = loop.accumulate_what_fits

    def accumulate(*arguments):
        share = original(*arguments)
        with (folder / f"items-{os.environ['RANK']}.jsonl").open("a") as file:
            file.write(json.dumps(share.items) + "\n")
        return share

    loop.accumulate_what_fits = accumulate


def _hold_gradients():
    """Fail in an update that makes its gradients anywhere but where they were."""
    original = loop.accumulate_what_fits

    def accumulate(model, *arguments):
        before = _addresses(model)
        share = original(model, *arguments)
        assert before == _addresses(model), "the gradients moved"
        return share

    loop.accumulate_what_fits = accumulate


def _addresses(model):
    return [parameter.grad.data_ptr() for parameter in model.parameters()]


def _at_update(number, act):
    calls = []
    original = loop.accumulate_what_fits

    def accumulate(*arguments):
        calls.append(1)
        if len(calls) == number:
            act()
        return original(*arguments)

    loop.accumulate_what_fits = accumulate


def _wait_at(number):
    """Wait for the other ranks as a GPU's collective does, which never learns that one is gone."""
    calls = []
    original = loop.accumulate_what_fits

    def accumulate(*arguments):
        calls.append(1)
        if len(calls) == number:
            arguments[-1].watchdog.heartbeat("gradients of all ranks", waits=True)
            time.sleep(600)
        return original(*arguments)

    loop.accumulate_what_fits = accumulate


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


def _in_save(number, act):
    """Act while the files of the checkpoint of this number are written but not yet renamed."""
    calls = []
    original = checkpoint.write_sealed

    def write(path, value):
        calls.append(1)
        if len(calls) == number:
            act()
        original(path, value)

    checkpoint.write_sealed = write


def _main(faults, *arguments):
    """What a process under torchrun does."""
    for one in faults.split(","):
        rank, _, fault = one.partition("=")
        if os.environ["RANK"] == rank:
            _break(fault)
    distributed.leave(script.main(list(arguments)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
