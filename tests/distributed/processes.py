"""Start several training processes from a test, break one on purpose, and never hang.

They find each other by plain variables, by those of srun, or by torchrun. Except under torchrun, a
fork server imports everything once; each process is then a clean fork of it that takes milliseconds
to start. Every wait has a limit, after which all processes are killed.

Alone, under torchrun: `torchrun ... tests/distributed/processes.py FAULT ARGUMENTS...`
"""

import ctypes
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = [ROOT / "workflow", ROOT / "tests", ROOT / "tests" / "distributed"]
sys.path[:0] = [str(room) for room in ROOMS if str(room) not in sys.path]

import torch  # noqa: E402

import tiny  # noqa: E402, F401 - imports what the processes would otherwise each import again
from distillery.stages import training as script  # noqa: E402
from distillery.training import checkpoint, distributed, loop, microbatch, update  # noqa: E402

HUNG = "killed by the watchdog"


def run(num_processes, arguments, faults=None, launcher="bare", limit_s=60):
    """Run distillery.stages.training in processes that find each other by environment variables.

    `faults` maps a rank to what goes wrong there, see `_break`; `launcher` says whose variables
    they have, "bare" or "slurm". Returns the exit codes by rank: -9 after SIGKILL, `HUNG` if it had
    to be killed from here.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["processes"])
    with _python_path():
        port, faults = _free_port(), faults or {}
        processes = [
            context.Process(
                target=_work,
                args=(_variables(launcher, rank, num_processes, port), arguments, fault),
            )
            for rank, fault in ((rank, faults.get(rank, "")) for rank in range(num_processes))
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


def torchrun(num_processes, arguments, fault="", limit_s=100):
    """Run the training under torchrun to its end; `fault` is `rank=fault`, or more by `,`."""
    return subprocess.run(
        _torchrun_command(num_processes, arguments, fault),
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


@contextmanager
def torchrun_started(num_processes, arguments, fault="", options=(), stderr=subprocess.DEVNULL):
    """The same, while it runs; killed at the end, which leaves its processes alone.

    `options` are torchrun's own.
    """
    launcher = subprocess.Popen(
        _torchrun_command(num_processes, arguments, fault, options),
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
    )
    try:
        yield launcher
    finally:
        launcher.kill()
        launcher.wait()


def _torchrun_command(num_processes, arguments, fault, options=()):
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", *options,
        "--nproc-per-node", str(num_processes), __file__, fault or "none", *arguments,
    ]  # fmt: skip


def _variables(launcher, rank, num_processes, port):
    """What a launcher puts into the environment of one process."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if launcher == "slurm":
        tasks = {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(num_processes)}
        return meeting | tasks | {"SLURM_LOCALID": str(rank), "SLURM_JOB_ID": "7"}
    return meeting | {"RANK": str(rank), "WORLD_SIZE": str(num_processes)}


def _work(variables, arguments, fault):
    """What a started process does."""
    os.environ |= variables
    _break(fault)
    distributed.leave(script.main(arguments))


def _break(fault):
    """Arrange a fault `kind:update`, in the middle of the update of this number, from 1."""
    kind, _, number = fault.partition(":")
    match kind:
        case "perturb":
            _perturb_at(int(number))
        case "kill-in-save" | "slow-save":
            _in_save(int(number), ACTS_IN_SAVE[kind])
        case "room":
            _limit_room(int(number))
        case "record":
            _record(Path(number))
        case "wait":
            _wait_at(int(number))
        case "hold":
            _hold_gradients()
        case "estimate":
            _estimate(int(number))
        case _ if kind in ACTS:
            _at_update(int(number), ACTS[kind])


def _raise():
    raise RuntimeError("this rank was broken on purpose")


def _run_out_of_memory():
    raise torch.OutOfMemoryError("CUDA out of memory on purpose")


ACTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "freeze": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": _raise,
    "out-of-memory": _run_out_of_memory,
    "hang": lambda: time.sleep(600),
    # As native code that never gives Python's lock back.
    "hang-with-lock": lambda: ctypes.PyDLL(None).sleep(600),
}

SLOW_SAVE_S = 8.0
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


if __name__ == "__main__":
    chosen, *rest = sys.argv[1:]
    for one in chosen.split(","):
        ranked, _, its_fault = one.partition("=")
        if os.environ["RANK"] == ranked:
            _break(its_fault)
    distributed.leave(script.main(rest))
