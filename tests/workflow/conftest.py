"""What tests of damage share: a finished run."""

import os
from pathlib import Path

import pytest

from sharing import made_once


@pytest.fixture(scope="session")
def finished(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, made by the stages in this process; nothing may change it."""
    return made_once(tmp_path_factory, "finished", lambda folder: _make_finished(folder, teacher))


def _make_finished(folder: Path, teacher: Path) -> None:
    from finished_run import make_all, tiny_run

    from checkout import configure, jobs, skeleton, succeed
    from judging import make_judge

    skeleton(folder)
    configure(folder, teacher)
    make_judge(folder / "inputs" / "judge")
    before = Path.cwd()
    os.chdir(folder)
    try:
        make_all(tiny_run())
    finally:
        os.chdir(before)
    succeed(folder, "--touch")
    left = succeed(folder, "--dry-run")
    assert "Nothing to be done" in left, f"make_all in finished_run.py leaves out {jobs(left)}"
