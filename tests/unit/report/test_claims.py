"""What is claimed of a student: one sentence for every surface, and nothing that is overlooked."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image, PngImagePlugin

from distillery.files import hash_file, write_json
from distillery.measures.manifests import ModelSamples
from distillery.report import verdict
from distillery.report.roles import Roles, SameImages, find_same
from distillery.run_folder import RunFolder
from distillery.terminal.board import Board

SPEED = {"network_calls_ratio": 8.0}
ROLES = Roles("student", "teacher", "few", "untrained")


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


def test_the_terminal_says_what_the_report_says(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "results/tiny")
    found = quality(interval(1.33, 1.2, 1.57), diversity_ratio=interval(0.3, 0.2, 0.5))
    check = verdict.Check("Good?", "passed", "yes")
    told = verdict.make_claims(ROLES, found, SPEED, [check])
    write_json(run.metrics, {"verdict": [vars(check)], "claims": told.as_json()})
    run.report.touch()
    board = Board(begin_s=0.0)
    board.begin(0, "report", run.log("report"), 0.0)
    board.end(0)
    lines = board.closing_lines()
    assert lines[:3] == [told.headline, told.weakness, "passed 1 of 1 checks"]
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


# ---- models of the same images -----------------------------------------------------------------


def drawn(folder, model, shade, calls=2, number=3, last=None):
    """Samples of a model; a file names its model, as those of a run do."""
    folder = folder / model
    folder.mkdir(parents=True)
    for at in range(number):
        colour = (at, (shade if last is None or at < number - 1 else last), 0)
        about = PngImagePlugin.PngInfo()
        about.add_text("recipe", model)
        Image.new("RGB", (4, 4), colour).save(folder / f"{at}.png", pnginfo=about)
    files = [f"{at}.png" for at in range(number)]
    table = pd.DataFrame(
        {"file": files, "sha256": [hash_file(folder / it) for it in files], "steps": calls,
         "guidance_scale": 1.0, "network_calls": calls}
    )  # fmt: skip
    return ModelSamples(model, folder, table)


def test_models_whose_pixels_are_equal_are_one(tmp_path: Path) -> None:
    """Whatever else their files hold; one pixel of the last image is enough to be another."""
    rows = [
        drawn(tmp_path, "teacher", 1, calls=48),
        drawn(tmp_path, "teacher-2-steps-unguided", 2),
        drawn(tmp_path, "nearly", 2, last=3),
        drawn(tmp_path, "untrained", 2),
        drawn(tmp_path, "mine", 2),
        drawn(tmp_path, "student", 4),
    ]
    same = find_same({it.model: it for it in rows}, ("teacher", "student", "untrained", None))
    assert same.kept == {"teacher-2-steps-unguided": "untrained", "mine": "untrained"}
    assert same.label("untrained") == "untrained = teacher, 2 steps, no guidance = mine"
    assert same.shown([it.model for it in rows]) == ["teacher", "nearly", "untrained", "student"]
    assert same.are_same("mine", "teacher-2-steps-unguided")
    assert not same.are_same("mine", "student")
    assert not same.are_same(None, None)


def test_images_that_are_gone_are_not_called_equal(tmp_path: Path) -> None:
    one, other = drawn(tmp_path, "untrained", 2), drawn(tmp_path, "teacher-2-steps", 2)
    other.image_path(1).unlink()
    assert find_same({it.model: it for it in (one, other)}).kept == {}


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


# ---- no interval without a width ---------------------------------------------------------------


def test_no_stored_interval_without_a_width_is_shown() -> None:
    """As older scores have it of a coverage of 100 %."""
    found = verdict.read_interval(interval(1.0, 1.0, 1.0))
    assert (found.low, found.high) == (None, None)
    assert np.isclose(found.mean, 1.0)
