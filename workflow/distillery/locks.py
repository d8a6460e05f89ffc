"""Locks of files; the kernel frees them when the process that holds them ends, however it ends.

A lock file says which process holds it. A Snakemake process holds its run, a job what it makes. The
locks of GPUs (`slots`) have rules of their own. A file system without locks causes a warning, no
error.
"""

import errno
import fcntl
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from distillery.notes import Note, error, refuse

NOTE_BYTES = 256
LAUNCHER = "DISTILLERY_LAUNCHER"
"""The variable with the number of the process that a job was started as, see `with_gpus`."""
RUN_LOCK = ".lock"
JOB_LOCKS = ".jobs"

BUSY = (errno.EACCES, errno.EAGAIN)
"""POSIX allows both where another process holds a lock."""
FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems without locks, as on some clusters."""

Tell = Callable[[str], None]


def quiet(line: str) -> None:
    """Show nothing."""


def say(line: str) -> None:
    """A line for the terminal, at once."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def hold(
    path: Path,
    in_use: Callable[[str], Exception],
    tell: Tell = say,
    lock: Callable[[int, int], None] = fcntl.flock,
) -> None:
    """Lock a file until this process ends; it stays open on purpose.

    Args:
        in_use: makes the error from what the file says of the process that holds it.
        tell: called with a line where the file system knows no locks.
        lock: flock, which a process shares with those that it forks, or POSIX's lockf, which
            belongs to the one process: its children do not hold it when it is killed.
    """
    descriptor = _open(path)
    try:
        lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in BUSY:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise in_use(holder) from None
        _warn_without_locks(path, error, tell)
        return
    _sign(descriptor)


def hold_run(run: Path, tell: Tell = say) -> None:
    """Keep other Snakemake processes away from a run until this process ends.

    Its jobs do not inherit the lock, so it does not outlive Snakemake.

    Args:
        run: results/{run}.
        tell: called with a line where the file system knows no locks.

    Raises:
        ValueError: another process holds the run.
    """

    def in_use(holder: str) -> ValueError:
        return ValueError(
            f"{run} is being made by another snakemake, {holder}: wait for it or end it, then run "
            "again; to make two at once, give this one another `run` name"
        )

    hold(run / RUN_LOCK, in_use, tell)


def explain_write(error: OSError) -> str:
    """A file of a run that cannot be written, with what helps where that is known."""
    name = error.filename or "a file of the run"
    if error.errno in FULL:
        return (
            f"{name} cannot be written, since no space is left on its disk ({error.strerror}): "
            "free some space, or make results/ a link to a larger disk"
        )
    if error.errno in FORBIDDEN:
        return (
            f"{name} cannot be written ({error.strerror}): the folder belongs to another user, or "
            "its disk is read-only: correct its permissions (chmod -R g+w), or choose another `run`"
        )
    return str(error)


def job_lock(run: Path, job: str) -> Path:
    """The lock file of one job of a run."""
    return run / JOB_LOCKS / job


@contextmanager
def alone(path: Path, tell: Tell = say) -> Iterator[bool]:
    """Hold a lock; yields whether it was waited for. A wait is shown by a line: a job may have
    outlived its Snakemake."""
    descriptor, waited = _take(path, tell)
    try:
        yield waited
    finally:
        os.close(descriptor)


def take(path: Path, tell: Tell = say) -> int:
    """As `alone`; the lock is held until the returned descriptor is closed."""
    return _take(path, tell)[0]


def _take(path: Path, tell: Tell) -> tuple[int, bool]:
    descriptor, waited = _open(path), False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        tell(f"waiting for {_holder(descriptor)}, which is still at work on {path.name}")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        waited = True
    except OSError as error:
        _warn_without_locks(path, error, tell)
        return descriptor, waited
    _sign(descriptor)
    return descriptor, waited


def on_way(folder: Path) -> Iterator[Note]:
    """What is in the way of a folder that is not there, and cannot be made."""
    for path in (folder, *folder.parents):
        if path.is_dir():
            return
        if path.exists() or path.is_symlink():
            yield error(
                f"{folder} cannot be made",
                f", since {path} is no folder, or a link to one that is not there (a disk that is "
                "not mounted?)",
                "remove it, or bring the folder back",
            )


def _open(path: Path) -> int:
    refuse(on_way(path.parent))
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _sign(descriptor: int) -> None:
    """Write into a lock file which process holds it."""
    with suppress(OSError):  # a full disk costs the note, not the work
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} of {socket.gethostname()}".encode(), 0)


def _holder(descriptor: int) -> str:
    """What a lock file says of its holder."""
    note = os.pread(descriptor, NOTE_BYTES, 0).decode(errors="replace")
    return note or "a process that has not said its number"


def _warn_without_locks(path: Path, error: OSError, tell: Tell) -> None:
    """Warn that a file system has no locks; raise any other error."""
    if error.errno not in NO_LOCKS:
        raise error
    tell(
        f"{path} cannot be locked ({error.strerror}): see to it yourself that nothing else works "
        "on it"
    )
