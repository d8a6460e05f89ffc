"""Snakemake's records, and what the terminal shows of them."""

import io
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from snakemake.logging import DefaultFilter, DefaultFormatter  # type: ignore[import-untyped]
from snakemake_interface_logger_plugins.common import LogEvent

from distillery.run_folder import RunFolder
from distillery.terminal.screen import Lines, Screen, view_of
from distillery.watched import WATCHED
from snakemake_logger_plugin_distillery import LogHandler, LogHandlerSettings

Make = Callable[..., LogHandler]
COMMON = {
    "printshellcmds": False, "nocolor": False, "quiet": None, "debug_dag": False, "verbose": False,
    "show_failed_logs": False, "stdout": False, "dryrun": False,
}  # fmt: skip


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "argv", ["/bin/snakemake", "--cores", "all", "my run"])
    monkeypatch.setenv(WATCHED, "")
    return stream


@pytest.fixture
def make(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(style: str = "auto", every_s: float = 3600.0, **common: Any) -> LogHandler:
        monkeypatch.setattr(sys, "stderr", stream)
        settings: Any = SimpleNamespace(**COMMON | common)
        handler = LogHandler(settings, LogHandlerSettings(style=style, every_s=every_s))
        handler.addFilter(DefaultFilter(None, False, False, False, False))
        handler.setFormatter(DefaultFormatter(None, False))
        return handler

    return make


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "results" / "demo")
    run.log("x").parent.mkdir(parents=True)
    return run


def tell(
    handler: LogHandler,
    event: LogEvent | None,
    text: str = "",
    level: int = logging.INFO,
    **fields: Any,
) -> None:
    record = logging.LogRecord("snakemake", level, "", 0, text, None, None)
    vars(record).update(fields | ({"event": event} if event else {}))
    handler.handle(record)


def begin(handler: LogHandler, number: int, rule: str, log: Path, *output: str) -> None:
    facts = {"jobid": number, "rule_name": rule, "log": [str(log)], "output": output}
    tell(handler, LogEvent.JOB_INFO, **facts)


def finish(handler: LogHandler, number: int, done: int, total: int) -> None:
    tell(handler, LogEvent.JOB_FINISHED, job_id=number)
    tell(handler, LogEvent.PROGRESS, done=done, total=total)


def counted(run: RunFolder, job: str, done: int = 64, in_s: float = 0.0) -> None:
    """As if a job had done so many of 64."""
    run.telemetry.mkdir(exist_ok=True)
    now = time.time()
    note = {"done": done, "total": 64, "unit": " samples", "device": "cpu", "initial": 0}
    run.progress(job).write_text(json.dumps(note | {"begin_s": now - 2, "at_s": now + in_s}))


def test_a_whole_run_ends_with_its_verdict(make: Make, stream: io.StringIO, run: RunFolder) -> None:
    handler = make()
    tell(handler, None, "Building DAG of jobs...")
    tell(handler, LogEvent.RUN_INFO, "", stats={"freeze": 1, "targets": 1, "total": 2})
    begin(handler, 1, "freeze", run.log("freeze-run"))
    finish(handler, 1, 1, 2)
    begin(handler, 2, "targets", run.log("targets-0-of-1"))
    counted(run, "targets-0-of-1")
    finish(handler, 2, 2, 2)
    run.report.parent.mkdir()
    run.report.touch()
    verdict = [
        {"question": "good?", "outcome": "passed", "finding": "yes"},
        {"question": "near?", "outcome": "undecided", "finding": "0.1 (-0.1 to 0.3)"},
    ]
    run.metrics.write_text(json.dumps({"verdict": verdict}))
    handler.close()
    handler.close()
    assert stream.getvalue().splitlines() == [
        "targets-0-of-1 done in 00:00, 64 samples",
        "passed 1 of 2 checks",
        "  undecided: near?: 0.1 (-0.1 to 0.3)",
        f"report: {run.report}",
        "2 of 2 jobs in 00:00",
    ]


