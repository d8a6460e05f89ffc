"""Fixtures of the unit tests that more than one file has."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slot_bench import LIMIT_S, Bench

if TYPE_CHECKING:
    from runs import Run


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for job in bench.jobs:
        if job.poll() is None:
            job.kill()
        job.communicate(timeout=LIMIT_S)


@pytest.fixture(scope="session")
def finished(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> "Run":
    """A run with targets and samples made by one shard each; tests must not change it."""
    from runs import make_run

    run = make_run(tmp_path_factory.mktemp("finished"), teacher)
    run.encode("train")
    run.encode("eval")
    run.all_targets()
    run.all_samples()
    return run


@pytest.fixture
def run(finished: "Run", tmp_path: Path) -> "Run":
    """A copy of the finished run that a test may change."""
    shutil.copytree(finished.folder, tmp_path / "results")
    return type(finished)(tmp_path / "results", finished.config)
