"""What a user sees of a run in a pipe: what was done, how it ended, and how to resume."""

import shutil
from pathlib import Path

import pytest
import yaml

from checkout import as_a_user

pytestmark = pytest.mark.slow
TINY = Path("results/tiny")


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A finished run of one's own."""
    return shutil.copytree(finished, tmp_path / "run", symlinks=True)


def run(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """The exit status, and the lines on the terminal."""
    done = as_a_user(folder, *arguments)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return done.returncode, [line for line in lines if not line.startswith("Using workflow")]


def test_a_run_ends_with_its_verdict_and_its_places(folder: Path) -> None:
    status, lines = run(folder, "--forcerun", "report", "--", "all")
    assert status == 0
    end = [line.split(":")[0].split(" in ")[0] for line in lines[-4:]]
    assert end == ["report", "images", "student", "2 of 2 jobs"], lines
    assert any(line.startswith("passed ") for line in lines)
    assert not any(line.startswith(("rule ", "Building", "Select jobs")) for line in lines)


def test_a_page_that_was_asked_for_comes_last(folder: Path) -> None:
    shutil.copytree(folder / TINY, folder / "results/other")
    comparison = "results/compare/tiny-vs-other/index.html"
    (folder / TINY / "plan.json").unlink()
    for target, page in {comparison: comparison, f"{TINY}/plan.json": f"{TINY}/plan.html"}.items():
        status, lines = run(folder, target)
        assert status == 0
        assert lines[-2] == f"made: {page}"
        assert lines[-1].startswith("1 of 1 jobs in ")


def test_a_failed_job_comes_last_with_the_command_that_resumes(folder: Path) -> None:
    chunk = sorted((folder / TINY / "targets").glob("*/chunk-*.safetensors"))[0]
    chunk.write_bytes(chunk.read_bytes()[:1000])
    shutil.rmtree(folder / TINY / "student" / "trained")
    shutil.rmtree(folder / TINY / "checkpoints", ignore_errors=True)
    status, lines = run(folder, "results/tiny/student/trained")
    assert status != 0
    failed, log, counts, resume = lines
    assert failed.startswith("training failed: ")
    assert f"{chunk.name} is damaged" in failed
    assert log == "  log: results/tiny/logs/training.log"
    assert counts.startswith("0 of 1 jobs done in ")
    assert resume == "resume with: snakemake --cores 2 results/tiny/student/trained"
    assert not any("Traceback" in line for line in lines)


def test_damage_and_what_mends_it_come_last(folder: Path) -> None:
    chunk = sorted((folder / TINY / "targets").glob("*/chunk-*.safetensors"))[0]
    chunk.write_bytes(chunk.read_bytes()[:1000])
    status, lines = run(folder, "verify")
    assert status != 0
    damage, count, remove, again = lines[-4:]
    assert damage.startswith(f"{chunk.relative_to(folder)}: ")
    assert count.endswith("are damaged; these commands make them again:")
    assert remove.startswith("    rm -r ")
    assert again.startswith("    snakemake ")
    log = (folder / TINY / "logs" / "verify.log").read_text()
    assert f"{remove}\n{again}\n" in log


def test_a_refused_plan_says_why_once_and_ends(folder: Path) -> None:
    (folder / TINY / "plan.json").unlink()
    shutil.rmtree(folder / TINY / "config")  # of other settings, and without Snakemake's notes
    settings = folder / "config" / "config.yaml"
    content = yaml.safe_load(settings.read_text())
    content["training"]["held_out_prompts"] = 10_000
    settings.write_text(yaml.safe_dump(content))
    status, lines = run(folder, "results/tiny/plan.json")
    assert status != 0
    error, end = lines
    assert error.startswith("error: training.held_out_prompts is 10000 ")
    log = "results/tiny/logs/plan.log"
    assert end == f"the plan refuses this run, nothing was started; see above, or {log}"


def test_nothing_to_do_is_said(folder: Path) -> None:
    status, lines = run(folder)
    assert status == 0
    assert lines == ["Nothing to be done (all requested files are present and up to date)."]


def test_snakemakes_own_output_is_one_flag_away(folder: Path) -> None:
    _, lines = run(folder, "--logger-distillery-style", "snakemake")
    assert "Building DAG of jobs..." in lines, "which our view leaves out"
