"""What a finished run serves for: a second student of its store, and own prompts."""

import shutil
from pathlib import Path

import pytest
import yaml
from PIL import Image

from checkout import jobs, snakemake, succeed
from distillery.draw import draw
from distillery.files import hash_file
from distillery.model_folder import read_metadata

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
    assert "Traceback" not in refused.stdout


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
