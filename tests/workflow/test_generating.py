"""Snakemake on runs that only generate: dry runs of the shipped ones, and a tiny one to its end."""

import os
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import yaml

from checkout import SNAKEMAKE, check_names, jobs, skeleton, snakemake, succeed
from runs import generating_settings

GENERATING = {
    "freeze", "prompts", "embeddings", "samples", "merge_samples", "gallery", "dataset", "all",
}  # fmt: skip
RESULTS = Path("results") / "tiny"


def configure(folder: Path, teacher: Path, **changes: dict[str, object]) -> None:
    raw = generating_settings(folder / "inputs", teacher, **changes)
    (folder / "config").mkdir(exist_ok=True)
    (folder / "config" / "config.yaml").write_text(yaml.safe_dump(raw))


@pytest.fixture(scope="module")
def ran(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = skeleton(tmp_path_factory.mktemp("generating"))
    configure(folder, teacher, samples={"num_shards": 1})
    assert jobs(succeed(folder)) == GENERATING
    return folder


def test_a_shipped_generating_run_is_planned_without_the_heavy_libraries(tmp_path: Path) -> None:
    """They would take most of the time."""
    folder = skeleton(tmp_path, "config", "resources")
    command = [SNAKEMAKE, "--dry-run", "--configfile", "config/dataset.yaml"]
    environ = os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=True
    )
    listed = done.stdout + done.stderr
    imported = {line.rpartition("|")[2].strip() for line in listed.splitlines()}
    assert "distillery.config" in imported
    assert imported.isdisjoint({"torch", "diffusers", "transformers"})
    assert jobs(listed) == GENERATING


def test_a_run_ends_with_a_data_set(ran: Path) -> None:
    images = ran / RESULTS / "samples" / "teacher"
    assert len(pd.read_csv(images / "metadata.csv")) == len(list(images.rglob("*.png"))) == 10
    manifest = pd.read_parquet(ran / RESULTS / "dataset" / "manifest.parquet")
    assert manifest["seconds"].notna().all()
    assert len(pd.read_csv(ran / RESULTS / "dataset" / "pairs.csv")) == 5
    assert not (ran / RESULTS / "targets").exists()
    assert "samples-teacher-0-of-1" in check_names(ran / RESULTS)


def test_a_second_run_has_nothing_to_do(ran: Path) -> None:
    assert "Nothing to be done" in succeed(ran, "--dry-run")


def test_other_pairs_draw_no_image(ran: Path, teacher: Path) -> None:
    configure(ran, teacher, samples={"num_shards": 1}, dataset={"pairs": "none"})
    listed = jobs(succeed(ran, "--dry-run"))
    configure(ran, teacher, samples={"num_shards": 1})
    assert listed <= {"freeze", "dataset", "all"}
    assert "dataset" in listed


def test_a_gpu_that_is_not_there_is_named(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTILLERY_PRETEND_GPUS", "2")
    done = snakemake(ran, "--dry-run", visible_devices="0,7")
    assert done.returncode != 0
    assert "names '7', which is no GPU of this machine; there are: 0 " in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.slow
def test_a_lost_image_alone_is_drawn_again(ran: Path) -> None:
    """Last of those that share a run, which it changes."""
    images = ran / RESULTS / "samples" / "teacher"
    before = {path: path.stat().st_mtime_ns for path in images.rglob("*.png")}
    shutil.rmtree(images / "p003")
    succeed(ran, "--forcerun", "samples")
    after = {path: path.stat().st_mtime_ns for path in images.rglob("*.png")}
    assert after.keys() == before.keys()
    drawn = {path.parent.name for path in after if after[path] != before[path]}
    assert drawn == {"p003"}


def test_half_of_a_training_is_refused_with_what_to_do(teacher: Path, tmp_path: Path) -> None:
    folder = skeleton(tmp_path)
    configure(folder, teacher)
    path = folder / "config" / "config.yaml"
    path.write_text(path.read_text() + "\nstudent: {steps: 2}\n")
    done = snakemake(folder, "--dry-run")
    assert done.returncode != 0
    assert "for a run that only generates images remove student" in done.stdout
    assert "Traceback" not in done.stdout
