"""An adversarial finish at every knot, with a hinge, with tokens that count by distance."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from distillery.config.ways import Adversarial
from distillery.training.batch import Batch, rows
from distillery.training.loop import train
from distillery.training.run import Run as OpenedRun
from distillery.training.state import TrainingState, new_state
from distillery.training.update import end_of_step, predict
from distillery.training.ways import add_directions, adversarial, new_companion
from distillery.training.ways.adversarial import as_false, as_true, passing, token_weights
from distillery.training.ways.drawing import add_noise_to, update_seed
from runs import Run
from training_phases import phases

STEPS = 4
FINISH: dict[str, Any] = {
    "samples": 16,
    "weight": 0.5,
    "at": "knots",
    "loss": "hinge",
    "weigh_tokens": True,
}
TRAINING: dict[str, Any] = {
    "phases": phases(stored=8, adversarial=FINISH), "global_batch_size": 8, "dtype": "float32",
    "learning_rate": 1e-3, "save_every_samples": 8, "log_every_samples": 8, "tf32": False,
}  # fmt: skip
SECTIONS: dict[str, Any] = {
    "targets": {"steps": 8, "num_segments": STEPS, "samples_per_prompt": 2},
    "student": {"steps": STEPS},
    "training": TRAINING,
}


def begun(run: Run, output: Path) -> tuple[OpenedRun, TrainingState, Batch]:
    """A training at the first update of its finish, with heads that know the knots apart."""
    opened, paths = run.opened_with(output, TRAINING)
    state = new_state(paths.student, opened)
    state.companion = new_companion(paths.student, opened)
    assert state.companion is not None
    for parameter in state.companion.trainable.values():
        torch.nn.init.normal_(parameter, std=0.3)
    state.samples_seen = 8
    return opened, state, opened.dataset.__getitems__(next(opened.batches.positions(8)))


def test_a_step_of_the_target_ends_on_the_trajectorys_next_state(each: Run, tmp_path: Path) -> None:
    opened, _, batch = begun(each, tmp_path)
    found = end_of_step(batch.target, batch.noisy, batch.segment, opened)
    trajectories = [item // STEPS for item in batch.items]
    states = opened.dataset.states_at_knots(trajectories)
    expected = states[torch.arange(8), batch.segment + 1]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_the_direction_is_the_gradient_of_passing_at_each_knot(each: Run, tmp_path: Path) -> None:
    """Of states on the way with the noise that they have, of images with noise added once more."""
    opened, state, batch = begun(each, tmp_path)
    assert state.companion is not None
    heads, learned = state.companion.network, state.companion.trainable
    before = {name: value.clone() for name, value in learned.items()}
    found = add_directions(batch, state, 3, opened).direction
    assert found is not None
    assert len(set(batch.segment.tolist())) > 2
    for name, value in learned.items():
        value.data.copy_(before[name])
    grid = opened.dataset.usual.grid
    for row in range(8):
        one = rows(batch, [row])
        with torch.no_grad():
            drawn = end_of_step(
                predict(state.denoiser, one, opened), one.noisy, one.segment, opened
            )
        true = end_of_step(one.target, one.noisy, one.segment, opened)
        drawn.requires_grad_(True)
        step = int(one.segment)
        if step == STEPS - 1:
            (seed,) = seeds = [update_seed(opened, 8, f"adversarial\n{one.items[0]}")]
            steps = [adversarial._pick(adversarial.level_shares(opened), seed >> 32)]
            fake, real = (add_noise_to(it, one, steps, seeds, opened).batch for it in (drawn, true))
        else:
            timestep = torch.tensor([grid.timesteps[step + 1]])
            fake, real = (replace(one, noisy=it, timestep=timestep) for it in (drawn, true))
        features, wanted = heads.seen(fake, opened), heads.seen(real, opened)
        weights = token_weights(features, wanted)
        logits = heads.logits(features, one.segment)
        lost = [(-each * weight).mean() for each, weight in zip(logits, weights, strict=True)]
        (gradient,) = torch.autograd.grad(torch.stack(lost).mean(), drawn)
        expected = 0.5 * drawn.numel() * gradient
        assert float(expected.abs().max()) > 1e-4
        near = 2e-3 * float(expected.abs().max())
        torch.testing.assert_close(found[[row]], expected, rtol=2e-2, atol=near)


def test_heads_know_the_knots_apart(run: Run, tmp_path: Path) -> None:
    opened, state, batch = begun(run, tmp_path)
    assert state.companion is not None
    heads = state.companion.network
    assert len(heads.knots) == len(heads.heads)
    features = heads.seen(rows(batch, [0, 0]), opened)
    first, second = heads.logits(features, torch.tensor([0, 1]))[0]
    assert not torch.allclose(first, second)
    last, rollout = heads.logits(features, torch.tensor([STEPS - 1, STEPS]))[0]
    torch.testing.assert_close(last, rollout)


def test_the_gradient_reaches_every_step_of_the_student(run: Run, tmp_path: Path) -> None:
    """The loss's number is that of the targets; its gradient has the direction, at all knots."""
    opened, state, batch = begun(run, tmp_path)
    found = add_directions(batch, state, 8, opened)
    phase: Any = opened.training.phases[1]
    way = adversarial.AdversarialWay(phase)
    for row in range(8):
        one = rows(found, [row])
        assert one.direction is not None
        plain, directed = (
            way.losses(state.denoiser, it, opened) for it in (replace(one, direction=None), one)
        )
        torch.testing.assert_close(plain, directed)
        parameter = list(state.trainable.values())[-1]
        (without,) = torch.autograd.grad(plain.sum(), parameter)
        (with_it,) = torch.autograd.grad(directed.sum(), parameter)
        assert not torch.allclose(without, with_it)


def test_tokens_count_by_their_distance() -> None:
    drawn = [torch.tensor([[[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]]])]
    true = [torch.tensor([[[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]])]
    (found,) = token_weights(drawn, true)
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.0, 2.5]]))
    (equal,) = token_weights(true, true)
    assert not equal.any()


def test_a_hinge_stops_where_heads_are_sure_and_never_for_the_student() -> None:
    logits = torch.tensor([-2.0, 0.0, 0.5, 2.0])
    assert as_true(logits, "hinge").tolist() == [3.0, 1.0, 0.5, 0.0]
    assert as_false(logits, "hinge").tolist() == [0.0, 1.0, 1.5, 3.0]
    assert passing(logits, "hinge").tolist() == [2.0, 0.0, -0.5, -2.0]
    for each in (as_true, passing):
        assert each(logits, "softplus").tolist() == pytest.approx(
            [2.1269, 0.6931, 0.4741, 0.1269], abs=1e-4
        )


def test_it_trains_and_recipes_without_it_are_those_of_before(run: Run, tmp_path: Path) -> None:
    opened, paths = run.opened_with(tmp_path, TRAINING)
    assert train(opened, paths)
    assert pd.read_parquet(paths.losses)["loss_heads"].notna().tolist() == [False, True, True]
    assert Adversarial(samples=8).in_recipe(0)["adversarial"].keys() == {
        "samples", "weight", "learning_rate", "smoothness", "warmup_samples",
    }  # fmt: skip
    assert Adversarial(samples=8, at="knots").in_recipe(0)["adversarial"]["at"] == "knots"
