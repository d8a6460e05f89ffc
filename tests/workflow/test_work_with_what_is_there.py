"""What a finished run serves for: a second student of its store, own prompts, other scores."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from PIL import Image

from checkout import jobs, snakemake, succeed
from distillery.config.run import parse_config
from distillery.draw import draw
from distillery.evaluate import evaluate
from distillery.files import hash_file
from distillery.model_folder import read_metadata
from distillery.pipeline import STAGES
from distillery.planning.plan import make_plan
from distillery.run_folder import RunFolder

pytestmark = pytest.mark.slow
TRAINED = "results/second/student/trained"


def contents(folder: Path) -> dict[Path, str]:
    return {path: hash_file(path) for path in folder.rglob("*") if path.is_file()}


def test_a_second_student_is_trained_from_the_store_of_the_first(
    finished: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(finished, tmp_path / "run", symlinks=True)
    raw = yaml.safe_load((folder / "config/config.yaml").read_text())
    first = folder / "results/tiny"
    raw |= {"run": "second"}
    raw["targets"] |= {"from_run": "results/tiny"}
    mine = folder / "second.yaml"
    mine.write_text(yaml.safe_dump(raw))
    before = contents(first)
    made = jobs(succeed(folder, TRAINED, "--configfile", "second.yaml"))
    assert {"training", "student", "prompts"} <= made
    assert not made & {"targets", "merge_targets"}
    assert contents(first) == before
    assert not (folder / "results/second/targets").exists()
    assert not (folder / "results/second/embeddings/train").exists()
    students = (folder / TRAINED, first / "student/trained")
    recipes = {read_metadata(student)["recipe_hash"] for student in students}
    assert len(recipes) == 1, "where the trajectories lie is no part of what is learned"

    manifest = first / "targets/manifest.json"
    manifest.unlink()
    refused = snakemake(folder, "--dry-run", "--configfile", "second.yaml")
    assert refused.returncode != 0
    assert "targets.from_run is 'results/tiny': it is half made" in refused.stdout
    assert "Traceback (most recent call last)" not in refused.stdout


def test_a_student_draws_without_the_run_that_trained_it(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same prompts, seed and batches are the same images."""
    folder = shutil.copytree(finished, tmp_path / "run", symlinks=True)
    monkeypatch.chdir(folder)
    Path("results/tiny/student/pipeline").rename("copied")
    images = Path("results/tiny/samples/student").rename("images")
    shutil.rmtree("results/tiny")
    written, sheet = draw("copied", [], "inputs/eval.csv", run="drawn")
    written.write_text(written.read_text().replace("batch_size: 4", "batch_size: 2"))
    succeed(folder, str(sheet), "--configfile", str(written))
    assert sheet.is_file()
    drawn = {path.relative_to(sheet.parent) for path in sheet.parent.glob("*/*.png")}
    assert len(drawn) == 5
    for image in drawn:
        pixels = [
            Image.open(root / image).convert("RGB").tobytes() for root in (sheet.parent, images)
        ]
        assert pixels[0] == pixels[1], image


def test_a_student_is_judged_on_other_prompts_after_a_clean_up(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but its exported pipeline and the run's configuration is left of the first run."""
    folder = shutil.copytree(finished, tmp_path / "run", symlinks=True)
    monkeypatch.chdir(folder)
    first = RunFolder(Path("results/tiny"))
    for gone in (*first.path.iterdir(), *first.student("x").parent.iterdir()):
        if gone.is_dir() and gone.name not in ("config", "student", "pipeline", "untrained"):
            shutil.rmtree(gone)
    Path("own.csv").write_text("prompt\na blue horse\na green tree\n")
    written, report = evaluate("results/tiny", "own.csv")
    made = jobs(succeed(folder, str(report), "--configfile", str(written)))
    assert {"embeddings", "samples", "evaluation", "report"} <= made
    assert not made & {"student", "training", "export", "targets"}
    metrics = json.loads(report.with_name("metrics.json").read_text())
    assert {"teacher", "student", "untrained"} == set(metrics["quality"]["models"])
    assert RunFolder(Path("results/tiny-evaluated")).card.is_file()
    listed = succeed(folder, "--dry-run", "--configfile", str(written))
    assert "Nothing to be done" in listed, listed

    raw = yaml.safe_load(written.read_text())
    raw["training"]["learning_rate"] = 1e-5
    config = parse_config(raw, "changed")
    with pytest.raises(ValueError, match=r"another than this configuration's: .*learning_rate"):
        make_plan(STAGES, config, Path("results/tiny-evaluated/plan.json"))
