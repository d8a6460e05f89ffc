"""Prompts that a training does not learn from, and its loss on them."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError

from distillery.config.training import Training
from distillery.store.trajectories import TrajectoryStore
from distillery.training.batches import Batches, Order, Split
from distillery.training.distributed import RankInfo
from distillery.training.loop import train
from distillery.training.objectives import sample_losses
from distillery.training.state import new_state
from distillery.training.update import predict, student_of
from distillery.training.watchers import held_out
from distillery.training.watchers.alarms import judge_held_out
from distillery.training.watchers.held_out import HeldOut
from runs import Run, make_run
from training_phases import phases

STEPS = 4
TRAINING = {
    "phases": phases(stored=64), "global_batch_size": 8, "learning_rate": 1e-3,
    "save_every_samples": 16,
    "log_every_samples": 8, "dtype": "float32", "tf32": False, "held_out_prompts": 2,
}  # fmt: skip
SECTIONS = {
    "targets": {"steps": 8, "num_segments": STEPS, "samples_per_prompt": 2},
    "student": {"steps": STEPS},
    "training": TRAINING,
}


def opened_in(run: Run, output: Path, **changes: Any) -> tuple[Any, Any]:
    return run.opened_with(output, TRAINING | changes)


@pytest.mark.parametrize("num_held_out", range(7))
@pytest.mark.parametrize("per_prompt", [1, 3])
def test_each_trajectory_is_learned_from_or_held_out(num_held_out: int, per_prompt: int) -> None:
    split = Split.of(7 * per_prompt, per_prompt, num_held_out)
    assert len(split.held_out) == num_held_out * per_prompt
    learned = [split.learned(number) for number in range(split.num_learned)]
    assert learned == sorted({*range(7 * per_prompt)} - {*split.held_out})


def test_none_may_be_left(run: Run, tmp_path: Path) -> None:
    num_prompts = opened_in(run, tmp_path)[0].dataset.num_trajectories // 2
    with pytest.raises(ValueError, match=f"there are {num_prompts} prompts to learn from"):
        opened_in(run, tmp_path, held_out_prompts=num_prompts)
    with pytest.raises(ValidationError, match="all targets are online"):
        Training(**TRAINING | {"phases": phases(online=64)})


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_what_is_held_out_is_in_no_update(run: Run, tmp_path: Path, num_ranks: int) -> None:
    opened, _ = opened_in(run, tmp_path, phases=phases(stored=32, rollouts=32))
    dataset = opened.dataset
    parts = [
        Batches(dataset, opened.training, 0, RankInfo(rank, num_ranks)).positions(0)
        for rank in range(num_ranks)
    ]
    items = list(chain.from_iterable(chain.from_iterable(parts)))
    names = {str(dataset.sample(item)) for item in items}
    apart = {str(dataset.sample(item * STEPS)) for item in opened.batches.split.held_out}
    assert len(apart) == 4
    assert not names & apart
    assert any(item >= dataset.first_rollout for item in items)
    everything = {str(dataset.sample(row * STEPS)) for row in range(dataset.num_trajectories)}
    assert names == everything - apart, "all others are learned from"


def test_states_of_rounds_are_held_out_too(run: Run, tmp_path: Path) -> None:
    opened, _ = opened_in(run, tmp_path)
    dataset = opened.dataset
    training = Training(
        **TRAINING | {"phases": phases(stored=16, rounds={"count": 2, "samples": 24})}
    )
    updates = Batches(dataset, training, 0, RankInfo()).positions(16)
    visited = [item - dataset.first_visited for item in chain.from_iterable(updates)]
    found = {divmod(item, dataset.num_trajectories) for item in visited if item >= 0}
    assert {number for number, _ in found} == {0, 1}
    assert not {row for _, row in found} & {*opened.batches.split.held_out}


def test_without_any_the_order_and_the_recipe_are_as_they_were(run: Run, tmp_path: Path) -> None:
    opened, _ = opened_in(run, tmp_path, held_out_prompts=0)
    expected = Order(opened.dataset.num_items, opened.recipe.seed).items(0, 64)
    assert list(chain.from_iterable(opened.batches.positions(0))) == expected
    assert "held_out_prompts" not in opened.training.of_recipe
    assert opened_in(run, tmp_path)[0].training.of_recipe["held_out_prompts"] == 2


def test_the_history_has_the_loss_of_the_weights_as_they_are(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In some rows, and in the last one."""
    caplog.set_level("INFO")
    monkeypatch.setattr(held_out, "NUM_POINTS", 3)
    opened, paths = opened_in(run, tmp_path)
    assert train(opened, paths)
    losses = pd.read_parquet(paths.losses)
    measured = losses["held_out_loss"].notna()
    assert measured.tolist() == [False, False, True, False, False, True, False, True]
    state = new_state(paths.trained, opened)
    chosen = opened.batches.split.held_out
    items = [row * STEPS + segment for row in chosen for segment in range(STEPS)]
    batch = opened.dataset.__getitems__(items)
    with torch.no_grad():
        output = predict(state.denoiser.eval(), batch, opened)
    expected = float(sample_losses(output, batch.target, "mse", 1.0).mean())
    found = float(losses["held_out_loss"].iloc[-1])
    assert found == pytest.approx(expected, rel=1e-5)
    assert f"64 samples, loss {losses['loss'].iloc[-1]:.5f}, held-out loss {found:.5f}, " in (
        caplog.text
    )


