"""A teacher that is a few-step student: the plan says how to call it, and doubts other calls."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from families import flux_dev, flux_schnell, sdxl
from runs import generating_settings, planned, settings, summary

CALL = {"num_inference_steps": 2, "guidance_scale": 1.0}


@pytest.fixture
def student(teacher: Path, tmp_path: Path) -> Path:
    """A teacher's folder as the export of a student leaves it."""
    folder = Path(shutil.copytree(teacher, tmp_path / "student"))
    (folder / "distillery.json").write_text(json.dumps({"call": {"arguments": CALL}}))
    return folder


def doubts(folder: Path, path: Path, steps: int, scale: float, **teacher: Any) -> list[str]:
    targets = {"steps": steps, "num_segments": 1, "guidance_scale": scale}
    models = {"teacher": {"source": "teacher"}, "student": {"source": "student"}}
    changes = {"targets": targets, "samples": {"models": models}, "student": {"steps": 1}}
    plan = planned(settings(folder, path, teacher=teacher, **changes), folder)
    assert "made for" in summary(plan)
    return [line for line in plan["advice"] if "few-step student" in line]


@pytest.mark.parametrize(("steps", "scale"), [(2, 3.0), (4, 1.0), (1, 1.0)])
def test_another_call_of_an_own_student_is_doubted(
    student: Path, tmp_path: Path, steps: int, scale: float
) -> None:
    (told,) = doubts(tmp_path, student, steps, scale)
    assert "2 steps and guidance 1, which is off (as its distillery.json says)" in told
    assert f"targets has {steps} steps and guidance {scale:g}" in told


def test_its_own_call_is_not(student: Path, tmp_path: Path) -> None:
    assert doubts(tmp_path, student, 2, 1.0) == []


@pytest.mark.parametrize("name", ["sdxl-turbo", "SDXL-Lightning-4step", "my_lcm", "FLUX.1-schnell"])
def test_so_are_names_of_few_step_students(teacher: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(teacher, tmp_path / name)
    (told,) = doubts(tmp_path, tmp_path / name, 16, 3.0)
    assert "1 to 8 steps and guidance 1, which is off" in told
    assert doubts(tmp_path, tmp_path / name, 4, 1.0) == []


def test_a_network_and_scheduler_as_of_schnell(tmp_path: Path) -> None:
    flux_schnell.make(tmp_path / "teacher")
    case = flux_schnell.CASE
    size = {"height": case.height, "width": case.width, "negative_prompt": None}
    (told,) = doubts(tmp_path, tmp_path / "teacher", 8, 3.0, **size)
    assert "1 to 4 steps" in told


@pytest.mark.parametrize("name", ["LCMScheduler", "TCDScheduler"])
def test_another_scheduler_does_not_hide_the_folders_own(tmp_path: Path, name: str) -> None:
    """The network stays what it is: in a training run and in one that only generates."""
    folder, case = tmp_path / "teacher", sdxl.CASE
    case.make(folder)
    for file, changes in (
        ("scheduler/scheduler_config.json", {"_class_name": name}),
        ("model_index.json", {"scheduler": ["diffusers", name]}),
    ):
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    section = {
        "height": case.height,
        "width": case.width,
        "max_sequence_length": case.max_tokens,
        "negative_prompt": None,
        "scheduler": {"class": "DDIMScheduler", "timestep_spacing": "trailing"}
        | {"clip_sample": False},
    }
    (told,) = doubts(tmp_path, folder, 20, 3.0, **section)
    assert f"(its scheduler is {name})" in told
    models = {"teacher": {"source": "teacher", "steps": 20, "guidance_scale": 3.0}}
    raw = generating_settings(tmp_path, folder, teacher=section, samples={"models": models})
    assert [line for line in planned(raw, tmp_path)["advice"] if "few-step student" in line]


@pytest.mark.parametrize("name", ["teacher", "turbulence", "flashy", "scheme"])
def test_others_are_not(teacher: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(teacher, tmp_path / name)
    plan = planned(settings(tmp_path, tmp_path / name), tmp_path)
    assert "made for" not in summary(plan)
    assert not [line for line in plan["advice"] if "few-step" in line]


def test_a_guided_network_is_not(tmp_path: Path) -> None:
    flux_dev.make(tmp_path / "teacher")
    case = flux_dev.CASE
    size = {"height": case.height, "width": case.width, "negative_prompt": None}
    plan = planned(settings(tmp_path, tmp_path / "teacher", teacher=size), tmp_path)
    assert "made for" not in summary(plan)
