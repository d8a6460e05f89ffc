"""What a user sees of a run in a pipe: what was done, how it ended, and how to go on."""

import shutil
import subprocess
from pathlib import Path

import pytest

import forks
from checkout import SNAKEMAKE

pytestmark = pytest.mark.slow
TINY = Path("results/tiny")


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A finished run of one's own."""
    return shutil.copytree(finished, tmp_path / "run", symlinks=True)


def run(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """The exit status, and the lines on the terminal."""
    done = subprocess.run(
        [SNAKEMAKE, "--cores", "2", *arguments],
        cwd=folder,
        env=forks.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return done.returncode, [line for line in lines if not line.startswith("Using workflow")]


def test_a_run_ends_with_its_verdict_and_its_places(folder: Path) -> None:
    status, lines = run(folder, "--forcerun", "report", "--", "all")
    assert status == 0
    end = [line.split(":")[0].split(" in ")[0] for line in lines[-4:]]
    assert end == ["report", "images", "student", "2 of 2 jobs"], lines
    assert any(line.startswith("passed ") for line in lines)
    assert not any(line.startswith(("rule ", "Building", "Select jobs")) for line in lines)


def test_a_failed_job_comes_last_with_the_way_on(folder: Path) -> None:
    chunk = sorted((folder / TINY / "targets").glob("*/chunk-*.safetensors"))[0]
    chunk.write_bytes(chunk.read_bytes()[:1000])
    shutil.rmtree(folder / TINY / "student" / "trained")
    shutil.rmtree(folder / TINY / "checkpoints", ignore_errors=True)
    status, lines = run(folder, "results/tiny/student/trained")
    assert status != 0
    failed, log, counts, way_on = lines
    assert failed.startswith("training failed: ")
    assert f"{chunk.name} is damaged" in failed
    assert log == "  log: results/tiny/logs/training.log"
    assert counts.startswith("0 of 1 jobs done in ")
    assert way_on == "go on with: snakemake --cores 2 results/tiny/student/trained"
    assert not any("Traceback" in line for line in lines)


def test_nothing_to_do_is_said(folder: Path) -> None:
    status, lines = run(folder)
    assert status == 0
    assert lines == ["Nothing to be done (all requested files are present and up to date)."]


def test_snakemakes_own_output_is_one_flag_away(folder: Path) -> None:
    _, lines = run(folder, "--logger-distillery-style", "snakemake", "--forcerun", "report")
    assert any(line.endswith("rule report:") for line in lines)
    assert "2 of 2 steps (100%) done" in lines
