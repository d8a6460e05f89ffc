"""Logs, events and errors: what people see when a job runs, fails, or is stopped."""

import argparse
import contextlib
import errno
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distillery.cli import folder_of_run, parser_of, shard_argument
from distillery.generation.targets import make_targets
from distillery.run_folder import RunFolder
from distillery.telemetry import (
    LogFile,
    Reporter,
    explain_errors,
    loaded_for_s,
    read_events,
    reporting,
)


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    """`reporting` replaces the root logger's handlers, as a script wants."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_job_leaves_its_times_and_its_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "job.log"
    with reporting(tmp_path / "telemetry", "targets", "targets-0-of-2", "cpu", log) as reporter:
        with reporter.work(3, chunk=7):
            pass
        reporter.info("for the log")
    events = read_events(tmp_path / "telemetry")
    assert sorted(event.kind for event in events) == ["end", "start", "work"]
    assert {(event.stage, event.job, event.device) for event in events} == {
        ("targets", "targets-0-of-2", "cpu")
    }
    start, work, end = (
        next(event for event in events if event.kind == kind) for kind in ("start", "work", "end")
    )
    assert (start.num_items, work.num_items, end.num_items) == (0, 3, 0)
    assert work.facts.pop("peak_memory_bytes") > 1e6
    assert work.facts == {"chunk": 7}
    assert start.begin_s == start.end_s == end.begin_s, "the end spans the whole job"
    assert start.end_s <= work.begin_s <= work.end_s <= end.end_s
    lines = log.read_text().splitlines()
    assert any("for the log" in line for line in lines)
    assert all("targets-0-of-2 [cpu]" in line for line in lines), "every line names job and device"


def test_a_job_begins_with_its_process_whose_imports_are_part_of_it(tmp_path: Path) -> None:
    code = (
        "import time; time.sleep(1); import distillery.telemetry as t\nprint(t.loaded_for_s(None))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 1 <= float(done.stdout) < 60
    assert loaded_for_s(["--config", "x"]) == 0, "called by a program that is older than the job"
    before_s = time.time()
    with reporting(tmp_path, "export", "export-pipeline", "cpu", None, loaded_s=50.0):
        pass
    start, end = read_events(tmp_path)
    assert start.begin_s < before_s - 49
    assert end.begin_s == start.begin_s
    assert end.end_s >= before_s


@pytest.mark.parametrize("is_terminal", [True, False])
def test_milestones_are_told_where_no_terminal_shows_a_bar(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_terminal: bool,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with reporting(tmp_path, "training", "training", "cpu", tmp_path / "log") as reporter:
        reporter.info("chosen")
        reporter.milestone("320 samples")
        reporter.warning("careful")
    assert all(word in (tmp_path / "log").read_text() for word in ("chosen", "320", "careful"))
    told = capsys.readouterr().err
    assert ("320 samples" in told) == (not is_terminal)
    assert "careful" in told
    assert "chosen" not in told


def test_a_bar_begins_with_what_was_done_before(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, "training", "training", "cpu")
    for bar, done in ((reporter.progress(8, "file"), 0), (reporter.progress(8, "file", 3), 3)):
        assert (bar.n, bar.total) == (done, 8)
        bar.close()


def test_work_that_failed_is_not_counted_and_the_job_has_no_end(tmp_path: Path) -> None:
    def fail() -> None:
        job = reporting(tmp_path, "targets", "job", "cpu", tmp_path / "log")
        with job as reporter, reporter.work(3):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert [event.kind for event in read_events(tmp_path)] == ["start"]


def test_a_second_try_is_appended_and_a_torn_line_skipped(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, "targets", "job", "cpu")
    reporter.emit("start", 1.0, 1.0)
    reporter.emit("start", 3.0, 3.0)
    (tmp_path / "other.jsonl").write_text('{"kind": "start", "stage": "x"}\n7\n{"kind": "st')
    with (tmp_path / "job.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\n")  # no UTF-8
    Reporter(tmp_path, "samples", "early", "cpu").emit("work", 2.0, 2.5, 4, memory_bytes=1)
    assert [event.begin_s for event in read_events(tmp_path)] == [1.0, 2.0, 3.0]


def failing(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize("error", [ValueError("steps is 3"), FileNotFoundError("steps is 3")])
def test_what_a_user_can_mend_is_said_without_traceback(
    error: Exception, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain_errors(failing(error), tmp_path / "logs" / "log") == 1
    seen = capsys.readouterr().err
    assert "error: steps is 3" in seen
    assert "Traceback" not in seen
    assert "Traceback" in (tmp_path / "logs" / "log").read_text()


def test_our_own_fault_shows_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain_errors(failing(KeyError("oops")), tmp_path / "log") == 1
    assert "Traceback" in capsys.readouterr().err
    assert "KeyError: 'oops'" in (tmp_path / "log").read_text()


def test_a_full_disk_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain_errors(failing(OSError(errno.ENOSPC, "No space left", "a.png"))) == 1
    assert "free some space and rerun, what is finished is kept" in capsys.readouterr().err


def test_an_interrupt_says_how_to_resume(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain_errors(failing(KeyboardInterrupt())) == 130
    assert "rerun to resume" in capsys.readouterr().err


def test_success() -> None:
    assert explain_errors(lambda: None) == 0


@pytest.mark.parametrize(("text", "shard"), [("0/1", (0, 1)), ("3/4", (3, 4))])
def test_shards_on_the_command_line(text: str, shard: tuple[int, int]) -> None:
    assert shard_argument(text) == shard


@pytest.mark.parametrize("text", ["4/4", "-1/4", "0", "0/0", "a/b", "1/", "1/2/3"])
def test_bad_shards_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write i/n"):
        shard_argument(text)


def test_the_run_is_found_from_its_configuration() -> None:
    given = "--prompts p --embeddings e --shard 1/2 --output o --config results/demo/config/x.json"
    arguments = parser_of(make_targets, "x", computes=True).parse_args(given.split())
    assert folder_of_run(arguments) == RunFolder(Path("results/demo"))
    assert (arguments.cpu_threads, arguments.shard, arguments.compile_) == (1, (1, 2), "auto")


FULL = Path("/dev/full")
"""Every write to it fails as on a full disk."""


def test_an_event_on_a_full_disk_is_left_out_and_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = Reporter(tmp_path, "training", "training", "cpu")
    there, reporter.path = reporter.path, FULL
    reporter.emit("start", 1.0, 1.0)
    reporter.emit("work", 1.0, 2.0)
    seen = capsys.readouterr().err
    assert seen.count("training continues without telemetry that it cannot write") == 1
    assert "No space left" in seen
    reporter.path = there
    there.write_text('{"kind": "sta')  # what got through of a line
    reporter.emit("end", 1.0, 3.0)
    assert [event.kind for event in read_events(tmp_path)] == ["end"]


def test_an_error_is_told_though_the_log_cannot_be_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert explain_errors(failing(ValueError("steps is 3")), FULL) == 1
    seen = capsys.readouterr().err
    assert "error: steps is 3" in seen
    assert "the log does not have it" in seen


def test_a_terminal_that_is_a_file_on_a_full_disk_changes_no_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = os.fdopen(os.open(FULL, os.O_WRONLY), "w", buffering=1)
    monkeypatch.setattr(sys, "stderr", full)
    assert explain_errors(failing(ValueError("steps is 3")), FULL) == 1
    with contextlib.suppress(OSError):
        full.close()


def test_a_log_on_a_full_disk_prints_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    handler = LogFile("/dev/full")
    for message, shown in (("all is well", False), ("%d is no number", True)):
        handler.emit(logging.LogRecord("x", logging.INFO, "p", 1, message, ("it",) * shown, None))
        assert ("Logging error" in capsys.readouterr().err) == shown
    with contextlib.suppress(OSError):
        handler.close()
