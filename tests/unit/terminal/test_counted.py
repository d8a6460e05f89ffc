"""What the terminal says of a job at its end."""

import pytest

from distillery.generation.chunked import what_was_made
from distillery.terminal.jobs import Job


@pytest.mark.parametrize(
    ("note", "told"),
    [
        ({"done": 8000, "total": 8000, "found": 8000}, "all 8,000 samples were there"),
        ({"done": 36, "total": 36, "found": 12}, "36 samples"),
        ({"done": 36, "total": 36}, "36 samples"),
        ({"done": 0, "total": 0, "found": 0}, "0 samples"),
    ],
)
def test_a_job_that_made_nothing_says_so(note: dict[str, int], told: str) -> None:
    job = Job("targets", None, 0.0, note={"unit": " samples", **note})
    assert job.counted == told


def test_a_log_tells_what_was_made_was_there_and_failed() -> None:
    assert what_was_made(0, 0, 3, "chunks") == "all 3 chunks were there, none was made"
    assert what_was_made(1, 0, 3, "chunks") == "1 of 3 chunks made, 2 were there"
    assert what_was_made(1, 1, 3, "chunks") == "1 of 3 chunks made, 1 were there, 1 failed"