@pytest.fixture(scope="module")
def whole(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A finished training, and where it wrote."""
    opened, paths = opened_in(run, tmp_path_factory.mktemp("whole"))
    assert train(opened, paths)
    return opened, paths


def test_errors_at_the_knots_are_of_the_students_own_walk(run: Run, whole: tuple[Any, Any]) -> None:
    opened, paths = whole
    last = pd.read_parquet(paths.losses).iloc[-1]
    state = new_state(paths.trained, opened)
    chosen, dataset = opened.batches.split.held_out, opened.dataset
    batch = dataset.__getitems__([dataset.first_rollout + row for row in chosen])
    student = student_of(state.denoiser.eval(), batch, opened)
    store, noisy = TrajectoryStore(run.files.targets), batch.noisy
    with torch.no_grad():
        for knot in range(STEPS):
            sigmas = (dataset.usual.grid.sigmas[knot], dataset.usual.grid.sigmas[knot + 1])
            timestep = torch.full((len(chosen),), dataset.usual.grid.timesteps[knot])
            velocity = student(noisy, timestep, timestep)
            noisy = noisy + (sigmas[1] - sigmas[0]) * velocity  # Euler, for the tiny Wan is a flow
            teachers = torch.stack([store.states(row, knot + 1, knot + 1)[0] for row in chosen])
            expected = float((noisy - teachers).square().mean())
            assert last[f"held_out_error_knot_{knot + 1}"] == pytest.approx(expected, rel=1e-4)
    assert f"held_out_error_knot_{STEPS + 1}" not in last


@pytest.mark.parametrize(("stored", "dtype"), [("bfloat16", "float32"), ("float16", "bfloat16")])
def test_any_stored_type_is_measured_by_any_training(
    stored: str, dtype: str, teacher: Path, tmp_path: Path
) -> None:
    """CPU autocast to bfloat16 refuses to stack float16."""
    run = make_run(
        tmp_path,
        teacher,
        teacher={"dtype": stored},
        targets={"steps": 4, "num_segments": STEPS, "dtype": stored},
        student={"steps": STEPS},
    )
    run.ready_to_train()
    opened, paths = opened_in(run, tmp_path, phases=phases(stored=8), dtype=dtype)
    assert train(opened, paths)
    last = pd.read_parquet(paths.losses).iloc[-1]
    columns = ["held_out_loss", *(f"held_out_error_knot_{knot}" for knot in range(1, STEPS + 1))]
    assert np.isfinite(last[columns].astype(float)).all()


def test_measuring_changes_no_weight_and_survives_a_stop(
    run: Run, whole: tuple[Any, Any], tmp_path: Path
) -> None:
    """The same rows after resuming; and learning from fewer prompts is another training."""
    _, paths = whole
    stopped, _ = opened_in(run, tmp_path / "stopped")
    stopped.stop.signal = 15
    assert not train(stopped, run.training_paths(tmp_path / "stopped"))
    resumed, again = opened_in(run, tmp_path / "stopped")
    assert train(resumed, again)
    pd.testing.assert_frame_equal(pd.read_parquet(again.losses), pd.read_parquet(paths.losses))


def test_no_measurement_looks_at_more_than_so_many_segments(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_out, "MAX_SEGMENTS", 2 * STEPS)
    opened, _ = opened_in(run, tmp_path)
    measured = HeldOut(new_state(run.training_paths(tmp_path).student, opened), opened)
    assert len(measured.trajectories) == 2
    assert {*measured.trajectories} < {*opened.batches.split.held_out}


def rows(*pairs: tuple[float, float]) -> list[dict[str, float]]:
    return [
        {"samples_seen": 100.0 * number, "loss": loss, "held_out_loss": of_others}
        for number, (loss, of_others) in enumerate(pairs, 1)
    ]


def test_learning_by_heart_rings() -> None:
    """The loss falls on, and that of what is held out rises by more than a tenth."""
    assert judge_held_out([]) == []
    assert judge_held_out(rows((1.0, 1.0), (0.5, 0.6), (0.4, 0.65))) == []
    (alarm,) = judge_held_out(rows((1.0, 1.0), (0.5, 0.6), (0.4, 0.7)))
    assert alarm.name == "held_out_loss_rises"
    assert "after 200 samples" in alarm.text
    assert "make more trajectories" in alarm.text
    assert judge_held_out(rows((0.4, 0.6), (0.5, 0.7))) == [], "both rise: another alarm's matter"
