"""Run a command on GPUs that no other job uses, waiting until enough are free.

    python -m distillery.with_gpus --num-gpus 1 -- \\
        python -m distillery.stages.targets --shard 0/4 ...
    python -m distillery.with_gpus --num-gpus 2 -- \\
        torchrun --nproc-per-node 2 -m distillery.stages.training ...

The command replaces this process: signals reach it, its exit status is the exit status, and its
GPUs are free the moment it ends. --num-gpus 0 hides all GPUs. Under SLURM, GPUs that were handed
out are used as they are. Exit status 125: no GPUs, or no loopback for torchrun; 126 or 127: the
command cannot be run or was not found. docs/gpu-slots.md says more.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from distillery.hardware import visible_ids
from distillery.launcher import check_loopback
from distillery.locks import LAUNCHER, say, take
from distillery.slots import acquire, default_folder
from distillery.watched import keep_to_log, log_in

NO_GPUS = 125
"""As `timeout` and `docker run` say that they, and not the command, failed."""


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our options, and the command that stands behind the first "--"."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-gpus", type=int, required=True, help="how many; 0 hides all")
    parser.add_argument(
        "--timeout-s", type=float, help="longest wait in seconds (default: for ever)"
    )
    parser.add_argument(
        "--alone", type=Path, help="lock file of a job: wait for one that is still at work on it"
    )
    parser.usage = "with_gpus --num-gpus N [--timeout-s S] [--alone FILE] -- command [argument ...]"
    options = argv.index("--") if "--" in argv else len(argv)
    command = argv[options + 1 :]
    arguments = parser.parse_args(argv[:options])
    if not command:
        parser.error("there is no command: write it behind --")
    return arguments, command


def handed_out(num_gpus: int) -> bool:
    """Whether SLURM has given this job exactly as many devices as it asks for."""
    ids = visible_ids()
    return "SLURM_JOB_ID" in os.environ and ids is not None and len(ids) == num_gpus > 0


def run(command: list[str]) -> int:
    """Become the command; returns only if that fails."""
    # Python ignores these two, and a command that it becomes would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.environ[LAUNCHER] = str(os.getpid())
    try:
        os.execvp(command[0], command)  # noqa: S606 (no shell on purpose)
    except FileNotFoundError:
        print(f"error: there is no command {command[0]!r}", file=sys.stderr)
        return 127
    except OSError as error:
        print(f"error: {command[0]!r} cannot be run: {error.strerror}", file=sys.stderr)
        return 126


def main(argv: list[str]) -> int:
    """Take the devices and run the command on them."""
    arguments, command = parse(argv)
    keep_to_log(log_in(command))
    try:
        check_loopback(command)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return NO_GPUS
    if arguments.alone is not None:
        # Before GPUs are taken, which the job that is waited for may hold. The command inherits it.
        os.set_inheritable(take(arguments.alone), True)
    if handed_out(arguments.num_gpus):
        return run(command)
    try:
        slots = acquire(
            arguments.num_gpus,
            default_folder(),
            arguments.timeout_s,
            tell=say,
        )
    except (ValueError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return NO_GPUS
    os.environ.update(slots.environment)
    return run(command)


if __name__ == "__main__":
    # Ctrl-C during the wait ends it without a traceback; a SIGINT ignored by nohup stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
