"""What is known of all jobs: how many of them one look reads."""

from pathlib import Path

import pytest

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
