"""Two runs side by side, asked for by their names."""

import shutil
from pathlib import Path

import pytest

from checkout import snakemake, succeed

pytestmark = pytest.mark.slow


def test_two_runs_are_compared_by_name(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "run", symlinks=True)
    results = folder / "results"
    shutil.copytree(results / "tiny", results / "other-vs-wise")
    page = "results/compare/tiny-vs-other-vs-wise/index.html"
    succeed(folder, page)
    assert "student: all " in (folder / page).read_text(), "its images are the same"
    assert (folder / page).with_name("metrics.parquet").is_file()
    assert "Nothing to be done" in succeed(folder, "--dry-run", page)

    shutil.rmtree(results / "other-vs-wise" / "evaluation")
    assert "Nothing to be done" not in succeed(folder, "--dry-run", page)
    succeed(folder, page)
    assert "other-vs-wise has no scores" in (folder / page).read_text()

    failed = snakemake(folder, "results/compare/tiny-vs-nowhere/index.html")
    assert failed.returncode != 0
    assert "results/nowhere is not there: a comparison needs two runs" in failed.stdout
