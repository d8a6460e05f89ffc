"""A teacher that is a few-step student: the plan says how to call it, and doubts other calls."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from distillery.config.teacher import Teacher
from distillery.files import read_json, write_json
from distillery.planning.few_steps import CONSISTENCY, Made, find_made
from distillery.teacher.folder import PipelineFolder
from families import flux_dev, flux_schnell
from runs import generating_settings, planned, settings, summary

CALL = {"num_inference_steps": 2, "guidance_scale": 1.0}


@pytest.fixture
def student(teacher: Path, tmp_path: Path) -> Path:
    """A teacher's folder as the export of a student leaves it."""
    folder = Path(shutil.copytree(teacher, tmp_path / "student"))
    (folder / "distillery.json").write_text(json.dumps({"call": {"arguments": CALL}}))
    return folder


def made(folder: Path, name: str = "teacher", scheduler: Mapping[str, Any] | None = None) -> Made:
    """What is found of a folder, by a name that the user gives it."""
    section = Teacher(path=name, height=32, width=32, scheduler=scheduler)
    found = find_made(section, PipelineFolder(folder))
    assert found is not None
    return found


@pytest.mark.parametrize(("steps", "scale"), [(2, 3.0), (4, 1.0)])
def test_another_call_of_an_own_student_is_doubted(
    student: Path, tmp_path: Path, steps: int, scale: float
) -> None:
    targets = {"steps": steps, "num_segments": 1, "guidance_scale": scale}
    changes = {"targets": targets, "student": {"steps": 1}}
    plan = planned(settings(tmp_path, student, **changes), tmp_path)
    assert "made for" in summary(plan)
    (told,) = (line for line in plan["advice"] if "few-step student" in line)
    assert "2 steps and guidance 1, which is off (as its distillery.json says)" in told
    assert f"targets has {steps} steps and guidance {scale:g}" in told
    models = {"teacher": {"source": "teacher", "steps": steps, "guidance_scale": scale}}
    raw = generating_settings(tmp_path, student, samples={"models": models})
    (told,) = (line for line in planned(raw, tmp_path)["advice"] if "few-step student" in line)
    assert f"samples.models.teacher has {steps} steps and guidance {scale:g}" in told


def test_its_own_call_is_not(student: Path, tmp_path: Path) -> None:
    targets = {"steps": 2, "num_segments": 1, "guidance_scale": 1.0}
    raw = settings(tmp_path, student, targets=targets, student={"steps": 1})
    plan = planned(raw, tmp_path)
    assert "made for" in summary(plan)
    assert not [line for line in plan["advice"] if "few-step student" in line]


@pytest.mark.parametrize("name", ["sdxl-turbo", "SDXL-Lightning-4step", "my_lcm", "FLUX.1-schnell"])
def test_so_are_names_of_few_step_students(teacher: Path, name: str) -> None:
    found = made(teacher, f"models/{name}")
    assert "1 to 8 steps and guidance 1, which is off" in found.words
    assert found.differs(16, 1.0)
    assert found.differs(4, 3.0)
    assert not found.differs(4, 1.0)


def test_a_network_and_scheduler_as_of_schnell(tmp_path: Path) -> None:
    flux_schnell.make(tmp_path / "teacher")
    assert "1 to 4 steps" in made(tmp_path / "teacher").words


@pytest.mark.parametrize("name", CONSISTENCY)
def test_another_scheduler_does_not_hide_the_folders_own(
    teacher: Path, tmp_path: Path, name: str
) -> None:
    """The network stays what it is."""
    folder = Path(shutil.copytree(teacher, tmp_path / "teacher"))
    for file, changes in (
        ("scheduler/scheduler_config.json", {"_class_name": name}),
        ("model_index.json", {"scheduler": ["diffusers", name]}),
    ):
        write_json(folder / file, read_json(folder / file) | changes)
    found = made(folder, scheduler={"class": "DDIMScheduler"})
    assert f"1 to 8 steps and guidance 1, which is off (its scheduler is {name})" in found.words


@pytest.mark.parametrize("name", ["teacher", "turbulence", "flashy", "scheme"])
def test_others_are_not(teacher: Path, name: str) -> None:
    section = Teacher(path=f"models/{name}", height=32, width=32)
    assert find_made(section, PipelineFolder(teacher)) is None


def test_a_guided_network_is_not(tmp_path: Path) -> None:
    flux_dev.make(tmp_path / "teacher")
    section = Teacher(path="FLUX.1-turbo", height=32, width=32)
    assert find_made(section, PipelineFolder(tmp_path / "teacher")) is None
