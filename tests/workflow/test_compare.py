"""Two runs side by side, asked for by their names."""

import shutil
from pathlib import Path

import pytest

from checkout import jobs, snakemake, succeed

pytestmark = pytest.mark.slow


def test_two_runs_are_compared_by_name(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "run", symlinks=True)
    results = folder / "results"
    shutil.copytree(results / "tiny", results / "other-vs-wise")
    page = "results/compare/tiny-vs-other-vs-wise/index.html"
    (results / "other-vs-wise/report/metrics.json").unlink()  # its settings are the frozen ones
    succeed(folder, page)
    text = (folder / page).read_text()
    assert "images are the same in both" in text
    assert "<h2>Settings that differ</h2>\n<p>None.</p>" in text
    assert (folder / page).with_name("metrics.parquet").is_file()
    assert "Nothing to be done" in succeed(folder, "--dry-run", page)

    shutil.rmtree(results / "other-vs-wise" / "evaluation")
    assert "Nothing to be done" not in succeed(folder, "--dry-run", page)
    succeed(folder, page)
    assert "other-vs-wise has no scores" in (folder / page).read_text()

    failed = snakemake(folder, "results/compare/tniy-vs-other-vs-wise/index.html")
    assert failed.returncode != 0
    assert "results/tniy is not there, did you mean tiny" in failed.stdout
    assert not (results / "compare/tniy-vs-other-vs-wise").exists(), "no job has begun"


def test_a_comparison_makes_nothing_of_the_configurations_run(
    finished: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(finished, tmp_path / "run", symlinks=True)
    results = folder / "results"
    frozen = results / "tiny/config/run.json"
    frozen.unlink()
    succeed(folder, "--", str(frozen.relative_to(folder)))
    (results / "tiny/plan.json").unlink()
    shutil.copytree(results / "tiny", results / "other")
    before = frozen.read_bytes()
    settings = folder / "config/config.yaml"
    settings.write_text(f"seed: 17\n{settings.read_text()}")
    said = succeed(folder, "results/compare/tiny-vs-other/index.html")
    assert jobs(said) == {"compare"}
    assert "What runs" not in said, "no plan of a run that is not made"
    assert frozen.read_bytes() == before
    assert not (results / "tiny/plan.json").exists()
