"""The lab, at a size where it takes seconds: real stages, a real judge."""

import json
import multiprocessing
from pathlib import Path
from types import SimpleNamespace

import lab
import pytest
import torch
import yaml
from cell_images import spreads

from runs import settings

ROOT = Path(__file__).parents[2]
PLAN = {
    "store": {"prompts": 4, "noises": 2},
    "held_out": {"prompts": 2, "images": 2},
    "seeds": 2,
    "teacher_steps": [2],
    "training": {
        "objective": "segment",
        "global_batch_size": 8,
        "learning_rate": 1e-3,
        "dtype": "float32",
    },
    "students": {
        "rounds": {
            "steps": 2,
            "after": "plain",
            "against": "plain",
            "student": {"init": "layers", "num_layers": 1},
            "phases": [
                {"learn": "stored", "samples": 32},
                {"learn": "rounds", "samples": 16, "count": 1},
            ],
        },
        "plain": {
            "steps": 2,
            "student": {"init": "layers", "num_layers": 1},
            "phases": [{"learn": "stored", "samples": 48}],
        },
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, teacher: Path) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    raw = settings(
        folder,
        teacher,
        targets={"steps": 8},
        evaluation={"judge": str(ROOT / "resources/demo/judge")},
    )
    (folder / "config.yaml").write_text(yaml.safe_dump(raw))
    (folder / "plan.yaml").write_text(yaml.safe_dump(PLAN))
    return folder


@pytest.fixture(autouse=True)
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forks, which have the libraries; there is no GPU that forbids it."""
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(lab, "multiprocessing", SimpleNamespace(get_context=lambda _: context))


def run(folder: Path, *options: str) -> int:
    line = (
        f"--folder {folder / 'made'} --config {folder / 'config.yaml'} "
        f"--plan {folder / 'plan.yaml'} --jobs 1 --device cpu --shrink 2"
    )
    return lab.main([*line.split(), *options])


@pytest.mark.slow
def test_students_are_trained_with_each_seed_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder) == 0
    said = capsys.readouterr().out
    assert "8 of 8 cells" in said
    order = [said.index(f"{name}-seed-1 done") for name in ("plain", "rounds")]
    assert order == sorted(order), "rounds waits for plain, which stands behind it"
    assert run(folder) == 0
    assert "done" not in capsys.readouterr().out, "nothing is made again"
    summary = json.loads((folder / "made/lab.json").read_text())
    rows = {(row["name"], row["steps"]): row for row in summary["students"]}
    assert set(rows) == {
        ("plain", 2), ("rounds", 2),
        ("guided", 8), ("unguided", 8), ("guided", 2), ("unguided", 2),
    }  # fmt: skip
    reference, rounds, plain = rows["guided", 8], rows["rounds", 2], rows["plain", 2]
    assert (reference["clip"]["mean"], reference["latent_mse"]) == (1, 0)
    assert plain["seeds"] == [1, 2]
    first, second = plain["clip"]["of_seeds"]
    assert first != second, "a seed is another training"
    assert rounds["gain"]["mean"] == pytest.approx(
        rounds["clip"]["mean"] - plain["clip"]["mean"], abs=1e-5
    )
    (line,) = [
        line for line in (folder / "made/lab.md").read_text().splitlines() if "| rounds" in line
    ]
    assert "over plain" in line
    capsys.readouterr()
    assert lab.main(["--table", str(folder / "made/lab.json")]) == 0
    assert capsys.readouterr().out == (folder / "made/lab.md").read_text()
    weights = [
        (folder / f"made/students/plain-seed-{seed}/initial").glob("*.safetensors")
        for seed in (1, 2)
    ]
    first_bytes, second_bytes = (next(paths).read_bytes() for paths in weights)
    assert first_bytes == second_bytes, "both begin as the same student"


def test_a_student_that_is_not_there_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(PLAN).replace("after: plain", "after: it"))
    with pytest.raises(ValueError, match="rounds names it, which is no student there"):
        run(folder, "--plan", str(tmp_path / "plan.yaml"))
    with pytest.raises(SystemExit, match="none of plain, rounds"):
        run(folder, "--only", "same-*")


def test_diversity_is_the_distance_of_images_of_one_prompt() -> None:
    black, grey = torch.zeros(2, 2, 3), torch.full((2, 2, 3), 90)
    equal, different = torch.stack([black, black]), torch.stack([black, grey])
    assert spreads(torch.cat([equal, different]), per_prompt=2) == [0, 90]
    assert spreads(torch.stack([black, grey, grey]), per_prompt=3) == [60]
