"""Is a student good enough, and what is claimed of it: the same on every surface."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from distillery.files import write_json
from distillery.measures.intervals import ConfidenceInterval
from distillery.report import verdict
from distillery.report.roles import Roles, SameImages, find_roles
from distillery.report.verdict import headline
from distillery.run_folder import RunFolder
from distillery.terminal.board import Board
from quality import MODELS, make_config, quality_with

ENDS = {"low": 0.5, "high": 1.0}
SPEED = {"network_calls_ratio": 8.0}
ROLES = Roles("student", "teacher", "few", "untrained")


def outcomes(quality, models=MODELS, least=0.97):
    config = make_config(samples={"models": models})
    checks = verdict.check_student(quality, find_roles(config, quality), least)
    return [check.outcome for check in checks]


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


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (12.0, "needs 12 times fewer network calls;"),
        (1.0, "needs as many network calls;"),
        (0.5, "needs 2 times more network calls;"),
    ],
)
def test_a_headline_makes_sense_of_every_ratio(ratio, words):
    roles = Roles("student", "teacher")
    assert words in headline(roles, None, {"network_calls_ratio": ratio})


def test_a_headline_says_what_was_kept_before_the_training():
    def keeping(share):
        return {"against": {"teacher": {"clip_score_ratio": {"mean": share} | ENDS}}}

    quality = {"models": {"student": keeping(0.96), "untrained": keeping(0.78)}}
    speed = {"network_calls_ratio": 24.0}
    text = headline(Roles("student", "teacher", None, "untrained"), quality, speed)
    assert text.endswith("24 times fewer network calls; before its training it kept 78.0\xa0%.")
    assert "keeps 96.0\xa0% of the teacher's CLIP score" in text
    text = headline(Roles("student", "teacher"), quality, speed)
    assert text.endswith("24 times fewer network calls.")


def test_a_headline_names_a_reference_that_is_not_the_teacher():
    """Three times the score of a broken teacher of two steps is not three times the teacher's."""
    kept = {"against": {"teacher-2-steps": {"clip_score_ratio": {"mean": 3.036} | ENDS}}}
    roles = Roles("student", "teacher-2-steps")
    speed = {"network_calls_ratio": 2.0}
    assert headline(roles, {"models": {"student": kept}}, speed) == (
        "The student scores 3.04 times teacher-2-steps's CLIP score (0.50 to 1.00) with 2 times "
        "fewer network calls than teacher-2-steps."
    )
    assert "2 times fewer network calls than teacher-2-steps;" in headline(roles, None, speed)


def interval(mean, low=None, high=None):
    return {"mean": mean, "low": low, "high": high}


def quality(ratio, r1=None, other=None, **sets):
    """Scores of a student and of a cheaper teacher's model, as ratios to the reference."""

    def model(found):
        return {"against": {"teacher": {"clip_score_ratio": found}}, "sets": {"judge": sets}}

    return {
        "vision_models": {"judge": {"left_out": {}}},
        "models": {
            "teacher": {"retrieval_r1": r1, "against": {}},
            "student": model(ratio),
            "few": model(other),
        },
    }


@pytest.mark.parametrize(
    ("found", "begins", "is_weak"),
    [
        (quality(interval(0.96, 0.9, 1.02)), "keeps 96.0\xa0% of the teacher's", False),
        (quality(interval(1.01, 0.98, 1.03)), "scores 1.01 times the teacher's", False),
        (quality(interval(1.33, 1.2, 1.57)), "scores 1.33 times the teacher's", True),
        (quality(interval(0.9, 0.8, 0.95), interval(0.8, 0.6, 0.91)), "scores 0.90 times", True),
        (quality(interval(0.9, 0.8, 0.95), interval(0.9, 0.8, 0.96)), "keeps 90.0", False),
        (quality(interval(0.9, 0.8, 1), None, interval(1.1, 1.01, 1.2)), "scores 0.90", True),
        (quality(interval(0.9, 0.8, 1), None, interval(1.1, 0.99, 1.2)), "keeps 90.0", False),
        (quality(interval(1.33)), "scores 1.33 times the teacher's CLIP score with", False),
    ],
)
def test_a_weak_reference_is_in_the_headline(found, begins, is_weak):
    """Of its own images few fit, or another model is better by the whole interval."""
    told = verdict.make_claims(ROLES, found, SPEED, [])
    assert told.headline.startswith(f"The student {begins}")
    assert ("the reference is weak" in told.headline) == is_weak == bool(told.weakness)
    assert ("say little" in told.headline) == is_weak
    if is_weak:
        assert "keeps" not in told.headline


@pytest.mark.parametrize(
    ("measure", "found", "is_flagged"),
    [
        ("frechet_ratio", interval(1.5, 1.1, 2.0), True),
        ("frechet_ratio", interval(1.5, 0.9, 2.0), False),
        ("frechet_ratio", interval(0.5, 0.4, 0.6), False),
        ("frechet_ratio", interval(1.5), False),
        ("diversity_ratio", interval(0.3, 0.2, 0.5), True),
        ("diversity_ratio", interval(0.9, 0.8, 1.1), False),
        ("diversity_ratio", interval(1.4, 1.2, 1.5), False),
        ("diversity_ratio", None, False),
    ],
)
def test_what_is_watched_is_flagged_beyond_one(measure, found, is_flagged):
    lines = verdict.find_watched(ROLES, quality(interval(0.9), **{measure: found}))
    assert [it.name for it in lines] == [
        "Fréchet distance over its floor", "diversity over the teacher's"
    ]  # fmt: skip
    line = lines[measure == "diversity_ratio"]
    assert line.is_flagged == is_flagged == bool(line.meaning)
    assert (found is None) == line.finding.startswith("not measured")


