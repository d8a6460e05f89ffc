"""Running jobs, read from their files: how far, which warnings, how they ended."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distillery.run_folder import RunFolder
from distillery.telemetry import RUN_NOTE, Reporter, note_of_run
from distillery.terminal.board import Board
from distillery.terminal.jobs import Job
from distillery.terminal.screen import progress_lines
from distillery.watched import WATCHED, log_in, watch_jobs


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "results" / "demo")
    run.log("targets-0-of-4").parent.mkdir(parents=True)
    run.telemetry.mkdir()
    return run


def job_of(run: RunFolder) -> Job:
    return Job("targets", run.log("targets-0-of-4"), begin_s=time.time())


def test_a_job_notes_how_far_it_is_and_the_terminal_reads_it(run: RunFolder) -> None:
    job = job_of(run)
    reporter = Reporter(run.telemetry, "targets", "targets-0-of-4", "cuda:GPU-1")
    with reporter.progress(8, " samples", initial=2) as bar:
        job.look()
        assert (job.items, job.device, job.items_per_s) == ("2 of 8 samples", "cuda:GPU-1", None)
        bar.update(6)
    job.look()
    assert job.items == "8 of 8 samples"
    assert job.share == 1.0
    assert job.items_per_s is None, "all of it may have been loading"


def test_a_job_s_speed_is_that_after_loading(run: RunFolder) -> None:
    job, now = job_of(run), time.time()
    for done, at_s in ((0, now), (8, now + 60), (24, now + 62)):
        note = {"done": done, "total": 64, "unit": " samples", "device": "cpu", "initial": 0}
        facts = json.dumps(note | {"begin_s": now, "at_s": at_s})
        run.progress("targets-0-of-4").write_text(facts)
        job.look()
    assert job.items_per_s == pytest.approx(8)
    assert job.left_s == pytest.approx(5 + 62, abs=2), "the note is of 62 s from now"


def test_a_terminal_obeys_no_log(run: RunFolder) -> None:
    job = job_of(run)
    assert job.log is not None
    long = "L" * 5000
    job.log.write_text(f"2026 x WARNING a \x1b[2J\x1b[Hb\x07\x9b1m{long}\n")
    (line,) = job.look()
    assert line.startswith("a b")
    assert not set(line) & set("\x1b\x07\x9b")
    assert len(line) < 500


@pytest.mark.parametrize("begin", ["", "error: ", "2026 x WARNING "])
def test_a_command_is_never_cut(run: RunFolder, begin: str) -> None:
    job = job_of(run)
    assert job.log is not None
    command = f"`rm -r {' '.join(f'results/a/samples/{number}.png' for number in range(200))}`"
    job.log.write_text(f"{begin}{'x' * 2000} run {command} and start again{'y' * 2000}\n")
    (said,) = job.look() if "WARNING" in begin else [job.last_words()]
    assert command in said
    assert len(said) < len(command) + 900


def test_a_note_is_written_once_a_second_and_at_the_end(run: RunFolder) -> None:
    reporter = Reporter(run.telemetry, "targets", "targets-0-of-4", "cpu")
    note = run.progress("targets-0-of-4")
    with reporter.progress(3, " samples") as bar:
        bar.update()
        assert json.loads(note.read_text())["done"] == 0, "within the same second"
        bar.update(2)
    assert json.loads(note.read_text())["done"] == 3


def test_notes_of_an_earlier_try_and_half_written_ones_say_nothing(run: RunFolder) -> None:
    reporter = Reporter(run.telemetry, "targets", "targets-0-of-4", "cpu")
    reporter.progress(8, " samples").close()
    time.sleep(0.01)
    job = job_of(run)
    job.look()
    assert job.items == ""
    assert job.share == 0.0
    run.progress("targets-0-of-4").write_text('{"done": 3, "to')
    job.look()
    assert job.items == ""


def test_new_warnings_are_told_once(run: RunFolder) -> None:
    job = job_of(run)
    stamp = "2026-11-23 17:12:00,968"
    assert job.log is not None
    job.log.write_text(
        f"{stamp} INFO targets [cpu] begins\n{stamp} WARNING targets [cpu] chunk 3: NaN\n"
        f"waiting for free GPUs, 1 needed\n{stamp} WARNING targets [cpu] not yet who"
    )
    os.utime(job.log, times=(job.begin_s - 0.008,) * 2)  # the kernel dates files by its ticks
    waits = "targets-0-of-4 is waiting for free GPUs, 1 needed"
    assert job.look() == [waits, "targets [cpu] chunk 3: NaN"]
    with job.log.open("a") as file:
        file.write("le\n")
    assert job.look() == ["targets [cpu] not yet whole"]
    assert job.look() == []


STAMP = "2026-11-23 17:12:00,968 "
SIGNALLED = (
    "Traceback (most recent call last):\n  File x\n"
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 8 got signal: 2\n"
)
KILLED = "targets-0-of-4 ended without an error, as when it is killed"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            "error: the disk is full:\n  free 3 GiB\nTraceback (most recent call last):\n  File x\n"
            "torchrun said more\n",
            "targets-0-of-4 failed: the disk is full:\n  free 3 GiB",
        ),
        (
            STAMP + "WARNING training [cpu] stopped by a signal, a checkpoint is saved\n"
            "torch.distributed SignalException: got signal 2\n",
            "targets-0-of-4 stopped: training [cpu] stopped by a signal, a checkpoint is saved",
        ),
        (
            "interrupted: what is finished is kept, rerun to resume\n",
            "targets-0-of-4 stopped: interrupted: what is finished is kept, rerun to resume",
        ),
        ("Traceback\n  File x\nKeyError: 'a'\n", "targets-0-of-4 failed: KeyError: 'a'"),
        (
            "Traceback\n  File x\nKeyboardInterrupt\n",
            "targets-0-of-4 stopped: interrupted before it began",
        ),
        (
            STAMP + "INFO targets [cpu] targets begins on cpu\n",
            f"{KILLED}; its last line: targets [cpu] targets begins on cpu",
        ),
        ("", f"{KILLED}; its log says nothing"),
        (None, f"{KILLED}; its log says nothing"),
    ],
)
def test_last_words(run: RunFolder, log: str | None, words: str) -> None:
    job = job_of(run)
    assert job.log is not None
    if log is not None:
        job.log.write_text(log)
        os.utime(job.log, (job.begin_s + 1, job.begin_s + 1))
    assert job.last_words() == words


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            STAMP + "INFO targets [cpu] targets done in 10.9 s\n",
            "stopped: interrupted; its last line: targets [cpu] targets done in 10.9 s",
        ),
        ("Traceback\n  File x\nKeyboardInterrupt\n", "stopped: interrupted before it began"),
        ("", "stopped: interrupted before it began"),
        ("error: the disk is full\n", "failed: the disk is full"),
        (
            STAMP + "INFO training [cpu] training done in 10.9 s\n" + SIGNALLED,
            "stopped: interrupted: what is finished is kept, rerun to resume",
        ),
        (SIGNALLED, "stopped: interrupted before it began"),
    ],
)
def test_last_words_of_a_job_that_ctrl_c_met(run: RunFolder, log: str, words: str) -> None:
    """A job that has just done its work says nothing of it."""
    job = job_of(run)
    assert job.log is not None
    job.log.write_text(log)
    os.utime(job.log, (job.begin_s + 1, job.begin_s + 1))
    assert job.last_words(is_stopped=True) == f"targets-0-of-4 {words}"


def test_the_log_of_an_earlier_try_says_nothing(run: RunFolder) -> None:
    log = run.log("targets-0-of-4")
    log.write_text("error: long ago\n")
    os.utime(log, (1.0, 1.0))
    assert job_of(run).last_words().endswith("its log says nothing")


def test_jobs_of_one_rule_count_by_what_each_does(run: RunFolder) -> None:
    """Of a training in parts the first is the longest."""
    passes = {"training_before_round": 50.0, "training-0-rounds": 90.0, "training-1-rounds": 10.0}
    run.plan.write_text(json.dumps({"passes_per_job": passes}))
    board = Board()
    board.plan({"training_before_round": 2})
    board.begin(1, "training_before_round", run.log("training-0-rounds"), 0.0)
    board.end(1)
    assert board.share == pytest.approx((90 + 5) / 110)
    board.begin(2, "training_before_round", run.log("training-1-rounds"), 0.0)
    board.end(2)
    assert board.share == pytest.approx(1.0)


def test_the_work_is_shared_out_by_planned_passes(run: RunFolder) -> None:
    run.plan.write_text(json.dumps({"passes_per_job": {"targets": 10.0, "training": 60.0}}))
    board = Board()
    board.plan({"targets": 4, "training": 1, "report": 1, "total": 6})
    assert board.numbers.total() == 6
    assert board.share == 0.0
    for number in range(4):
        board.begin(number, "targets", run.log(f"targets-{number}-of-4"), time.time())
        board.end(number)
    assert board.share == pytest.approx((40 + 4 * 10 / 6) / 110), "a tenth is the jobs' own"
    board.begin(4, "training", run.log("training"), time.time())
    note = {"done": 5, "total": 10, "unit": " samples", "device": "cpu", "initial": 0}
    note |= {"begin_s": time.time() + 1, "at_s": time.time() + 2}
    run.progress("training").write_text(json.dumps(note))
    board.look()
    assert board.share == pytest.approx((40 + 30 + 4 * 10 / 6) / 110)
    assert board.left_s is None, "jobs that took no time tell nothing of passes"


def test_a_probe_is_measured_by_the_jobs_of_its_small_run(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board()
    board.plan({"freeze": 1, "probe": 1, "total": 2})
    board.begin(0, "freeze", run.log("freeze-run"), time.time())
    board.end(0)
    assert board.share < 0.1, "the other one is nearly all of the work"
    board.begin(1, "probe", run.log("probe"), time.time())
    monkeypatch.setenv(RUN_NOTE, str(run.progress("probe")))
    note = note_of_run(4)
    assert note is not None
    note.update(3)
    board.begin_s -= 1000
    note.update()
    board.look()
    (job,) = board.at_work
    assert (job.items, job.items_per_s, job.left_s) == ("4 of 4 jobs", None, None)
    assert board.share == pytest.approx(1.05 / 1.1)
    assert board.left_s is None, "short jobs tell nothing of long ones"
    assert [*progress_lines(board)] == ["probe 4 of 4 jobs", "1 of 2 jobs, 95% of the work"]


def test_only_a_snakemake_that_is_a_job_notes_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(RUN_NOTE, raising=False)
    assert note_of_run(4) is None


def test_a_job_that_is_tried_again_has_not_failed(run: RunFolder) -> None:
    board = Board()
    board.begin(7, "targets", run.log("targets-0-of-4"), time.time())
    assert board.fail(7) is not None
    assert board.failures
    assert board.fail(7) is None, "told twice"
    board.begin(7, "targets", run.log("targets-0-of-4"), time.time())
    assert not board.failures
    assert board.end(7) is not None
    assert board.finished["targets"] == 1


# ---- jobs that keep to their logs ----------------------------------------------------------------

TALKING = """
import os, sys
from pathlib import Path
from distillery.watched import keep_to_log
keep_to_log(Path(sys.argv[1]))
print("to stdout", flush=True)
os.system("echo of a child >&2")
"""


CLOSED = (
    "import os, sys; from pathlib import Path; from distillery.watched import keep_to_log; "
    'keep_to_log(Path(sys.argv[1])); os.system("echo of a child >&2")'
)


@pytest.mark.parametrize(
    ("watched", "slurm_job", "keeps"),
    [("here", None, True), (None, None, False), ("here", "17", False), ("17", "17", True)],
)
def test_watched_jobs_keep_to_their_logs(
    tmp_path: Path, watched: str | None, slurm_job: str | None, keeps: bool
) -> None:
    variables = {WATCHED: watched, "SLURM_JOB_ID": slurm_job}
    given = {name: value for name, value in variables.items() if value is not None}
    rest = {name: value for name, value in os.environ.items() if name not in variables}
    log = tmp_path / "logs" / "job.log"
    done = subprocess.run(
        [sys.executable, "-c", TALKING, str(log)],
        env=rest | given,
        capture_output=True,
        text=True,
        check=True,
    )
    said = "to stdout\nof a child\n"
    assert (log.read_text() if log.exists() else "") == (said if keeps else "")
    assert done.stdout + done.stderr == ("" if keeps else said)


def test_a_log_that_cannot_be_written_leaves_the_terminal(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TALKING, str(tmp_path)],
        env=os.environ | {WATCHED: "here"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "to stdout" in done.stdout


def test_closed_streams_are_no_reason_to_fail(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    command = f"{sys.executable} -c '{CLOSED}' {log} >&- 2>&-"
    subprocess.run(command, shell=True, env=os.environ | {WATCHED: "here"}, check=True)
    assert "of a child" in log.read_text()


def test_the_log_is_found_in_a_command() -> None:
    assert log_in(["python", "-m", "x", "--log-file", "logs/a.log"]) == Path("logs/a.log")
    assert log_in(["python", "--log-file"]) is None
    assert log_in([]) is None


def test_watching_is_told_to_jobs_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv(WATCHED, "")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "0")
    watch_jobs()
    assert os.environ[WATCHED] == "here"
    assert os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] == "0", "the user's own word counts"
