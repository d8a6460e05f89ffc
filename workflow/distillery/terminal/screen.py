"""Two ways to show a board: a part of the terminal that is drawn again, or lines now and then."""

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.console import Console, RenderableType
from rich.control import Control
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from tqdm import tqdm

from distillery.terminal.board import Board
from distillery.terminal.jobs import shorten

MIN_COLUMNS, MIN_LINES = 60, 10
"""A smaller terminal gets lines."""
PER_S = 2
"""How often the board is drawn."""
LOOK_S = 1.0
"""Between two looks at the jobs' logs, where nothing is drawn."""
SHARE = 0.02
"""Of the time so far: lines come no more often, so that a week does not fill a log."""
WIDE_COLUMNS, BESIDE_A_NAME = 110, 52
"""From here on there is room for devices; and what stands beside a name."""
MAX_SHOWN = 12
"""Running jobs; the rest are counted."""


class View(ABC):
    """Shows lines for good, and meanwhile how far all is."""

    @abstractmethod
    def say(self, text: str, style: str = "") -> None:
        """A line that stays."""

    @abstractmethod
    def close(self) -> None:
        """Show nothing more but lines that stay."""

    @abstractmethod
    def show_cursor(self) -> None:
        """Show what drawing hides; called by a signal's handler."""


class Lines(View):
    """For pipes, logs and small terminals: lines, at intervals one of each running job."""

    def __init__(self, board: Board, stream: TextIO, every_s: float) -> None:
        """Begin."""
        self._board, self._stream = board, stream
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, args=(every_s,), daemon=True)
        self._thread.start()

    def say(self, text: str, style: str = "") -> None:
        """Without colours."""
        self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """The thread ends."""
        self._ended.set()

    def show_cursor(self) -> None:
        """Lines never hide it."""

    def _repeat(self, every_s: float) -> None:
        begin_s = told_s = time.monotonic()
        while not self._ended.wait(min(every_s, LOOK_S)):
            for warning in self._board.look():
                self.say(warning)
            now_s = time.monotonic()
            if now_s - told_s >= max(every_s, SHARE * (now_s - begin_s)):
                told_s = now_s
                for line in progress_lines(self._board):
                    self.say(line)


def progress_lines(board: Board) -> Iterator[str]:
    """How far each running job that counts is, and all of them."""
    counting = [job for job in board.at_work if job.items]
    for job in counting[:MAX_SHOWN]:
        about = [job.items, _speed(job.items_per_s), _left(job.left_s)]
        name = f"{job.name} [{job.device}]" if job.device else job.name
        yield f"{name} {', '.join(part for part in about if part)}"
    if board.running:
        left = _left(board.left_s)
        yield f"{board.counts}, {board.share:.0%} of the work" + (f", {left}" if left else "")


class Screen(View):
    """For terminals: a line of each running job and one of all, below the lines that stay."""

    def __init__(self, board: Board, console: Console) -> None:
        """Begin to draw."""
        self._board, self._console = board, console
        self._live = Live(
            get_renderable=self._draw,
            console=console,
            refresh_per_second=PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def say(self, text: str, style: str = "") -> None:
        """Above the jobs."""
        self._console.print(Text(text, style=style), soft_wrap=True)

    def close(self) -> None:
        """Take the jobs away."""
        self._live.stop()

    def show_cursor(self) -> None:
        """Past the console, which another thread may hold."""
        os.write(self._console.file.fileno(), str(Control.show_cursor(True)).encode())

    def _draw(self) -> RenderableType:
        for warning in self._board.look():
            self.say(warning, "yellow")
        width, height = self._console.size
        table = Table.grid(padding=(0, 2))
        for _ in range(5 + (width >= WIDE_COLUMNS)):
            table.add_column(no_wrap=True)
        jobs, room = self._board.at_work, max(1, min(MAX_SHOWN, height - 4))
        for job in jobs[:room]:
            about = (job.items, _speed(job.items_per_s), _left(job.left_s))
            name = shorten(job.name, max(12, width - BESIDE_A_NAME))
            self._add(table, name, job.device, job.share if job.items else None, about)
        if len(jobs) > room:
            table.add_row(f"and {len(jobs) - room} more jobs")
        about = (self._board.counts, f"{self._board.share:.0%}", _left(self._board.left_s))
        self._add(table, "all", "", self._board.share, about)
        return table

    def _add(
        self, table: Table, name: str, device: str, share: float | None, about: Sequence[str]
    ) -> None:
        """A row; on a narrow terminal without device and with a short bar."""
        is_wide = self._console.size.width >= WIDE_COLUMNS
        bar = ProgressBar(1.0, share, width=20 if is_wide else 6) if share is not None else ""
        table.add_row(name, *([Text(device, "dim")] if is_wide else []), bar, *about)


def view_of(board: Board, stream: TextIO, every_s: float, nocolor: bool) -> View:
    """What fits a stream."""
    console = Console(file=stream, no_color=nocolor or None, highlight=False)
    width, height = console.size
    if not console.is_terminal or width < MIN_COLUMNS or height < MIN_LINES:
        return Lines(board, stream, every_s)
    return Screen(board, console)


def _speed(items_per_s: float | None) -> str:
    return f"{items_per_s:.3g}/s" if items_per_s else ""


def _left(seconds: float | None) -> str:
    return f"{tqdm.format_interval(seconds)} left" if seconds is not None else ""