def test_what_failed_comes_last_with_the_command_that_resumes(
    make: Make, stream: io.StringIO, run: RunFolder
) -> None:
    handler = make()
    tell(handler, LogEvent.RUN_INFO, "", stats={"targets": 2, "total": 2})
    log = run.log("targets-0-of-2")
    begin(handler, 1, "targets", log)
    log.write_text("error: the disk is full\n  free 3 GiB\n")
    tell(handler, LogEvent.JOB_ERROR, "", logging.ERROR, jobid=1)
    tell(handler, LogEvent.ERROR, "CalledProcessError in file x", logging.ERROR)
    tell(handler, None, "At least one job did not complete successfully.", logging.ERROR)
    handler.close()
    assert stream.getvalue().splitlines() == [
        "",
        "targets-0-of-2 failed: the disk is full",
        "  free 3 GiB",
        f"  log: {log}",
        "0 of 2 jobs done in 00:00, what is finished is kept",
        "resume with: snakemake --cores all 'my run'",
    ]


def test_a_failure_is_told_at_once_where_others_run_or_begin(
    make: Make, stream: io.StringIO, run: RunFolder
) -> None:
    """Their end may be hours away."""
    handler = make()
    tell(handler, LogEvent.RUN_INFO, "", stats={"targets": 4, "total": 4})
    for number in range(2):
        begin(handler, number, "targets", run.log(f"targets-{number}-of-4"))
        run.log(f"targets-{number}-of-4").write_text(f"error: chunk {number} is damaged\n")
    tell(handler, LogEvent.JOB_ERROR, "", logging.ERROR, jobid=0)
    assert stream.getvalue() == "targets-0-of-4 failed: chunk 0 is damaged\n"
    tell(handler, LogEvent.JOB_ERROR, "", logging.ERROR, jobid=1)
    assert "chunk 1" not in stream.getvalue(), "it may be the last"
    begin(handler, 2, "targets", run.log("targets-2-of-4"))
    handler.close()
    before, _, end = stream.getvalue().partition("\n\n")
    assert before.splitlines()[1:] == ["targets-1-of-4 failed: chunk 1 is damaged"]
    assert "chunk 0 is damaged" in end


def test_a_refused_run_says_why_and_nothing_of_jobs(make: Make, stream: io.StringIO) -> None:
    handler = make()
    tell(handler, LogEvent.RUN_INFO, "", stats={"targets": 2, "total": 2})
    text = 'WorkflowError in file "/x/Snakefile", line 44:\nno such key\n  File "/x", line 4, in y'
    tell(handler, LogEvent.ERROR, text, logging.ERROR)
    handler.close()
    assert stream.getvalue() == 'WorkflowError in file "/x/Snakefile", line 44:\nno such key\n'


def test_an_input_function_s_error_says_only_what_is_wrong(make: Make, stream: io.StringIO) -> None:
    handler = make()
    text = (
        'Error:\n  no such file\nWildcards:\n  split=train\nTraceback:\n  File "/x", line 4, in y'
    )
    tell(handler, LogEvent.ERROR, text, logging.ERROR)
    handler.close()
    assert stream.getvalue() == "Error:\n  no such file\n"


def test_what_several_jobs_say_alike_is_told_once(
    make: Make, stream: io.StringIO, run: RunFolder
) -> None:
    handler = make()
    tell(handler, LogEvent.RUN_INFO, "", stats={"targets": 3, "total": 3})
    for number in range(3):
        log = run.log(f"targets-{number}-of-3")
        begin(handler, number, "targets", log)
        log.write_text(f"error: {'chunk 7 is damaged' if number else 'another error'}\n")
        tell(handler, LogEvent.JOB_ERROR, "", logging.ERROR, jobid=number)
    tell(handler, None, "Trying to restart job 1.")
    handler.close()
    said = stream.getvalue()
    assert "targets-1-of-3 is tried again\n" in said
    end = said.partition("\n\n")[2].splitlines()
    assert end[0] == "targets-0-of-3 failed: another error"
    assert end[2] == "targets-1-of-3 failed: chunk 7 is damaged"
    assert end[4] == "  1 more job says the same"


def test_a_run_whose_second_try_succeeds_ends_well(
    make: Make, stream: io.StringIO, run: RunFolder
) -> None:
    handler = make()
    tell(handler, LogEvent.RUN_INFO, "", stats={"targets": 1, "total": 1})
    begin(handler, 1, "targets", run.log("targets-0-of-1"))
    tell(handler, LogEvent.ERROR, "RuleException:\nCalledProcessError", logging.ERROR)
    tell(handler, LogEvent.JOB_ERROR, "", logging.ERROR, jobid=1)
    tell(handler, None, "Trying to restart job 1.")
    begin(handler, 1, "targets", run.log("targets-0-of-1"))
    finish(handler, 1, 1, 1)
    handler.close()
    assert stream.getvalue().splitlines()[1:] == [
        "targets-0-of-1 is tried again",
        "1 of 1 jobs in 00:00",
    ]


