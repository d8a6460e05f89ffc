"""Whether a student is good enough: roles, thresholds, and what was not measured."""

from pathlib import Path

import pandas as pd
import pytest
from test_report import make_config

from distillery.evaluation import verdict
from distillery.evaluation.manifests import ModelSamples


def quality_with(ratio, clip, latents, psnr):
    def interval(value):
        return {"mean": value, "low": value - 0.01, "high": value + 0.01}

    against_few = {
        "clip_score_difference": interval(clip),
        "latents_mse_difference": interval(latents),
        "psnr_db_difference": interval(psnr),
    }
    against = {"teacher": {"clip_score_ratio": interval(ratio)}, "few": against_few}
    return {"models": {"student": {"against": against}}}


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((0.99, 0.02, -0.02, 0.5), [True, True, True, True]),
        ((0.96, -0.02, 0.02, -0.5), [False, False, False, False]),
        ((0.97, 0.0, 0.0, 0.0), [True, True, False, False]),
    ],
)
def test_thresholds(numbers, expected):
    roles = verdict.find_roles(make_config())
    assert roles == verdict.Roles("student", "teacher", "few")
    checks = verdict.check_student(quality_with(*numbers), roles)
    assert [check.passed for check in checks] == expected


def test_thin_evidence_is_said():
    roles = verdict.find_roles(make_config())
    checks = verdict.check_student(quality_with(0.972, 0.005, -0.005, 0.005), roles)
    assert "reaches below the threshold" in checks[0].finding
    assert all("holds zero" in check.finding for check in checks[1:])


def test_what_was_not_measured_is_not_passed():
    config = make_config(
        samples={"models": {"teacher": {"source": "teacher"}, "student": {"source": "student"}}}
    )
    roles = verdict.find_roles(config)
    assert roles.rival is None
    checks = verdict.check_student(quality_with(0.99, 1, -1, 1), roles)
    assert [check.passed for check in checks] == [True, None, None, None]
    assert "passes 1 of 4 thresholds; 3 could not" in verdict.summarise_checks(checks)


def test_models_are_ordered_by_the_calls_that_were_made():
    """A network that is told its guidance makes one call a step, whatever the scale."""
    calls = {"few": 4, "teacher": 24, "more": 6, "also few": 4}
    samples = {
        name: ModelSamples(name, Path(name), pd.DataFrame({"network_calls": [number]}))
        for name, number in calls.items()
    }
    assert verdict.order_models(samples, "teacher") == ["teacher", "more", "also few", "few"]
    assert verdict.order_models(samples, "few")[:2] == ["few", "teacher"]
