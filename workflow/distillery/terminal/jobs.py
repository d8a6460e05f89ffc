"""Running jobs as their files tell of them: how far they are, and what they warn of."""

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distillery.run_folder import RunFolder
from distillery.telemetry import INTERRUPTED, OF_A_RUN
from distillery.terminal.tracebacks import SIGNALLED, first_error
from distillery.watched import TOLD

MAX_ERROR_LINES, MAX_LINE = 20, 400
"""Of a message on the terminal, and characters of a line; the log has all."""
QUOTED = re.compile(r"(`[^`]+`)")
"""A command, which is whole or of no use."""
CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal would obey; a log may hold anything."""
ERROR = "error: "
KILLED = "ended without an error, as when it is killed"
BEFORE_ALL = "interrupted before it began"
STOPPED = ("interrupted: ", "stopped by a signal")
"""What jobs say that end because they were asked to."""
TALKING = {"plan": ERROR, "verify": TOLD}
"""Jobs whose results go to the terminal, which nobody draws on meanwhile; and how a line of their
log begins where they have said there why they fail."""
WARNING, WAITING = " WARNING ", "waiting for "
TICK_S = 0.05
"""By so much a file's date, which is of the kernel's coarse clock, may lie before the true time."""


@dataclass
class Job:
    """One job that Snakemake has started.

    Attributes:
        begin_s: Unix time.
        output: the first of its outputs; None where it has none.
        note: what the job wrote last of how far it is, see `telemetry.ProgressBar`.
    """

    rule: str
    log: Path | None
    begin_s: float
    output: Path | None = None
    note: dict[str, Any] = field(default_factory=dict)
    _read: int = 0
    _loaded: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        """In words: that of its log."""
        return self.log.stem if self.log else self.rule

    @property
    def device(self) -> str:
        """cpu, or which GPU; empty before it is known."""
        return str(self.note.get("device", ""))

    @property
    def is_a_run(self) -> bool:
        """Whether it is a Snakemake with jobs of its own."""
        return self.note.get("unit") == OF_A_RUN

    @property
    def talks(self) -> bool:
        """Whether the terminal is its own."""
        return self.name in TALKING

    @property
    def has_told(self) -> bool:
        """Whether it has said on the terminal why it fails."""
        begin = TALKING.get(self.name)
        lines = _lines(self._log_from(0)) if begin else []
        return any(line.startswith(begin) for line in lines if begin)

    @property
    def share(self) -> float:
        """Of its items that are done, from 0 to 1."""
        total = self.note.get("total", 0)
        return min(1.0, self.note["done"] / total) if total else 0.0

    @property
    def items_per_s(self) -> float | None:
        """Since its first items were done, before which it loads; None where nothing is known."""
        if self._loaded is None or self.is_a_run:
            return None
        done_before, at_s = self._loaded
        seconds, done = self.note["at_s"] - at_s, self.note["done"] - done_before
        return float(done / seconds) if seconds > 0 and done > 0 else None

    @property
    def left_s(self) -> float | None:
        """Seconds to its last item, at this speed."""
        speed = self.items_per_s
        if speed is None:
            return None
        left = (self.note["total"] - self.note["done"]) / speed
        return float(max(0.0, left - (time.time() - self.note["at_s"])))

    @property
    def items(self) -> str:
        """4,480 of 8,000 samples; empty where nothing is counted."""
        if not self.note:
            return ""
        return f"{self.note['done']:,} of {self.note['total']:,} {self.note['unit'].strip()}"

    @property
    def counted(self) -> str:
        """What it has at its end, and whether it made any of it: all 8,000 samples were there."""
        text = f"{self.note['done']:,} {self.note['unit'].strip()}"
        all_found = 0 < self.note["total"] <= self.note.get("found", 0)
        return f"all {text} were there" if all_found else text

    def look(self) -> list[str]:
        """Read how far it is; returns what is new in its log of warnings, and of waiting.

        That it was asked to stop are its last words, which the terminal says when it has ended.
        """
        self._look_at_note()
        new = self._new_lines()
        waits = [f"{self.name} is {line}" for line in new if line.startswith(WAITING)]
        warnings = [line for line in new if WARNING in line and not _says_stopped(line)]
        return waits + [_without_time(line) for line in warnings]

    def _look_at_note(self) -> None:
        """A note that is half written, or of an earlier try, changes nothing."""
        if self.log is None:
            return
        path = RunFolder(self.log.parent.parent).progress(self.name)
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if note["at_s"] >= self.begin_s:
            self.note = note
            if self._loaded is None and note["done"] > note["initial"]:
                self._loaded = note["done"], note["at_s"]

    def _new_lines(self) -> list[str]:
        """Whole lines of the log since the last look."""
        text = self._log_from(self._read)
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return _lines(whole)

    def last_words(self, is_stopped: bool = False) -> str:
        """How it ended without success: its message for the user, the first error or its last line.

        Launchers write long tracebacks below these. Ctrl-C may meet a job that can say nothing of
        it, as its work is done: `is_stopped` tells that it was pressed.
        """
        lines = [line for line in _lines(self._log_from(0)) if line.strip()]
        begins = [number for number, line in enumerate(lines) if line.startswith(ERROR)]
        if begins:
            return f"{self.name} failed: {_message(lines[begins[-1] :])}"
        stopped = [line for line in lines if _says_stopped(line)]
        if stopped:
            return f"{self.name} stopped: {_without_time(stopped[-1])}"
        if not lines:
            return (
                f"{self.name} stopped: {BEFORE_ALL}"
                if is_stopped
                else f"{self.name} {KILLED}; its log says nothing"
            )
        if lines[-1] == KeyboardInterrupt.__name__:  # where Python still imported
            return f"{self.name} stopped: {BEFORE_ALL}"
        last = _without_time(lines[-1])
        if SIGNALLED.match(last) and (is_stopped or first_error(lines) is None):
            has_begun = any(_without_time(line) != line for line in lines)
            return f"{self.name} stopped: {INTERRUPTED if has_begun else BEFORE_ALL}"
        if is_stopped:
            return f"{self.name} stopped: interrupted; its last line: {last}"
        if last == lines[-1]:
            return f"{self.name} failed: {first_error(lines) or last}"
        return f"{self.name} {KILLED}; its last line: {last}"

    def _log_from(self, position: int) -> bytes:
        """The end of its log; nothing of that of an earlier try, which Snakemake removes."""
        try:
            if self.log is None or self.log.stat().st_mtime < self.begin_s - TICK_S:
                return b""
            with self.log.open("rb") as file:
                file.seek(position)
                return file.read()
        except OSError:
            return b""


def _says_stopped(line: str) -> bool:
    return any(words in line for words in STOPPED)


def _message(lines: Sequence[str]) -> str:
    """An error's message, which may have several lines, without its traceback."""
    message: list[str] = []
    for line in lines:
        if line.startswith("Traceback") or len(message) == MAX_ERROR_LINES:
            break
        message.append(line)
    return "\n".join(message).strip().removeprefix(ERROR)


def _lines(text: bytes) -> list[str]:
    """Lines that a terminal can show."""
    lines = text.decode("utf-8", errors="replace").split("\n")
    return [_fit(CONTROL.sub("", line)) for line in lines if line]


def _fit(line: str) -> str:
    """A line that is shortened around the commands in it."""
    parts = QUOTED.split(line)  # every second one is a command
    return "".join(
        part if number % 2 else shorten(part, MAX_LINE) for number, part in enumerate(parts)
    )


def shorten(text: str, most: int) -> str:
    """A text of so many characters at the most, the middle left out."""
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def _without_time(line: str) -> str:
    """A log's line without its date and level, which a terminal has no room for."""
    words = line.split(" ", 3)
    return words[3] if len(words) == 4 and words[2].isupper() else line
