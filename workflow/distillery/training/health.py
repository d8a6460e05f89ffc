"""Stop politely at a signal, notice that another process is gone, end a process that hangs.

A collective on GPUs never learns that the other side is dead: its kernel waits for ever. torchrun
sends the rest SIGTERM, which asks for a checkpoint and cannot interrupt a wait, and then waits 30
seconds or more. So each process watches the others of its host by their pidfd.

Ranks depend on each other: where one hangs, all others soon wait for it inside a collective. The
one that hangs in its own work reports first and ends. The others end when they see that it is gone;
those that cannot see it (on another host, or merely stopped) a little later.
"""

import faulthandler
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)
AGAIN_S = 3.0
"""Ctrl-C reaches a torchrun worker twice at nearly once, from the terminal and from torchrun."""

EXIT_INTERRUPTED = 75
"""EX_TEMPFAIL of sysexits.h: nothing is wrong, start it again to resume. torchrun reports 1 for
every failure of its processes, so this is what srun, a plain start and a shell see."""


class Stopped(Exception):  # noqa: N818 (nothing is wrong)
    """A job was asked to stop, and all that the next start needs is on disk."""


class StopRequest:
    """Whether this process was asked to stop; the training loop looks once per update."""

    def __init__(self) -> None:
        """Not asked yet."""
        self.signal: int | None = None
        self._interrupted_s: float | None = None

    @property
    def asked(self) -> bool:
        """Whether a signal has come."""
        return self.signal is not None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals over, and give them back at the end; main thread only."""
        before = {number: signal.signal(number, self._handle) for number in _to_take()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        """Note the first signal; after it only a later second Ctrl-C ends the process.

        Machines repeat themselves: SLURM sends SIGTERM again at the limit, torchrun when the first
        of its processes has left. A checkpoint that is being written must survive that.
        """
        if self.signal is None:
            self.signal = number
        if number != signal.SIGINT:
            return
        now_s = time.monotonic()
        if self._interrupted_s is None:
            self._interrupted_s = now_s
        elif now_s - self._interrupted_s > AGAIN_S:
            raise KeyboardInterrupt


def _to_take() -> list[signal.Signals]:
    """All of `SIGNALS`, without a SIGHUP that this process ignores because of `nohup`."""
    hung_up = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in SIGNALS if not (hung_up and number == signal.SIGHUP)]


BOOT = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE = Path("/proc/self/ns/pid")


class Peers:
    """The other processes of the group that this one can see (Linux: on the same host, in the same
    container); elsewhere none."""

    def __init__(self, pids: dict[int, int] | None = None) -> None:
        """`pids`: process ids by rank."""
        self._rank_of: dict[int, int] = {}
        self._never_seen: list[int] = []
        self._ended = select.poll()
        for rank, pid in (pids or {}).items():
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                self._never_seen.append(rank)
            else:
                self._rank_of[descriptor] = rank
                self._ended.register(descriptor, select.POLLIN)

    def gone(self) -> list[int]:
        """Ranks that have ended, for whatever reason, in their order."""
        ended = [self._rank_of[descriptor] for descriptor, _ in self._ended.poll(0)]
        return sorted([*self._never_seen, *ended])

    def close(self) -> None:
        """Look no more."""
        for descriptor in self._rank_of:
            self._ended.unregister(descriptor)
            os.close(descriptor)
        self._rank_of.clear()
        self._never_seen.clear()


def host_id() -> str:
    """What processes must share to see each other; empty where the system does not let them."""
    try:
        os.close(os.pidfd_open(os.getpid()))
        node = os.environ.get("SLURMD_NODENAME", "")  # test clusters have several on one machine
        return f"{BOOT.read_text().strip()} {PID_NAMESPACE.readlink()} {node}"
    except (AttributeError, OSError):
        return ""


START_LIMIT_S = 900.0
"""For opening data, compiling, the first update, and what only one rank does at the end."""
HEAD_START = 0.2
"""Share of its limit that a waiting rank waits longer, so that the rank to blame ends first."""
SLOWER = 3.0
"""A phase may take so many times what it last took: a large micro-batch takes minutes each time."""
PATIENCE_S = 10.0
"""Time that a checkpoint under way is given when the training fails; then the process ends."""
TICK_S = 0.5
STDERR = 2
"""Python's `sys.stderr` may be replaced by something without a file."""

