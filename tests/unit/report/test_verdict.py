"""Whether a student is good enough: roles, thresholds, and what was not measured."""

from pathlib import Path

import pandas as pd
import pytest

from distillery.measures.intervals import ConfidenceInterval
from distillery.measures.manifests import ModelSamples
from distillery.report import verdict
from distillery.report.roles import Roles, find_roles, order_models
from quality import MODELS, make_config, quality_with


def outcomes(quality, models=MODELS, least=0.97):
    config = make_config(samples={"models": models})
    checks = verdict.check_student(quality, find_roles(config, quality), least)
    return [check.outcome for check in checks]


def test_the_rival_is_the_best_of_the_teachers_models_that_cost_no_more():
    """Not `few`, which costs twice as much, nor `fewer`, which is worse; guided or not."""
    config = make_config(samples={"models": MODELS})
    roles = find_roles(config, quality_with(1, 1, -1, 1))
    assert roles == Roles("student", "teacher", "unguided", "untrained")
    without_scores = Roles("student", "teacher", None, "untrained")
    assert find_roles(config, None) == without_scores


def test_a_guided_student_plays_no_part():
    """It was not trained for guidance, and takes two calls per step."""
    others = {name: {"source": name, "guidance_scale": 2.0} for name in ("student", "untrained")}
    config = make_config(samples={"models": MODELS | others})
    roles = find_roles(config, quality_with(1, 1, -1, 1))
    assert roles == Roles(None, "teacher", None, None)


@pytest.mark.parametrize(
    ("numbers", "of_ratio", "of_others"),
    [
        ((0.99, 0.02, -0.02, 0.5), "passed", ["passed", "passed"]),
        ((0.95, -0.02, 0.02, -0.5), "failed", ["failed", "failed"]),
        ((0.975, 0.005, -0.005, 0.005), "undecided", ["undecided", "undecided"]),
        ((0.965, -0.005, 0.005, -0.005), "undecided", ["undecided", "undecided"]),
        ((0.99, 0.02, 0.02, 0.005), "passed", ["passed", "undecided"]),
    ],
)
def test_a_threshold_is_judged_by_the_whole_interval(numbers, of_ratio, of_others):
    """Of the reference once, then against rival and untrained alike."""
    assert outcomes(quality_with(*numbers)) == [of_ratio, *of_others, *of_others]


def test_a_student_like_the_untrained_one_is_not_better():
    """All differences are exactly zero, without an interval; older ones had none of width."""
    found = outcomes(quality_with(1.0, 0.0, 0.0, 0.0, reach=0.0))
    assert found == ["passed", *["failed"] * 4]


def test_the_share_of_the_clip_score_is_the_users():
    quality = quality_with(0.95, 0.02, -0.02, 0.5)
    assert [outcomes(quality, least=least)[0] for least in (0.9, 0.945, 0.97)] == [
        "passed",
        "undecided",
        "failed",
    ]


def test_a_missing_bound_is_unlimited():
    assert verdict.decide(ConfidenceInterval(0.1, None, 0.2), 0.0, +1) == "undecided"
    assert verdict.decide(ConfidenceInterval(0.1, 0.05, None), 0.0, +1) == "passed"
    assert verdict.decide(ConfidenceInterval(0.1, 0.05, None), 0.0, -1) == "failed"
    assert verdict.decide(ConfidenceInterval(0.1, None, None), 0.0, +1) == "undecided"
    assert verdict.describe_interval(ConfidenceInterval(0.1, 0.05, None), str) == "0.1 (0.05 to ∞)"
    assert verdict.describe_interval(ConfidenceInterval(0.1, None, None), str) == "0.1"


def test_what_was_not_measured_is_not_passed():
    models = {name: MODELS[name] for name in ("teacher", "few", "student")}
    quality = quality_with(0.99, 1, -1, 1, models=models)
    assert outcomes(quality, models) == ["passed", *["not measured"] * 4]
    config = make_config(samples={"models": models})
    checks = verdict.check_student(quality, find_roles(config, quality), 0.97)
    assert not any(check.outcome in check.finding for check in checks)  # both are shown
    assert verdict.summarise_checks(checks) == (
        "The student passes 1 of 5 thresholds; 4 could not be measured."
    )


def test_no_student_no_thresholds():
    models = {"teacher": MODELS["teacher"]}
    assert outcomes(quality_with(1, 1, 1, 1, models=models), models) == []


def test_models_are_ordered_by_the_calls_that_were_made():
    """A network that is told its guidance makes one call per step, whatever the scale."""
    calls = {"few": 4, "teacher": 24, "more": 6, "also few": 4}
    samples = {
        name: ModelSamples(name, Path(name), pd.DataFrame({"network_calls": [number]}))
        for name, number in calls.items()
    }
    assert order_models(samples, "teacher") == ["teacher", "more", "also few", "few"]
    assert order_models(samples, "few")[:2] == ["few", "teacher"]
