"""A run that the release before made (commit b1686c7): all that took time is found again."""

import shutil
from pathlib import Path

import pytest
from finished_run import TINY, tiny_run

from checkout import REPOSITORY, skeleton, succeed
from distillery.files import read_json
from distillery.pipeline import STAGES
from distillery.planning import verify
from distillery.planning.plan import make_plan
from distillery.planning.there import Found, there_part

pytestmark = pytest.mark.slow
MADE = REPOSITORY / "tests/workflow/run-b1686c7.tar.xz"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run with its teacher and judge, without its logs, report and gallery."""
    shutil.unpack_archive(MADE, tmp_path)
    monkeypatch.chdir(skeleton(tmp_path))
    return tmp_path


def test_snakemake_has_nothing_to_do(folder: Path) -> None:
    asked = [str(TINY / "evaluation/quality.json"), str(TINY / "student/pipeline")]
    assert "Nothing to be done" in succeed(folder, "--dry-run", *asked)


def test_the_plan_reuses_all_of_it_and_nothing_is_damaged(folder: Path) -> None:
    run = tiny_run()
    make_plan(STAGES, run.config, run.files.plan)
    rows = [Found(**row) for row in read_json(run.files.plan)["there"]]
    (table,) = there_part(rows).tables
    stages = {row[0]: row[-1] for row in table.rows}
    assert set(stages.values()) == {"reused"}
    assert {"embeddings train", "targets", "student", "training", "samples student"} <= set(stages)
    found = verify.verify(run.files, run.reporter())
    assert found.damages == []
    assert found.num_read > 20
