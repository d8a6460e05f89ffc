"""Who works on what: locks of files that the kernel frees with the process, however that ends.

A lock file says which process holds it. A Snakemake process holds its run, a job what it makes. The
locks of GPUs (`slots`) and of a training's checkpoints (`training.checkpoint`) have rules of their
own. A file system that knows no locks is worth a warning, not an error.
"""

import fcntl
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NOTE_BYTES = 256
RUN_LOCK = ".lock"
JOB_LOCKS = ".jobs"

Tell = Callable[[str], None]


def say(line: str) -> None:
    """A line for the terminal, at once."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def hold_run(run: Path, tell: Tell = say) -> None:
    """Keep other Snakemake processes away from a run until this process ends.

    Its jobs do not inherit the lock, so it does not outlive Snakemake. The file stays open on
    purpose.

    Args:
        run: results/{run}.
        tell: called with a line where the file system knows no locks.

    Raises:
        ValueError: another process holds the run.
    """
    path = run / RUN_LOCK
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(descriptor)
        os.close(descriptor)
        raise ValueError(
            f"{run} is being made by another snakemake, {holder}: wait for its end, or end it, and "
            "run again; a run beside it needs another `run`"
        ) from None
    except OSError as error:
        tell(_without_locks(path, error))
        return
    _sign(descriptor)


def job_lock(run: Path, job: str) -> Path:
    """The lock file of one job of a run."""
    return run / JOB_LOCKS / job


@contextmanager
def alone(path: Path, tell: Tell = say) -> Iterator[None]:
    """Hold a job's lock. A job that has outlived its Snakemake is waited for, with a line."""
    descriptor = take(path, tell)
    try:
        yield
    finally:
        os.close(descriptor)


def take(path: Path, tell: Tell = say) -> int:
    """As `alone`, until the descriptor that is returned is closed."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        tell(f"waiting for {_holder(descriptor)}, which is still at work on {path.name}")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        tell(_without_locks(path, error))
        return descriptor
    _sign(descriptor)
    return descriptor


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _sign(descriptor: int) -> None:
    """Say who holds a lock."""
    with suppress(OSError):  # a full disk costs the note, not the work
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} of {socket.gethostname()}".encode(), 0)


def _holder(descriptor: int) -> str:
    """What a lock file says of its holder."""
    note = os.pread(descriptor, NOTE_BYTES, 0).decode(errors="replace")
    return note or "a process that has not said its number"


def _without_locks(path: Path, error: OSError) -> str:
    return (
        f"{path} cannot be locked ({error.strerror}): see to it yourself that nothing else works "
        "on it"
    )
