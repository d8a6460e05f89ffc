"""What is known of all jobs: how many of them one look reads."""

import os
import time
from pathlib import Path

import pytest

from distillery.files import write_json
from distillery.run_folder import RunFolder
from distillery.terminal import board as boards
from distillery.terminal.board import Board
from distillery.terminal.jobs import Job


@pytest.mark.parametrize(("num_jobs", "num_looks"), [(0, 1), (3, 1), (5, 2), (12, 3)])
def test_each_job_is_looked_at_in_turn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, num_jobs: int, num_looks: int
) -> None:
    """A cluster runs hundreds, whose files are far away."""
    monkeypatch.setattr(boards, "MAX_LOOKS", 4)
    seen: list[str] = []
    monkeypatch.setattr(Job, "look", lambda self: seen.append(self.name) or [])
    board = Board()
    for number in range(num_jobs):
        board.begin(number, "targets", tmp_path / f"targets-{number}-of-9.log", 0.0)
    for _ in range(num_looks):
        before = len(seen)
        board.look()
        assert len(seen) - before <= 4
    assert {*seen} == {f"targets-{number}-of-9" for number in range(num_jobs)}


def test_a_call_that_only_looks_ends_without_the_runs_verdict(tmp_path: Path) -> None:
    """It may be of another configuration than the plan that was asked for."""
    run = RunFolder(tmp_path / "results/tiny")
    check = {"outcome": "passed", "question": "Good?", "finding": "yes"}
    write_json(run.metrics, {"verdict": [check]})
    run.report.touch()
    board = Board()
    for number, rule in enumerate(("freeze", "plan")):
        board.begin(number, rule, run.log(rule), 0.0)
        board.end(number)
    assert board.closing_lines() == []
    board.begin(2, "export", run.log("export"), 0.0)
    board.end(2)
    assert "passed 1 of 1 checks" in board.closing_lines()


def test_a_call_for_one_file_tells_no_verdict_of_an_older_report(tmp_path: Path) -> None:
    """The student that was asked for may be of other settings than the report's."""
    run = RunFolder(tmp_path / "results/tiny")
    check = {"outcome": "passed", "question": "Good?", "finding": "yes"}
    write_json(run.metrics, {"verdict": [check]})
    trained = run.student("trained")
    for path in (run.report, run.gallery / "index.html"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (1e9, 1e9))
    board = Board()
    board.begin(0, "training", run.log("training"), 0.0, trained)
    board.end(0)
    assert board.closing_lines() == [f"made: {trained}"]
    os.utime(run.report, (time.time() + 1,) * 2)
    assert board.closing_lines()[:2] == ["passed 1 of 1 checks", f"report: {run.report}"]
    os.utime(run.report, (1e9, 1e9))
    board.begin(1, "all", None, 0.0)
    board.end(1)
    assert "passed 1 of 1 checks" in board.closing_lines(), "all of it is up to date"


def test_what_was_asked_for_is_told_once_beside_the_places_of_the_run(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "results/tiny")
    run.gallery.mkdir(parents=True)
    (run.gallery / "index.html").touch()
    images = f"images: {run.gallery / 'index.html'}"
    outputs = {"scores": run.scores, "gallery": run.gallery}
    told = {"scores": [images, f"made: {run.scores}"], "gallery": [images]}
    for rule, output in outputs.items():
        board = Board(begin_s=0.0)
        board.begin(0, rule, run.log(rule), 0.0, output)
        board.end(0)
        assert board.closing_lines() == told[rule]
    board.begin(1, "all", None, 0.0)
    board.end(1)
    assert board.closing_lines() == [images]
