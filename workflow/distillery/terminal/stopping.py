"""How Snakemake's process takes Ctrl-C and the end of its terminal while the board is drawn."""

import _thread
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType

Handler = Callable[[int, FrameType | None], None]
ENDS = (signal.SIGHUP, signal.SIGQUIT)
"""End the process at once: a closed terminal, and Ctrl-\\."""


def end_beside_the_scheduler() -> None:
    """Let SIGTERM be handled in a thread of its own.

    Snakemake's handler takes a lock. Where the main thread has it, as while the jobs to start are
    chosen, the handler waited for the thread that it interrupts, and nothing but SIGKILL ended the
    run. A thread waits until the choice is made.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if callable(handler):
        given = handler

        def handle(number: int, frame: FrameType | None) -> None:
            _thread.start_new_thread(given, (number, frame))

        signal.signal(signal.SIGTERM, handle)


class Stopping:
    r"""Lets the first Ctrl-C stop Snakemake, and later ones change nothing.

    Snakemake catches the first and waits for the jobs, which have got it too. A second one would
    end this wait with Snakemake's traceback below the lines that tell how to resume. Ctrl-\ still
    ends all at once.

    Attributes:
        is_asked: whether Ctrl-C was pressed.
    """

    def __init__(self, show_cursor: Callable[[], None]) -> None:
        """Take the signals that are not ignored, as `nohup` asks for; `show_cursor` is called
        before the process is ended by one of `ENDS`."""
        self.is_asked = False
        self._show_cursor = show_cursor
        self._hook = sys.excepthook
        self._taken: list[signal.Signals] = []
        with suppress(ValueError):  # in a thread that gets no signals
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._take(signal.SIGINT, self._stop)
                sys.excepthook = self._say_nothing_of_it
            for number in ENDS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._take(number, self._end)

    def give_back(self) -> None:
        """As it was before; but a process that was asked to stop ends without another word."""
        if self.is_asked:
            return
        for number in self._taken:
            is_ctrl_c = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_ctrl_c else signal.SIG_DFL)
        if signal.SIGINT in self._taken:
            sys.excepthook = self._hook
        self._taken.clear()

    def _take(self, number: signal.Signals, handler: Handler) -> None:
        signal.signal(number, handler)
        self._taken.append(number)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if not self.is_asked:
            self.is_asked = True
            signal.default_int_handler(number, frame)

    def _end(self, number: int, _: FrameType | None) -> None:
        """Show the cursor and end as without us: children and the shell see the same status."""
        with suppress(OSError):  # the terminal may be gone
            self._show_cursor()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _say_nothing_of_it(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Where Ctrl-C came before the first job, Snakemake does not catch it."""
        if not issubclass(kind, KeyboardInterrupt):
            self._hook(kind, error, trace)
