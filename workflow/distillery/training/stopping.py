"""Stop a long job politely: a signal asks, and only a person who presses Ctrl-C again insists."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)
PATIENCE_S = 3.0
"""Ctrl-C reaches a torchrun worker twice at nearly once, from the terminal and from torchrun."""

EXIT_INTERRUPTED = 75
"""EX_TEMPFAIL of sysexits.h: nothing is wrong, start it again to go on. torchrun reports 1 for
every failure of its processes, so this is what srun, a plain start and a shell see."""


class Stopped(Exception):  # noqa: N818 (nothing is wrong)
    """A job was asked to stop, and all that the next start needs is on disk."""


class StopRequest:
    """Whether somebody asked this process to stop; the training loop looks once an update."""

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
        """Note the first signal; of the others a later second Ctrl-C alone ends the process.

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
        elif now_s - self._interrupted_s > PATIENCE_S:
            raise KeyboardInterrupt


def _to_take() -> list[signal.Signals]:
    """All of them, but not a SIGHUP that `nohup` has this process ignore."""
    hung_up = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in SIGNALS if not (hung_up and number == signal.SIGHUP)]
