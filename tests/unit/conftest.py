"""Fixtures of the unit tests that more than one file has."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slot_bench import LIMIT_S, Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for job in bench.jobs:
        if job.poll() is None:
            job.kill()
        job.communicate(timeout=LIMIT_S)