_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_DDP = "torch/nn/parallel/distributed.py"
_COMPILERS = ("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py")


@dataclass(frozen=True)
class Phase:
    """What a process does.

    Attributes:
        name: for people, e.g. "micro-batch 2 of 4".
        begin_s: monotonic clock.
        limit_s: after this without another heartbeat it hangs.
        waits: whether it waits for other ranks and not for itself.
        joint: whether it cannot end without them, though it is work of its own.
    """

    name: str
    begin_s: float
    limit_s: float
    waits: bool
    joint: bool = False


class Watchdog:
    """Ends this process when its last `heartbeat` is too long ago, or when it waits for a process
    that is gone.

    Attributes:
        phase: what this process does.
        peers: processes that it may wait for.
        finishing: a checkpoint under way, which is given a moment where it can be.
    """

    def __init__(self, rank: int, limit_s: float, log: Path | None = None) -> None:
        """Nothing is watched before `watching`.

        Args:
            limit_s: `training.hang_timeout_s`; 0: no hang ends anything.
            log: the job's log file, which the report is appended to; it is on stderr in any case.
        """
        self._rank = rank
        self._limit_s = limit_s
        self._log = log
        self._warm = False
        self._took: dict[str, float] = {}
        self._longest_s = 0.0
        self._watched = False
        self._over = threading.Event()
        self.peers = Peers()
        self.finishing: Future[Any] | None = None
        self.phase = Phase("start", time.monotonic(), START_LIMIT_S, waits=False)

    def heartbeat(
        self, name: str, *, waits: bool = False, joint: bool = False, limit_s: float | None = None
    ) -> None:
        """Report that a new phase begins.

        Args:
            waits: it is a collective, which ends when all ranks have come.
            joint: it is work with collectives in it, in any of which it may have to wait.
            limit_s: a longer one than the setting; of the two the longer counts. Until the first
                update is done none is shorter than `START_LIMIT_S`: networks may be compiled in it.
                A rank that waits for others has the longest limit since the last update, for they
                may still be in that phase.
        """
        now_s, before = time.monotonic(), self.phase
        self._took[before.name] = now_s - before.begin_s
        limit_s = self._limit_s if limit_s is None else max(limit_s, self._limit_s)
        if not self._warm:
            limit_s = max(limit_s, START_LIMIT_S)
        limit_s = max(limit_s, SLOWER * self._took.get(name, 0.0))
        self._longest_s = max(self._longest_s, limit_s)
        self.phase = Phase(name, now_s, self._longest_s if waits else limit_s, waits, joint)
        limit_s = self.phase.limit_s
        if self._watched and self._limit_s and limit_s < before.limit_s:
            self._arm(0.0)  # the next look may come too late for it

    def updated(self) -> None:
        """An update is done; from now on `training.hang_timeout_s` counts."""
        self._warm = True
        self._longest_s = 0.0
        self.heartbeat("log, checkpoint or next batch")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch from a thread of its own until the end of the block."""
        thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        thread.start()
        self._watched = True
        try:
            yield
        finally:
            self._watched = False
            self._over.set()
            thread.join()
            self.peers.close()

    def _watch(self) -> None:
        """Look twice a second."""
        in_vain = None
        while not self._over.wait(TICK_S):
            in_vain = self._look_for_the_gone(in_vain)
            if self._limit_s:
                self._look_at_the_clock()
        faulthandler.cancel_dump_traceback_later()

    def _look_for_the_gone(self, in_vain: Phase | None) -> Phase | None:
        """End if this process still waits, in the phase `in_vain`, for one that is gone.

        Returns the phase in which it waits so now: it may be about to leave it.
        """
        gone, phase = self.peers.gone(), self.phase
        needs = phase.waits or phase.joint
        if not gone or not (needs or any(map(_is_in_collective, _stacks()))):
            return None
        if phase is in_vain:
            self._end(_report_gone(self._rank, phase, gone), patience_s=PATIENCE_S)
        return phase

    def _look_at_the_clock(self) -> None:
        """End if a phase takes too long."""
        phase = self.phase
        waits, compiles = phase.waits, False
        late_s = time.monotonic() - phase.begin_s - phase.limit_s
        if late_s > 0:
            stacks = _stacks()
            waits |= any(map(_is_in_collective, stacks))
            compiles = any(file.endswith(_COMPILERS) for files in stacks for file in files)
        allowed_s = phase.limit_s * HEAD_START if waits else 0.0
        if compiles:
            allowed_s = max(allowed_s, START_LIMIT_S)
        if late_s > allowed_s and phase is self.phase:
            seconds = time.monotonic() - phase.begin_s
            self._end(_report_hang(self._rank, phase, seconds, waits), with_stacks=True)
        self._arm(allowed_s)

    def _arm(self, allowed_s: float) -> None:
        """Have a thread that needs no lock of Python end the process if `_watch` cannot.

        That is where native code hangs and holds the lock.
        """
        limit_s = self.phase.limit_s + allowed_s + 10 * TICK_S
        faulthandler.dump_traceback_later(limit_s, exit=True, file=STDERR)

    def _end(self, text: str, with_stacks: bool = False, patience_s: float = 0.0) -> None:
        """Report, let a checkpoint under way end, and end; a disk that hangs too must not keep the
        process alive."""
        faulthandler.dump_traceback_later(5.0 + patience_s, exit=True, file=STDERR)
        os.write(STDERR, text.encode())
        if with_stacks:
            faulthandler.dump_traceback(STDERR)
        if self._log is not None:
            with self._log.open("a", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                if with_stacks:
                    faulthandler.dump_traceback(file)
        if patience_s and self.finishing is not None:
            futures.wait([self.finishing], patience_s)
        os._exit(1)


def _report_gone(rank: int, phase: Phase, gone: list[int]) -> str:
    """Which rank waits for which, and what to do."""
    return (
        f"\nrank {rank} waits in: {phase.name}, for rank {', '.join(map(str, gone))}, whose "
        "process has ended; its own lines say why. The job ends, start it again to resume from the "
        "last checkpoint.\n"
    )


def _report_hang(rank: int, phase: Phase, seconds: float, waits: bool) -> str:
    """What hangs, whose fault it is, and what to do."""
    begin = f"\nrank {rank} made no progress for {seconds:.0f} s in: {phase.name}. "
    if waits:
        whose = (
            "It was waiting for another rank inside a collective, so the fault is not its own: "
            "a rank that hangs in its own work reports before this one, if it still can. "
        )
    else:
        whose = "It hangs in its own work, other ranks can only wait for it. "
    return (
        f"{begin}{whose}The job ends, start it again to resume from the last checkpoint; if it was "
        "merely slow, raise training.hang_timeout_s. The stacks of its threads:\n"
    )


def _stacks() -> list[list[str]]:
    """For each thread of this process the files of its functions, from the innermost out."""
    return [list(_files_of(innermost)) for innermost in sys._current_frames().values()]


def _files_of(frame: FrameType | None) -> Iterator[str]:
    """A frame's file, and those of all frames that called it."""
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def _is_in_collective(files: list[str]) -> bool:
    """Whether a thread runs a collective; DDP calls some of them without PyTorch's Python."""
    return files[0].endswith(_DDP) or any(file.endswith(_COLLECTIVES) for file in files)