@pytest.mark.parametrize(
    ("found", "is_flagged"),
    [
        (interval(0.6, 0.4, 0.9), True),
        (interval(0.9, 0.7, 1.05), False),
        (interval(1.9, 1.4, 2.5), False),  # more may be flicker, which has a measure of its own
        (interval(0.6), False),
        (None, False),
    ],
)
def test_motion_is_watched_in_clips(found, is_flagged):
    scored = quality(interval(0.9))
    scored["models"]["student"]["against"]["teacher"]["motion_ratio"] = found
    line, *others = verdict.find_watched(ROLES, scored)
    assert line.name == "motion over the teacher's"
    assert others == verdict.find_watched(ROLES, quality(interval(0.9)))
    assert line.is_flagged == is_flagged
    assert line.meaning == ("the clips move less" if is_flagged else "")
    assert (found is None) == line.finding.startswith("not measured")
    check = verdict.Check("Good?", "passed", "yes")
    summary = verdict.make_claims(ROLES, scored, SPEED, [check]).summary
    assert f"Watched, without a threshold: {line.name} {line.finding}" in summary
    assert ("the clips move less" in summary) == is_flagged


def test_the_terminal_says_what_the_report_says(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "results/tiny")
    found = quality(interval(1.33, 1.2, 1.57), diversity_ratio=interval(0.3, 0.2, 0.5))
    check = verdict.Check("Good?", "passed", "yes")
    told = replace(verdict.make_claims(ROLES, found, SPEED, [check]), worth="Worth 9 calls.")
    write_json(run.metrics, {"verdict": [vars(check)], "claims": told.as_json()})
    run.report.touch()
    board = Board(begin_s=0.0)
    board.begin(0, "report", run.log("report"), 0.0)
    board.end(0)
    lines = board.closing_lines()
    assert lines[:4] == [told.headline, told.worth, told.weakness, "passed 1 of 1 checks"]
    assert any(line.startswith("  flagged: diversity") for line in lines)
    assert "0.30 (0.20 to 0.50)" in (told.summary or "")


@pytest.mark.parametrize(
    ("ratio", "low", "high", "words"),
    [
        (None, None, None, "too few batches to say"),
        (4.7, 4.4, 5.0, "4.7\N{MULTIPLICATION SIGN} faster (4.4 to 5.0)"),
        (0.5, 0.4, 0.625, "2.0\N{MULTIPLICATION SIGN} slower (1.6 to 2.5)"),
        (1.2, 0.9, 1.5, "no difference beyond the interval (0.90 to 1.50 times as fast)"),
        (2.0, None, None, "2.0\N{MULTIPLICATION SIGN} faster"),
    ],
)
def test_a_speed_is_told_with_its_interval(ratio, low, high, words):
    speed = {"seconds_ratio": ratio, "seconds_ratio_low": low, "seconds_ratio_high": high}
    assert verdict.speed_words(speed).startswith(words)


def test_one_model_is_one_threshold() -> None:
    against = {
        f"{metric}_difference": interval(mean, mean - 0.1, mean + 0.1)
        for metric, mean in (("clip_score", 0.2), ("psnr_db", 1.0))
    }
    ratio = {"clip_score_ratio": interval(0.99, 0.98, 1.0)}
    scores = {"models": {"student": {"against": dict.fromkeys(("few", "untrained"), against)}}}
    scores["models"]["student"]["against"]["teacher"] = ratio
    assert len(verdict.check_student(scores, ROLES, 0.97)) == 5
    one = Roles(*list(vars(ROLES).values())[:4], SameImages({"few": "untrained"}))
    checks = verdict.check_student(scores, one, 0.97)
    assert verdict.summarise_checks(checks) == "The student passes all 3 thresholds."
    assert "untrained" in checks[1].question


@pytest.mark.parametrize(
    ("offset", "spread", "is_same"),
    [(0.0, None, True), (0.0, 0.0, True), (0.0, 0.01, False), (0.01, None, False)],
)
def test_all_images_score_the_same_only_without_offset_and_spread(
    offset: float, spread: float | None, is_same: bool
) -> None:
    """An interval that is missing is no proof: few prompts give none either."""

    def near(value: float) -> dict[str, float | None]:
        mean = value + offset
        return interval(mean) if spread is None else interval(mean, mean - spread, mean + spread)

    against = {
        "teacher": {"clip_score_ratio": near(1.0)},
        "few": {"clip_score_difference": near(0.0)},
    }
    scores = {"models": {"student": {"against": against}}}
    kept, beats, *_ = verdict.check_student(scores, ROLES, 0.97)
    assert (kept.finding == "every score is the same") == is_same
    assert kept.outcome == ("passed" if is_same or spread else "undecided")
    assert (beats.finding == "no difference in any image") == is_same
    assert beats.outcome == ("failed" if is_same else "undecided")


def test_no_stored_interval_without_a_width_is_shown() -> None:
    """As older scores have it of a coverage of 100 %."""
    found = verdict.read_interval(interval(1.0, 1.0, 1.0))
    assert (found.low, found.high) == (None, None)
    assert np.isclose(found.mean, 1.0)
