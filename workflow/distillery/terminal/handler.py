"""Snakemake's events, shown as a few lines: which jobs run, how far they are, how it ended.

Snakemake's own log file, below .snakemake/log, has all that is left out here. Its own output comes
with `--logger-distillery-style snakemake`, in dry runs, and with its options that ask for details.
"""

import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase
from tqdm import tqdm

from distillery.config.command_line import check_words
from distillery.telemetry import ProgressBar, note_of_run
from distillery.terminal.board import Board, Failure
from distillery.terminal.stopping import Stopping
from distillery.watched import watch_jobs

HIDDEN = ("Warning: the following output files of rule", "Cannot restore ")
"""What it warns of though nothing is wrong: the plan before the first job writes a job's file, and
a plan that is refused leaves none where none was."""
RESTART = re.compile(r"Trying to restart job (\d+)\.")
USELESS = "At least one job did not complete successfully"
"""Its last word where a job failed, which is told by name, and after SIGTERM, where none did."""
SHOWN = (
    "Nothing to be done", "Will exit after finishing", "Report created", "Unlock",
    "Terminating processes",
)  # fmt: skip
"""What Snakemake says that a user must see, by how it begins."""
CALLED_FROM = re.compile(
    r"(\nWildcards:(\n.*)*\nTraceback:)?(\n +File \".*\", line \d+, in .*)*(\n \(rule .*\))?\n?$"
)
"""Where in a Snakefile an error was raised, which says nothing to who wrote a configuration."""
REFUSED = "the plan refuses this run, nothing was started; see above, or {}"
"""As where it is planned before the first job."""
UPDATED = " (update)"
"""How the name of an output ends that a job may leave as it is."""
MIN_EVERY_S = 1.0
QUIET_S = 2.0
"""A job without a count that was done sooner is not named."""


@dataclass
class LogHandlerSettings(LogHandlerSettingsBase):
    """Options of the command line: --logger-distillery-style and -every-s."""

    style: str = field(
        default="auto",
        metadata={
            "help": "auto: drawn on a terminal, else lines; lines; snakemake: its own output",
            "choices": ["auto", "lines", "snakemake"],
        },
    )
    every_s: float = field(
        default=30.0,
        metadata={"help": "seconds between two lines of a job, at least 1", "type": float},
    )

    def __post_init__(self) -> None:
        """Look at the command line, which Snakemake's own reading ends with a traceback.

        The settings are read before the configurations are.
        """
        try:
            check_words(sys.argv[1:])
        except ValueError as error:
            raise SystemExit(str(error)) from None


