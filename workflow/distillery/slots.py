"""GPU slots: which job of this host may use which device, settled by file locks.

Each device has a file, named by its UUID, in a folder of this host. A job holds a device while it
holds `flock` on that file. The kernel drops the lock when the last process that inherited it ends,
however it ends, so there is nothing to clean up and no lock that outlives its work.

Jobs that wait stand in a queue of ticket files, each locked by its job. A job may take devices when
no living job before it waits for one of the same devices: so a large job is not overtaken for ever
by small ones. It takes all it needs at once or nothing: so no two jobs can wait for each other. A
ticket whose lock is free belongs to a job that was killed; the next job that sees it removes it.
"""

import fcntl
import os
import random
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from distillery.hardware import Gpu, find_gpus, list_gpus

FIRST_WAIT_S = 0.02
LONGEST_WAIT_S = 0.25
"""Between two tries a job sleeps half to all of a time that doubles from the first to the last."""
TELL_AFTER_S = 5.0
"""Shorter waits are not worth a line."""
NOTE_BYTES = 4096


@dataclass(frozen=True)
class Slots:
    """Devices held by this process and by every child that inherits the descriptors.

    Attributes:
        gpus: the devices, in PCI order or in the order of CUDA_VISIBLE_DEVICES.
        environment: the variables that a command needs to see these devices and no others.
        descriptors: the open lock files, inheritable, so that they survive `exec`.
    """

    gpus: tuple[Gpu, ...]
    environment: dict[str, str]
    descriptors: tuple[int, ...] = field(repr=False)

    def release(self) -> None:
        """Give the devices back, once; a child that inherited the locks still holds them."""
        for descriptor in self.descriptors:
            os.close(descriptor)


def default_folder() -> Path:
    """Where the locks are: $DISTILLERY_SLOTS, else a private folder in /tmp, which is made.

    A private folder keeps one user's jobs apart. Users who share a machine name one common folder,
    made by an administrator (docs/gpu-slots.md): in /tmp anybody could make it first and own it.

    Raises:
        PermissionError: the folder in /tmp is not ours.
    """
    chosen_folder = os.environ.get("DISTILLERY_SLOTS")
    if chosen_folder:
        return Path(chosen_folder)
    # Not $TMPDIR: all jobs of the host must meet here, and schedulers set TMPDIR for each job.
    folder = Path(f"/tmp/distillery-slots-{os.getuid()}")  # noqa: S108 (ownership is checked)
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(
            f"{folder} belongs to somebody else: set DISTILLERY_SLOTS to a folder of this host "
            "that is yours"
        )
    return folder


def acquire(
    num_gpus: int,
    folder: Path,
    timeout_s: float | None,
    tell: Callable[[str], None] = lambda message: None,
) -> Slots:
    """Take devices for this process, all or none, waiting for them in turn.

    Args:
        num_gpus: how many; 0 takes none and hides all.
        folder: the lock files' folder on this host, made if need be; see `default_folder`.
        timeout_s: longest wait in seconds, None to wait for ever.
        tell: called once, with one line, when the wait has lasted `TELL_AFTER_S`.

    Raises:
        ValueError: more are asked for than this process may use.
        TimeoutError: they did not become free in time.
    """
    if num_gpus == 0:
        return Slots((), {"CUDA_VISIBLE_DEVICES": ""}, ())
    gpus = find_gpus()
    if not 0 < num_gpus <= len(gpus):
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        raise ValueError(
            f"num_gpus is {num_gpus}, {len(gpus)} can be used: {list_gpus(gpus)}; "
            f"CUDA_VISIBLE_DEVICES is {seen!r}"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ticket = _Ticket.draw(folder, gpus)
    try:
        return _wait(ticket, num_gpus, gpus, timeout_s, tell)
    finally:
        ticket.drop()


def _wait(
    ticket: "_Ticket",
    num_gpus: int,
    gpus: tuple[Gpu, ...],
    timeout_s: float | None,
    tell: Callable[[str], None],
) -> Slots:
    """Try until the turn has come and the devices are free."""
    begin_s = time.monotonic()
    wait_s = FIRST_WAIT_S
    was_reported = False
    while True:
        slots = _take(ticket.folder, num_gpus, gpus) if ticket.is_next() else None
        if slots:
            return slots
        waited_s = time.monotonic() - begin_s
        if timeout_s is not None and waited_s >= timeout_s:
            holders = _describe_holders(ticket.folder, gpus)
            raise TimeoutError(
                f"too few GPUs free in {timeout_s:g} s, {num_gpus} needed: {holders}"
            )
        if waited_s >= TELL_AFTER_S and not was_reported:
            holders = _describe_holders(ticket.folder, gpus)
            tell(f"waiting for free GPUs, {num_gpus} needed: {holders}")
            was_reported = True
        left_s = wait_s if timeout_s is None else timeout_s - waited_s
        time.sleep(min(left_s, wait_s * random.uniform(0.5, 1.0)))  # noqa: S311 (no secret)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


@dataclass(frozen=True)
class _Ticket:
    """A place in the queue: a file that is locked while its job waits; it lists the devices."""

    folder: Path
    name: str
    uuids: frozenset[str]
    descriptor: int

    @classmethod
    def draw(cls, folder: Path, gpus: tuple[Gpu, ...]) -> "_Ticket":
        """Join the queue. The file gets its name when it is locked; a free named one is dead."""
        name = f"ticket-{time.monotonic_ns():020d}-{os.getpid()}"
        hidden = folder / f".{name}"
        uuids = [gpu.uuid for gpu in gpus]
        descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, "\n".join(uuids).encode())
        hidden.rename(folder / name)
        return cls(folder, name, frozenset(uuids), descriptor)

    def is_next(self) -> bool:
        """Whether no living job that came earlier waits for one of our devices."""
        tickets = sorted(self.folder.glob("ticket-*"))
        earlier = (path for path in tickets if path.name < self.name)
        return all(self.uuids.isdisjoint(_wanted(path)) for path in earlier)

    def drop(self) -> None:
        """Leave the queue."""
        (self.folder / self.name).unlink(missing_ok=True)
        os.close(self.descriptor)


