"""What an any-step student may not be is told before the first job."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from configs import changed
from distillery.config.run import Config, parse_config
from distillery.pipeline import STAGES
from distillery.planning.plan import make_plan
from families import CASES
from runs import planned, settings, summary
from training_phases import phases

CASE_OF = {case.name: case for case in CASES}
FLOW_MAP = {"init": "flow_map", "steps": 4}


def test_its_own_steps_are_sampled_by_name() -> None:
    config = parse_config(changed(student=FLOW_MAP, samples__student_steps=[1, 2, 4]), "my.yaml")
    assert isinstance(config, Config)
    added = {name: model.steps for name, model in config.samples.models.items()}
    assert added == {
        "teacher": None, "teacher-4-steps": 4, "student": None,
        "student-1-steps": 1, "student-2-steps": 2,
    }  # fmt: skip
    again = parse_config(config.model_dump(mode="json"), "frozen")
    assert again == config, "a frozen configuration says the same"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"student": {"init": "flow_map", "steps": 1}}, "'flow_map' and student.steps is 1: "),
        (
            {"samples__student_steps": [3]},
            "samples.student_steps has 3, student.steps is 4: the student learns 1, 2 and 4 steps",
        ),
        ({"samples__student_steps": [8]}, "samples.student_steps has 8, student.steps is 4: "),
        ({"samples__student_steps": [2, 2]}, "samples.student_steps has 2 more than once"),
        (
            {"samples__models__student": {"source": "student", "steps": 3}},
            "samples.models.student.steps is 3, student.steps is 4: the student learns",
        ),
        (
            {"student": {"steps": 4}, "samples__student_steps": [2]},
            r"samples.student_steps is \[2\] and student.init is 'teacher'",
        ),
        ({"student": FLOW_MAP | {"lora": {"rank": 4}}}, "'flow_map' and student.lora is given"),
        ({"student": FLOW_MAP | {"layers": [0]}}, r"'flow_map' and student.layers is \[0\]"),
        ({"training__objective": "direct"}, "'flow_map' and training.objective is 'direct'"),
        ({"training__timestep_weights": "min_snr"}, "'flow_map' and training.timestep_weights"),
        (
            {"training__phases": phases(stored=320, online=320)},
            "'flow_map' and training.phases.1 is online",
        ),
        (
            {"training__phases": phases(stored=320, rollouts=320)},
            "'flow_map' and training.phases.1 is rollouts",
        ),
        (
            {"targets__num_segments": 4, "student": {"init": "flow_map", "steps": 8}},
            "targets.num_segments is 4, student.steps is 8",
        ),
    ],
)
def test_what_it_cannot_be_is_refused(changes: Mapping[str, Any], message: str) -> None:
    raw = changed(**({"student": FLOW_MAP} | dict(changes)))
    with pytest.raises(ValueError, match=message):
        parse_config(raw, "my.yaml")


@pytest.mark.parametrize("name", ["sdxl", "flux-dev"])
def test_a_teacher_of_another_class_is_refused(name: str, tmp_path: Path) -> None:
    case = CASE_OF[name]
    case.make(tmp_path / "teacher")
    sizes = {"height": case.height, "width": case.width, "max_sequence_length": case.max_tokens}
    raw = settings(
        tmp_path,
        tmp_path / "teacher",
        teacher={**sizes, "negative_prompt": None, **case.teacher},
        student={"init": "flow_map", "steps": 2},
    )
    with pytest.raises(ValueError, match=r"for teachers of the family wan alone, not for \w+; use"):
        make_plan(STAGES, parse_config(raw, "tiny"), tmp_path / "plan.json")


def test_a_teacher_with_other_noise_levels_is_refused(teacher: Path, tmp_path: Path) -> None:
    raw = settings(
        tmp_path,
        teacher,
        teacher={"scheduler": {"class": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}},
        student={"init": "flow_map", "steps": 2},
    )
    with pytest.raises(ValueError, match=r"FlowMatchEulerDiscreteScheduler has .* at the knots"):
        make_plan(STAGES, parse_config(raw, "tiny"), tmp_path / "plan.json")


def test_the_plan_says_what_is_learned(teacher: Path, tmp_path: Path) -> None:
    samples = {"student_steps": [1]}
    student = {"init": "flow_map", "steps": 2}
    plan = planned(settings(tmp_path, teacher, student=student, samples=samples), tmp_path)
    page = summary(plan)
    assert "distilled into a student of 1 and 2 steps" in page
    assert "1 and 2 steps, without guidance; init: flow_map" in page
    assert "objective flow map" in page
    assert "student-1-steps" in page
    assert plan["student"]["num_parameters"] > plan["student"]["teacher_parameters"]