def test_a_run_that_is_stopped_says_so(make: Make, stream: io.StringIO, run: RunFolder) -> None:
    handler = make()
    tell(handler, LogEvent.RUN_INFO, "", stats={"targets": 2, "total": 2})
    begin(handler, 1, "targets", run.log("targets-0-of-2"))
    tell(handler, None, "Will exit after finishing currently running jobs (scheduler).")
    finish(handler, 1, 1, 2)
    text = "WorkflowError:\nAt least one job did not complete successfully."
    tell(handler, LogEvent.ERROR, text, logging.ERROR)
    handler.close()
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("Will exit after finishing")
    assert lines[1] == "stopped; 1 of 2 jobs done in 00:00, what is finished is kept"


def test_a_training_that_is_stopped_says_so_once(
    make: Make, stream: io.StringIO, run: RunFolder
) -> None:
    """In a warning of its log, which the view reads before the job has ended."""
    handler = make()
    begin(handler, 1, "training", run.log("training"))
    stamp = "2026-11-23 17:12:00,968 WARNING training [cpu]"
    stopped = "stopped by a signal, a checkpoint is saved"
    run.log("training").write_text(f"{stamp} the loss rises\n{stamp} {stopped}\n")
    warnings = handler._board.look()
    tell(handler, LogEvent.JOB_ERROR, "", logging.ERROR, jobid=1)
    handler.close()
    assert warnings == ["training [cpu] the loss rises"]
    assert stream.getvalue().count(stopped) == 1


def test_nobody_listens(make: Make, monkeypatch: pytest.MonkeyPatch, run: RunFolder) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    handler = make(stdout=True)
    begin(handler, 1, "targets", run.log("targets-0-of-2"))
    finish(handler, 1, 1, 1)
    handler.close()
    assert handler._board.finished == {"targets": 1}, "it went on all the same"
    assert handler._snakemakes is None, "and met no error"


def test_warnings_and_nothing_to_do_are_shown(make: Make, stream: io.StringIO) -> None:
    handler = make()
    tell(handler, None, "Nothing to be done (all requested files are present).")
    tell(handler, None, "a rule has changed", logging.WARNING)
    tell(handler, None, "Warning: the following output files of rule freeze were", logging.WARNING)
    tell(handler, None, "Select jobs to execute...")
    handler.close()
    assert stream.getvalue() == (
        "Nothing to be done (all requested files are present).\na rule has changed\n"
    )


