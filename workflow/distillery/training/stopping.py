"""Stop a long job politely: the first signal asks, a later one ends."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
PATIENCE_S = 3.0
"""Ctrl-C reaches a torchrun worker twice at nearly once, from the terminal and from torchrun."""

EXIT_INTERRUPTED = 75
"""EX_TEMPFAIL of sysexits.h: nothing is wrong, start it again to go on. torchrun reports 1 for
every failure of its processes, so this is what srun, a plain start and a shell see."""


class StopRequest:
    """Whether somebody asked this process to stop; the training loop looks once an update."""

    def __init__(self) -> None:
        """Not asked yet."""
        self.signal: int | None = None
        self._asked_s = 0.0

    @property
    def asked(self) -> bool:
        """Whether a signal has come."""
        return self.signal is not None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals over, and give them back at the end; main thread only."""
        before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        """Note the first signal; a person who asks again is not made to wait."""
        now_s = time.monotonic()
        if self.signal is None:
            self.signal, self._asked_s = number, now_s
        elif now_s - self._asked_s > PATIENCE_S:
            raise KeyboardInterrupt