def _wanted(path: Path) -> list[str]:
    """The devices that a ticket's job waits for; none, and the ticket is removed, if it is dead."""
    descriptor = _open_existing(path, os.O_RDONLY)
    if descriptor is None:
        return []
    try:
        if not _lock(descriptor, fcntl.LOCK_SH):
            return os.read(descriptor, os.fstat(descriptor).st_size).decode().split()
        with suppress(OSError):  # another user's, in a shared folder
            path.unlink()
        return []
    finally:
        os.close(descriptor)


def _take(folder: Path, num_gpus: int, gpus: tuple[Gpu, ...]) -> Slots | None:
    """Lock the first free devices; if there are too few, let go of all of them."""
    taken: list[tuple[Gpu, int]] = []
    for gpu in gpus:
        descriptor = _lock_device(_lock_file(folder, gpu))
        if descriptor is not None:
            taken.append((gpu, descriptor))
        if len(taken) == num_gpus:
            return _keep(folder, taken)
    for _, descriptor in taken:
        os.close(descriptor)
    return None


def _keep(folder: Path, taken: list[tuple[Gpu, int]]) -> Slots:
    """Sign the lock files and make them survive `exec`."""
    note = f"pid {os.getpid()}: {shlex.join(sys.orig_argv)}\n".encode()[:NOTE_BYTES]
    descriptors = [descriptor for _, descriptor in taken]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
        with suppress(OSError):  # a full disk costs the note, not the job
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, note, 0)
    # systemd-tmpfiles deletes old files in /tmp, but not below a folder that is locked.
    guard = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.set_inheritable(guard, True)
    _lock(guard, fcntl.LOCK_SH)
    gpus = tuple(gpu for gpu, _ in taken)
    environment = {
        "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # A job may share out the devices that it holds (a whole workflow inside one slot); the
        # jobs inside must not wait for the locks of the job that they run in.
        "DISTILLERY_SLOTS": str(folder.absolute() / f"inside-{os.getpid()}"),
    }
    return Slots(gpus, environment, (*descriptors, guard))


def _lock_file(folder: Path, gpu: Gpu) -> Path:
    """A device's lock file; older drivers put slashes into the names of MIG instances."""
    return folder / gpu.uuid.replace("/", "-")


def _lock_device(path: Path) -> int | None:
    """The descriptor of the locked file, or None if another job holds it."""
    descriptor = _open_existing(path, os.O_RDWR)
    if descriptor is None:
        descriptor = _create(path)
    if descriptor is None:
        return None
    if _lock(descriptor, fcntl.LOCK_EX) and _is_still(path, descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _open_existing(path: Path, flags: int) -> int | None:
    """Open without O_CREAT: the kernel refuses that for another user's file in a sticky folder."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None


def _create(path: Path) -> int | None:
    """Make a lock file that every user of the folder can lock; None if it is there by now."""
    umask = os.umask(0)
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return None
    finally:
        os.umask(umask)


def _lock(descriptor: int, kind: int) -> bool:
    """Try to lock an open file without waiting."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the path still names the open file: a lock on a deleted file keeps nobody out."""
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _describe_holders(folder: Path, gpus: tuple[Gpu, ...]) -> str:
    """Which process holds each device, and how many jobs wait, in one line."""
    parts = [f"{gpu.index} ({gpu.uuid}) {_holder(_lock_file(folder, gpu))}" for gpu in gpus]
    return f"{'; '.join(parts)}; {len(list(folder.glob('ticket-*')))} in the queue"


def _holder(path: Path) -> str:
    """What a lock file says about its holder, without control characters."""
    descriptor = _open_existing(path, os.O_RDONLY)
    if descriptor is None:
        return "is free"
    try:
        if _lock(descriptor, fcntl.LOCK_SH):
            return "is free"
        note = os.read(descriptor, NOTE_BYTES).decode(errors="replace").strip()
        return f"is held by {''.join(c if c.isprintable() else '?' for c in note)}"
    finally:
        os.close(descriptor)