@pytest.mark.parametrize(
    ("style", "common"),
    [("snakemake", {}), ("auto", {"dryrun": True}), ("lines", {"printshellcmds": True})],
)
def test_snakemakes_own_output_is_one_flag_away(
    make: Make, stream: io.StringIO, run: RunFolder, style: str, common: dict[str, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv(WATCHED, "")
    handler = make(style, **common)
    tell(handler, LogEvent.PROGRESS, done=1, total=2)
    handler.close()
    assert stream.getvalue() == "1 of 2 steps (50%) done\n"
    assert os.environ[WATCHED] == "", "jobs write where they are"


def test_an_error_of_ours_hides_nothing(
    make: Make, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a terminal of another kind")

    handler = make()
    monkeypatch.setattr(handler, "_take", fail)
    tell(handler, LogEvent.PROGRESS, done=1, total=2)
    handler.close()
    said = stream.getvalue()
    assert "Snakemake's own output from here on" in said
    assert "1 of 2 steps (50%) done" in said
    assert "Traceback" not in said


# ---- on a terminal -------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_drawn_over_a_job_s_own_words(
    make: Make, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COLUMNS": "120", "LINES": "40", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", Terminal())
    handler = make(stdout=True)
    begin(handler, 1, "targets", run.log("targets-0-of-2"))
    assert isinstance(handler._view, Screen)
    begin(handler, 2, "verify", run.log("verify"))
    assert handler._view is None
    finish(handler, 2, 1, 2)
    assert isinstance(handler._view, Screen)
    handler.close()


def test_a_killed_verify_has_told_nothing(make: Make, stream: io.StringIO, run: RunFolder) -> None:
    handler = make()
    begin(handler, 1, "verify", run.log("verify"))
    tell(handler, LogEvent.JOB_ERROR, "", logging.ERROR, jobid=1)
    handler.close()
    assert (
        "verify ended without an error, as when it is killed; its log says nothing"
        in stream.getvalue()
    )


def a_board(run: RunFolder) -> Any:
    from distillery.terminal.board import Board

    board = Board()
    board.plan({"targets": 20, "total": 20})
    for number in range(14):
        board.begin(number, "targets", run.log(f"targets-{number}-of-20"), time.time())
    counted(run, "targets-0-of-20", 32, in_s=1.0)
    board.look()
    counted(run, "targets-0-of-20", 48, in_s=1.5)
    board.look()
    return board


def test_the_screen_has_a_line_for_each_running_job(run: RunFolder) -> None:
    console = Console(file=Terminal(), force_terminal=True, width=110, height=40)
    screen = Screen(a_board(run), console)
    screen.say("targets-9-of-20 done")
    screen.close()
    assert isinstance(console.file, Terminal)
    said = console.file.getvalue()
    for expected in ("targets-0-of-20", "48 of 64 samples", "/s", "and 2 more jobs", "0 of 20"):
        assert expected in said
    assert "targets-9-of-20 done" in said


@pytest.mark.parametrize(
    ("terminal", "columns", "kind"), [(True, 120, Screen), (True, 40, Lines), (False, 120, Lines)]
)
def test_small_terminals_and_pipes_get_lines(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, terminal: bool, columns: int, kind: type
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "40")
    monkeypatch.setenv("TERM", "xterm")
    view = view_of(a_board(run), Terminal() if terminal else io.StringIO(), 3600.0, nocolor=False)
    view.close()
    assert isinstance(view, kind)


def test_names_are_told_apart_on_a_narrow_terminal(run: RunFolder) -> None:
    from distillery.terminal.board import Board

    board = Board()
    board.plan({"samples": 2, "total": 2})
    for number in range(2):
        name = f"samples-{'m' * 64}-{number}-of-2"  # a model's name may be as long
        board.begin(number, "samples", run.log(name), time.time())
    console = Console(file=Terminal(), force_terminal=True, width=80, height=10)
    Screen(board, console).close()
    assert isinstance(console.file, Terminal)
    said = console.file.getvalue()
    assert "-0-of-2" in said
    assert "-1-of-2" in said
    assert "0 of 2 jobs" in said


def test_no_color_is_obeyed(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "40")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    view = view_of(a_board(run), stream, 3600.0, nocolor=False)
    view.say("a failure", "red")
    view.close()
    assert "a failure" in stream.getvalue()
    assert "\x1b[31m" not in stream.getvalue()


@pytest.mark.parametrize(("asked_s", "given_s"), [(0.0, 1.0), (-1.0, 1.0), (5.0, 5.0)])
def test_lines_come_no_faster_than_each_second(
    make: Make, run: RunFolder, monkeypatch: pytest.MonkeyPatch, asked_s: float, given_s: float
) -> None:
    given = []
    monkeypatch.setattr(Lines, "__init__", lambda _, __, ___, every_s: given.append(every_s))
    monkeypatch.setattr(Lines, "close", lambda _: None)
    monkeypatch.setattr(Lines, "say", lambda *_: None)
    handler = make("lines", every_s=asked_s)
    begin(handler, 1, "targets", run.log("targets-0-of-2"))
    handler.close()
    assert given == [given_s]


def test_lines_come_at_intervals(run: RunFolder) -> None:
    stream = io.StringIO()
    lines = Lines(a_board(run), stream, every_s=0.05)
    until = time.monotonic() + 10
    while "of the work" not in stream.getvalue() and time.monotonic() < until:
        time.sleep(0.02)
    lines.close()
    said = stream.getvalue().splitlines()
    assert said[0].startswith("targets-0-of-20 [cpu] 48 of 64 samples, ")
    assert "/s, 00:0" in said[0]
    assert said[1].startswith("0 of 20 jobs, ")