class LogHandler(LogHandlerBase):
    """Takes in records from the thread of Snakemake's queue."""

    def __post_init__(self) -> None:
        """Nothing is drawn before a job begins."""
        assert isinstance(self.settings, LogHandlerSettings)
        self._board = Board()
        self._note: ProgressBar | None = None
        self._view: Any = None
        stream = sys.stdout if self.common_settings.stdout else sys.stderr
        # None where it was closed; what is said goes nowhere then, and the run goes on.
        self._stream = stream or open(os.devnull, "w")  # noqa: PTH123, SIM115
        self._errors: list[str] = []
        self._held: list[str] = []
        self._is_done = self._has_ended = False
        self._snakemakes: logging.Handler | None = None
        self._stopping: Stopping | None = None
        common = self.common_settings
        asks = common.dryrun or common.verbose or common.debug_dag or common.printshellcmds
        if asks or common.quiet or self.settings.style == "snakemake":
            self._snakemakes_own()
        else:
            watch_jobs()
            self._stopping = Stopping(self._show_cursor)

    writes_to_stream = True
    writes_to_file = False
    has_filter = False
    has_formatter = False
    needs_rulegraph = False

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record, or take notice of it."""
        if self._snakemakes is None:
            try:
                self._take(record)
                return
            except Exception as error:  # no error of ours may hide what Snakemake says
                self._close_view()
                self._stream.write(f"Snakemake's own output from here on: {error!r}\n")
        self._snakemakes_own().emit(record)

    def close(self) -> None:
        """Say how it ended, last of all."""
        if self._snakemakes is None and not self._has_ended:
            self._has_ended = True  # Snakemake and Python's logging both close it
            try:
                self._end()
            except Exception as error:
                self._stream.write(f"the end could not be shown: {error!r}\n")
        if self._stopping is not None:
            self._stopping.give_back()
        super().close()

    def _snakemakes_own(self) -> logging.Handler:
        """What would show the records without this plugin."""
        from snakemake.logging import ColorizingTextHandler  # type: ignore[import-untyped]

        if self._snakemakes is None:
            self._snakemakes = ColorizingTextHandler(self.common_settings.nocolor, self._stream)
        assert self._snakemakes is not None
        self._snakemakes.setFormatter(self.formatter)
        return self._snakemakes

    def _take(self, record: logging.LogRecord) -> None:
        """Each kind of record has its answer; most have none."""
        fields = vars(record)
        match fields.get("event"):
            case LogEvent.RUN_INFO:
                self._board.plan(fields["stats"])
                self._note = note_of_run(self._board.numbers.total())
            case LogEvent.JOB_INFO:
                self._say_held()
                number, rule = fields["jobid"], fields["rule_name"]
                log, output = _first(fields["log"]), _first(fields["output"])
                self._board.begin(number, rule, log, record.created, output)
                self._open_view()
            case LogEvent.JOB_FINISHED:
                self._finish(fields["job_id"])
            case LogEvent.JOB_ERROR:
                self._fail(fields["jobid"])
            case LogEvent.PROGRESS:
                self._is_done = fields["done"] == fields["total"]
                if self._is_done:
                    self._errors.clear()  # of jobs that were tried again
            case LogEvent.ERROR:
                text = record.getMessage()
                self._errors += [text] if USELESS not in text else []
            case None:
                self._hear(record)

    def _hear(self, record: logging.LogRecord) -> None:
        """A line of Snakemake's own."""
        text = record.getMessage()
        if record.levelno >= logging.ERROR:
            self._errors += [text] if USELESS not in text else []
        elif restart := RESTART.match(text):
            self._say_held()
            self._say(f"{self._board.names.get(int(restart[1]), 'a job')} is tried again")
        elif text.startswith(HIDDEN):
            return
        elif record.levelno >= logging.WARNING or text.startswith(SHOWN):
            self._say(text, "yellow" if record.levelno >= logging.WARNING else "")

    def _finish(self, number: int) -> None:
        job = self._board.end(number)
        if job is None:
            return
        if self._note is not None:
            self._note.update()
        self._open_view()
        for warning in job.look():
            self._say(warning, "yellow")
        seconds = time.time() - job.begin_s
        if job.items or seconds > QUIET_S:
            counted = f", {job.counted}" if job.items else ""
            self._say(f"{job.name} done in {tqdm.format_interval(seconds)}{counted}")

    def _fail(self, number: int) -> None:
        """Where nothing else runs, the last lines are about to say it."""
        failure = self._board.fail(number, self._is_stopped)
        self._open_view()
        if failure is not None and not failure.is_told:
            self._held.append(failure.message.splitlines()[0])
            if self._board.running and not self._is_stopped:
                self._say_held()

    def _say_held(self) -> None:
        """Failures that are not the end."""
        for line in self._held:
            self._say(line, "red")
        self._held.clear()

    def _say(self, text: str, style: str = "") -> None:
        if self._view is None:
            self._stream.write(text + "\n")
            self._stream.flush()
        else:
            self._view.say(text, style)

    @property
    def _is_stopped(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._stopping is not None and self._stopping.is_asked

    def _open_view(self) -> None:
        """Draw, unless a job's own words would be drawn over."""
        jobs = self._board.at_work
        if self._stream.isatty() and any(job.talks for job in jobs):
            self._close_view()
            self._view = None
        elif jobs and self._view is None:
            self._view = self._new_view()

    def _new_view(self) -> Any:
        """What the options and the stream ask for."""
        from distillery.terminal.screen import Lines, view_of

        assert isinstance(self.settings, LogHandlerSettings)
        every_s = max(MIN_EVERY_S, self.settings.every_s)
        if self.settings.style == "lines":
            return Lines(self._board, self._stream, every_s)
        return view_of(self._board, self._stream, every_s, self.common_settings.nocolor)

    def _show_cursor(self) -> None:
        if self._view is not None:
            self._view.show_cursor()

    def _close_view(self) -> None:
        if self._view is not None:
            self._view.close()

    def _end(self) -> None:
        """The last lines: the verdict, or what failed and how to resume."""
        self._close_view()
        if self._board.all_is_told:
            self._end_told()
            return
        took = tqdm.format_interval(time.time() - self._board.begin_s)
        if self._board.failures:
            self._say("")
            for line in lines_of(list(self._board.failures.values())):
                self._say(line, "red")
        elif self._errors:
            for text in dict.fromkeys(self._errors):
                self._say(CALLED_FROM.sub("", text), "red")
        elif self._is_done:
            for line in (*self._board.closing_lines(), f"{self._board.counts} in {took}"):
                self._say(line)
        if self._board.names and not self._is_done:
            stopped = "" if self._board.failures or self._errors else "stopped; "
            self._say(f"{stopped}{self._board.counts} done in {took}, what is finished is kept")
            self._say(_how_to_resume())
        elif self._is_stopped and not self._is_done:
            self._say("stopped before the first job")
            self._say(_how_to_resume())

    def _end_told(self) -> None:
        """Below what jobs have said: trying again would only say it again."""
        for failure in self._board.failures.values():
            if failure.log is not None and failure.log.stem == "plan":
                self._say(REFUSED.format(failure.log), "red")


def _first(files: Sequence[str]) -> Path | None:
    """The first of a job's files, without what Snakemake says of it."""
    return Path(files[0].removesuffix(UPDATED)) if files else None


def _how_to_resume() -> str:
    """The command that was typed, to be typed again."""
    return f"resume with: {shlex.join(['snakemake', *sys.argv[1:]])}"


def lines_of(failures: Sequence[Failure]) -> list[str]:
    """What failed, why, and where more is to be read; what several say alike once."""
    alike: dict[str, list[Failure]] = {}
    for failure in failures:
        alike.setdefault(failure.message.partition(": ")[2], []).append(failure)
    lines = []
    for first, *others in alike.values():
        lines += [first.message] + ([f"  log: {first.log}"] if first.log else [])
        if others:
            lines.append(
                f"  {len(others)} more jobs say the same"
                if len(others) > 1
                else "  1 more job says the same"
            )
    return lines
