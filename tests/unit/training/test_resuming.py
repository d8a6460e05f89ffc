"""From which checkpoint a training resumes, and what it says of those that it does not take."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from distillery.config.training import Training
from distillery.training.checkpoint import differences
from distillery.training.state import learning_rate_at
from runs import Run
from training_phases import phases

WEIGHTS = "diffusion_pytorch_model.safetensors"
TRAINING = {
    "phases": phases(stored=32), "global_batch_size": 8, "learning_rate": 1e-3, "warmup_samples": 8,
    "ema_half_life_samples": 16, "save_every_samples": 16, "log_every_samples": 8,
    "dtype": "float32",
}  # fmt: skip
FINISH = {"phases": phases(stored=32, online=16)}
SECTIONS = {
    "targets": {"steps": 4, "num_segments": 2},
    "student": {"steps": 2},
    "training": TRAINING | FINISH,
}


def learn(run: Run, output: Path, **settings: Any) -> tuple[dict[str, Any], pd.DataFrame]:
    return run.learn(output, TRAINING | settings)


def test_a_finish_takes_up_a_stored_training_and_learns_what_one_training_does(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And rollouts after it, for whose losses the stored training has no column."""
    caplog.set_level("INFO")
    then = {"phases": phases(stored=32, online=16, rollouts=8)}
    expected, losses = learn(run, tmp_path / "whole", **FINISH | then)
    assert "takes up" not in caplog.text
    learn(run, tmp_path / "parts")
    caplog.clear()
    found, found_losses = learn(run, tmp_path / "parts", **FINISH | then)
    assert "samples-000000000032, of a training of 32 from the teacher's stored traj" in caplog.text
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    pd.testing.assert_frame_equal(found_losses, losses)


def test_a_stored_training_of_another_length_is_named(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    learn(run, tmp_path)
    learn(run, tmp_path, **FINISH | {"phases": phases(stored=40, online=16)})
    (line,) = [line for line in caplog.messages if "are not taken up" in line]
    assert line.endswith("their training is another: training.num_samples is 32 there and 40 here")


def test_the_reverse_begins_anew_and_says_why(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    learn(run, tmp_path, **FINISH)
    assert "not taken up" not in caplog.text
    learn(run, tmp_path, phases=phases(stored=48))
    (line,) = [line for line in caplog.messages if "are not taken up" in line]
    assert "training.targets is online there and not set here" in line
    assert "resumes from" not in caplog.text


def test_another_stored_training_is_not_taken_up(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    learn(run, tmp_path, learning_rate=1e-4)
    learn(run, tmp_path, **FINISH)
    assert "takes up" not in caplog.text
    assert "training.learning_rate is 0.0001 there and 0.001 here" in caplog.text


def test_a_finish_has_a_cosine_of_its_own() -> None:
    whole, finish = Training(**TRAINING), Training(**TRAINING | FINISH)
    for seen in range(0, 32, 8):
        assert learning_rate_at(seen, finish) == learning_rate_at(seen, whole)
    first, last = (learning_rate_at(seen, finish) for seen in (32, 40))
    assert 1e-3 > first > 0.8e-3
    assert 0 < last < 0.2e-3


def test_differences_are_named_by_their_keys() -> None:
    theirs = {"a": 1, "training": {"b": 2, "c": 3}, "hash": "0" * 64}
    ours = {"a": 1, "training": {"b": 4}, "hash": "1" * 64}
    assert differences(theirs, ours) == [
        "hash is 000000000000… there and 111111111111… here",
        "training.b is 2 there and 4 here",
        "training.c is 3 there and not set here",
    ]
