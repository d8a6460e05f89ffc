"""Which models are sampled."""

from typing import Any

import pytest

from configs import changed
from distillery.config.run import Config, parse_config

GENERATING = ("run", "teacher", "samples")
OWN = {"source": "teacher", "steps": 4, "guidance_scale": 7.0}


def parsed(**changes: Any) -> Config:
    config = parse_config(changed(**changes), "my.yaml")
    assert isinstance(config, Config)
    return config


def test_the_teacher_at_other_steps_is_added_guided_and_not() -> None:
    models = {"teacher": {"source": "teacher"}, "teacher-4-steps": OWN, "me": {"source": "student"}}
    config = parsed(samples__models=models, samples__steps=[2, 4])
    assert list(config.samples.models) == [
        *models,
        "teacher-2-steps",
        "teacher-2-steps-unguided",
        "teacher-4-steps-unguided",
    ]
    own, added = (config.samples.models[f"teacher-{number}-steps"] for number in (4, 2))
    assert (own.steps, own.guidance_scale) == (4, 7.0), "the user's own stays as it is"
    assert (added.source, added.steps, added.guidance_scale) == ("teacher", 2, None)
    assert config.samples.models["teacher-2-steps-unguided"].guidance_scale == 1.0
    again = parse_config(config.model_dump(mode="json"), "frozen")
    assert again == config, "a frozen configuration says the same"


def test_a_teacher_without_guidance_is_added_once() -> None:
    added = {*parsed(targets__guidance_scale=1.0, samples__steps=[2]).samples.models}
    assert "teacher-2-steps" in added
    assert "teacher-2-steps-unguided" not in added


def test_the_teachers_own_steps_are_no_second_teacher() -> None:
    """It is in the models already, and without guidance it is another."""
    added = {*parsed(targets__steps=24, samples__steps=[24]).samples.models}
    assert "teacher-24-steps" not in added
    assert "teacher-24-steps-unguided" in added


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([0], r"cannot be used:\n  samples\.steps\.0 is 0[^\n]*$"),
        (["two"], r"cannot be used:\n  samples\.steps\.0 is 'two'[^\n]*$"),
        ([2, 4, 2], "samples.steps has 2 more than once"),
        (4, "samples.steps is 4"),
    ],
)
def test_wrong_steps_are_named(steps: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parsed(samples__steps=steps)


def test_a_generating_run_lists_its_models() -> None:
    raw = {key: value for key, value in changed(samples__steps=[2]).items() if key in GENERATING}
    raw |= {"prompts": {"eval": "eval.csv"}}
    raw["samples"]["models"] = {"teacher": OWN}
    with pytest.raises(ValueError, match=r"samples\.steps is set: .* list them in samples\.models"):
        parse_config(raw, "my.yaml")


def test_a_student_cannot_be_the_reference() -> None:
    """It is what is judged: the ratio to itself says nothing."""
    with pytest.raises(ValueError, match=r"reference is 'student'.*own measure; name teacher"):
        parsed(evaluation__reference="student")
