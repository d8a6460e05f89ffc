"""The table of objectives, at a size where it takes seconds: real stages, a real judge."""

import json
import multiprocessing
from pathlib import Path
from types import SimpleNamespace

import objectives
import pytest
import torch
import yaml
from cell_images import pairwise_rms

from runs import settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, teacher: Path) -> Path:
    folder = tmp_path_factory.mktemp("config")
    raw = settings(
        folder,
        teacher,
        targets={"steps": 8},
        evaluation={"judge": str(ROOT / "resources/demo/judge")},
    )
    (folder / "config.yaml").write_text(yaml.safe_dump(raw))
    return folder / "config.yaml"


@pytest.fixture(autouse=True)
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forks, which have the libraries; there is no GPU that forbids it."""
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(
        objectives, "multiprocessing", SimpleNamespace(get_context=lambda _: context)
    )


def run(folder: Path, config: Path, *options: str) -> int:
    line = (
        f"--folder {folder} --config {config} --jobs 1 --shapes quarter --steps 2 --num-samples 32 "
        "--batch-size 8 --stores 4x2 --rounds 1 --num-prompts 2 --images-per-prompt 2 --repeats 1 "
        "--device cpu"
    )
    return objectives.main([*line.split(), *options])


@pytest.mark.slow
def test_each_cell_is_made_once_and_has_its_row(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, config, "--objectives", "direct") == 0
    assert "5 of 5 cells" in capsys.readouterr().out
    more = ("direct", "segment+rollout", "segment+rounds")
    assert run(tmp_path, config, "--objectives", *more) == 0
    said = capsys.readouterr().out
    assert "of 2: quarter-segment+rollout-2-4x2 done" in said
    assert "of 2: quarter-segment+rounds-2-4x2 done" in said
    rows = {path.stem: read_row(path) for path in (tmp_path / "cells").glob("*.json")}
    assert len(rows) == 7
    assert len(list((tmp_path / "cells").glob("*.png"))) == 7
    reference, few = rows["teacher-guided-8"], rows["teacher-guided-2"]
    assert (reference["latent_mse"], reference["pixel_rms"]) == (0, 0)
    assert reference["diversity"] == pytest.approx(1)
    assert 1e-4 < few["latent_mse"] < 0.3, "fewer steps from the same noise end near it"
    students = [row for name, row in rows.items() if name.startswith("quarter")]
    assert all(row["latent_mse"] > 1e-4 and row["training_s"] > 0 for row in students)
    assert all(-1 < row["clip_score"] < 1 for row in rows.values())
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert [line.split(" | ")[:4] for line in lines if line.startswith("| quarter")] == [
        ["| quarter", "2", name, "4x2"] for name in more
    ]
    transformer = tmp_path / "students/quarter-direct-2-4x2/pipeline/transformer/config.json"
    assert json.loads(transformer.read_text())["num_layers"] == 1, "of the tiny teacher's two"


@pytest.mark.slow
def test_cells_are_chosen_by_name(config: Path, tmp_path: Path) -> None:
    options = ("--objectives", "segment", "--shapes", "lora", "half")
    with pytest.raises(SystemExit, match="none of lora-segment-2-4x2, half-segment-2-4x2"):
        run(tmp_path, config, *options, "--only", "same-*")
    assert run(tmp_path, config, *options, "--only", "lora-*") == 0
    (made,) = (tmp_path / "students").iterdir()
    assert made.name == "lora-segment-2-4x2"
    assert (made / "pipeline/lora").is_dir()


def read_row(path: Path) -> dict[str, float]:
    row: dict[str, float] = json.loads(path.read_text())["row"]
    return row


def test_diversity_is_the_distance_of_images_of_one_prompt() -> None:
    black, grey = torch.zeros(2, 2, 3), torch.full((2, 2, 3), 90)
    equal, different = torch.stack([black, black]), torch.stack([black, grey])
    both = torch.cat([equal, different])
    assert pairwise_rms(both, per_prompt=2) == pytest.approx(45)
    assert pairwise_rms(torch.stack([black, grey, grey]), per_prompt=3) == pytest.approx(60)
