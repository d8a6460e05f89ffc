"""Distribution matching: which way the student's images are drawn, and what learns beside it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from distillery.config.jobs import TrainingJob
from distillery.config.training import Training
from distillery.config.ways import DistributionMatching, Online
from distillery.noise import draw_noise
from distillery.schedule import add_noise, as_prediction, from_prediction
from distillery.store.tables import read_table
from distillery.training.batch import Batch, rows
from distillery.training.execution import state_bytes
from distillery.training.loop import train
from distillery.training.run import Run as OpenedRun
from distillery.training.run import training_recipe
from distillery.training.state import Companion, TrainingState, new_state
from distillery.training.update import (
    backward,
    end_of_last_step,
    predict,
    roll_out_student,
)
from distillery.training.ways import add_directions, drawing, matching, new_companion, way_at
from own_wan import OwnWan
from runs import Run, make_run
from training_phases import phases

STEPS = 2
WEIGHTS = "diffusion_pytorch_model.safetensors"
EULER_FLOW = {"class": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}
MATCHING = {"weight": 0.5, "learning_rate": 1e-3, "updates": 2}
TRAINING = {
    "phases": phases(online={"samples": 32, "distribution_matching": MATCHING}),
    "global_batch_size": 8, "learning_rate": 1e-3,
    "save_every_samples": 8, "log_every_samples": 8, "dtype": "float32", "tf32": False,
}  # fmt: skip
WITHOUT = phases(online=32)
OF_WAN = {"scheduler": EULER_FLOW}
# A teacher of first order without guidance, which is what its student is before it learns.
SECTIONS = {
    "targets": {"steps": 8, "num_segments": STEPS, "guidance_scale": 1.0},
    "student": {"steps": STEPS},
    "training": TRAINING,
}


def opened_with(run: Run, output: Path, **settings: Any) -> tuple[OpenedRun, Any]:
    return run.opened_with(output, TRAINING | settings, targets=run.files.targets)


def begun(run: Run, output: Path, **settings: Any) -> tuple[OpenedRun, TrainingState, Batch]:
    """A training before its first update, and that update's batch with its targets."""
    opened, paths = opened_with(run, output, **settings)
    state = new_state(paths.student, opened)
    state.companion = new_companion(paths.student, opened)
    items = next(opened.batches.positions(0))
    batch = way_at(0, opened.training).complete(
        opened.dataset.__getitems__(items), state, 8, opened
    )
    return opened, state, batch


def test_the_teacher_sees_what_its_next_step_is_made_of(each: Run, tmp_path: Path) -> None:
    of_first_order = phases(online={"samples": 32, "steps": 4, "distribution_matching": MATCHING})
    opened, _, _ = begun(each, tmp_path, phases=of_first_order)  # all its steps, of first order
    dataset: Any = opened.dataset
    grid, prompts = dataset.usual.teacher_grid, [0, 1, 2]
    clean = torch.randn(3, *dataset.recipe.latent_shape)
    noise = torch.randn_like(clean)
    for segment in range(STEPS):
        states = grid.alphas[4 * segment] * clean + grid.sigmas[4 * segment] * noise
        walked = states
        for step in range(4 * segment, 4 * segment + 4):
            seen = dataset.teachers_view(walked, [step] * 3, [0, STEPS, 2 * STEPS])
            left = (walked - grid.alphas[step] * seen) / grid.sigmas[step]
            walked = grid.alphas[step + 1] * seen + grid.sigmas[step + 1] * left
        expected = (
            dataset.teacher.advance(states * grid.scales[4 * segment], [segment] * 3, prompts)
            / (grid.scales[4 * segment + 4])
        )
        torch.testing.assert_close(walked, expected, rtol=1e-3, atol=1e-3)


def test_the_teacher_sees_with_guidance(teacher: Path, tmp_path: Path) -> None:
    """A flow network, written out: the clean end of a straight line along the guided velocity."""
    made = make_run(
        tmp_path,
        teacher,
        teacher={"scheduler": EULER_FLOW, "dtype": "float32"},
        targets={"steps": 8, "num_segments": STEPS, "guidance_scale": 3.0},
        student={"steps": STEPS},
        training=TRAINING,
    )
    opened, _, _ = begun(made.ready_to_train(), tmp_path / "training")
    dataset: Any = opened.dataset
    stock = OwnWan(teacher, list(read_table(made.prompts("train"))["prompt"]), "the house")
    states = torch.randn(3, *dataset.recipe.latent_shape, generator=torch.manual_seed(1))
    for step in (1, 4, 7):
        sigma = stock.sigmas(8)[step]
        expected = states - sigma * stock.velocity(states, sigma, [0, 1, 2], scale=3.0)
        found = dataset.teachers_view(states, [step] * 3, [0, STEPS, 2 * STEPS])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_copy_that_knows_what_the_teacher_knows_gives_no_direction(
    scaled: Run, tmp_path: Path
) -> None:
    opened, state, batch = begun(scaled, tmp_path)
    opened = replace(opened, training=opened.training.model_copy(update={"tf32": False}))
    found = add_directions(batch, state, 3, opened)
    assert found.direction is not None
    assert float(found.direction.abs().max()) < 1e-2
    assert state.companion is not None
    for parameter in state.companion.trainable.values():  # it has learned by now; make it a bad one
        parameter.data.mul_(0.5)
    found = add_directions(batch, state, 3, opened)
    assert found.direction is not None
    assert float(found.direction.abs().max()) > 0.05


def test_it_acts_on_the_last_step_alone_by_the_difference_of_what_both_see(
    each: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, state, batch = begun(each, tmp_path)
    dataset: Any = opened.dataset
    assert state.companion is not None
    for parameter in state.companion.trainable.values():
        parameter.data.mul_(0.9)
    calls: list[drawing.Noised] = []
    noised = drawing.add_noise_to
    monkeypatch.setattr(
        matching, "add_noise_to", lambda *inputs: calls.append(noised(*inputs)) or calls[-1]
    )
    before = {name: value.clone() for name, value in state.companion.trainable.items()}
    found = add_directions(batch, state, 8, opened)
    assert found.direction is not None
    last = [row for row, step in enumerate(batch.segment.tolist()) if step == STEPS - 1]
    assert float(state.companion.losses[1]) == len(last), "the history's mean is over these"
    others = [row for row in range(8) if row not in last]
    assert last
    assert others
    assert not found.direction[others].any()
    assert [len(call.steps) for call in calls] == [len(last)] * 3, "one direction, two updates"
    assert not calls[0].noise.equal(calls[1].noise)
    assert not calls[1].noise.equal(calls[2].noise)
    assert all(0 < step < 8 for call in calls for step in call.steps)

    first = calls[0]
    with torch.no_grad():
        for row, place in enumerate(last):
            drawn = end_of_last_step(
                predict(state.denoiser, _one(batch, place), opened), batch.noisy[[place]], opened
            )
            here = _one(first.batch, row)
            expected = add_noise(drawn, first.noise[[row]], first.alpha[row], first.sigma[row])
            torch.testing.assert_close(here.noisy, expected, rtol=1e-4, atol=1e-4)
            seen = dataset.teachers_view(here.noisy, [first.steps[row]], here.items)
            learned = dict(state.companion.trainable)
            now = {name: value.clone() for name, value in learned.items()}
            for name, value in learned.items():
                value.copy_(before[name])
            output = predict(state.companion.network, here, opened)
            for name, value in learned.items():
                value.copy_(now[name])
            kind = dataset.recipe.prediction_type
            level = (first.alpha[row], first.sigma[row])
            copied = from_prediction(kind, output, here.noisy, *level)[0]
            direction = 0.5 * (copied - seen) / (drawn - seen).abs().mean()
            torch.testing.assert_close(found.direction[[place]], direction, rtol=2e-3, atol=2e-3)


def _one(batch: Batch, row: int) -> Batch:
    return rows(batch, [row])


def test_the_gradient_in_what_is_drawn_is_the_direction(each: Run, tmp_path: Path) -> None:
    opened, state, batch = begun(each, tmp_path)
    direction = torch.zeros_like(batch.noisy)
    last = batch.segment == STEPS - 1
    direction[last] = torch.randn_like(direction[last])

    def gradients(of: Batch) -> list[torch.Tensor]:
        state.denoiser.zero_grad()
        found = backward(state.denoiser, of, losses, opened)
        assert found.equal(plain) if of is not batch else True
        return [value.grad.clone() for value in state.trainable.values() if value.grad is not None]

    losses = way_at(0, opened.training).losses
    plain = backward(state.denoiser, batch, losses, opened)
    without, together = gradients(batch), gradients(replace(batch, direction=direction))
    state.denoiser.zero_grad()
    drawn = end_of_last_step(predict(state.denoiser, batch, opened), batch.noisy, opened)
    ((drawn[last] * direction[last]).flatten(1).mean(1).sum() / 8).backward()
    alone = [value.grad for value in state.trainable.values() if value.grad is not None]
    for one, both, added in zip(without, together, alone, strict=True):
        torch.testing.assert_close(both - one, added, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("kind", "is_rollout"), [("scaled", False), ("run", True)])
def test_the_copy_learns_by_a_clipped_mean_over_what_is_drawn(
    kind: str, is_rollout: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Its denoising loss written out; the mean is over what all processes draw of a whole batch on
    average, which are all rollouts and one in two of other samples, whatever this one has drawn."""
    run: Run = request.getfixturevalue(kind)
    gradients: list[torch.Tensor] = []
    for limit in (1e6, 0.01):
        matched = {"samples": 32, "distribution_matching": MATCHING}
        settings = {"phases": phases(online=matched, rollouts=8), "max_grad_norm": limit}
        opened, state, batch = begun(run, tmp_path / f"{limit}", **settings)
        assert state.companion is not None
        copy, learned = state.companion.network, state.companion.trainable
        for parameter in learned.values():
            parameter.data.mul_(0.9)
        if is_rollout:
            first = opened.dataset.first_rollout
            batch = opened.dataset.__getitems__(list(range(first, first + 8)))
        batch = rows(batch, range(5))
        keep_gradients(state.companion, gradients)
        before = {name: value.clone() for name, value in learned.items()}
        add_directions(batch, state, 3, opened)
    whole, clipped = gradients[0], gradients[2]
    for name, value in learned.items():
        value.data.copy_(before[name])
    drawn = [
        row for row, step in enumerate(batch.segment.tolist()) if is_rollout or step == STEPS - 1
    ]
    grid, kind = opened.dataset.usual.teacher_grid, opened.dataset.recipe.prediction_type
    copy.zero_grad()
    for row in drawn:
        one = _one(batch, row)
        with torch.no_grad():
            end = roll_out_student if is_rollout else predict
            clean = end(state.denoiser, one, opened)
            clean = clean if is_rollout else end_of_last_step(clean, one.noisy, opened)
        seed = drawing.update_seed(opened, 0, f"copy 0\n{one.items[0]}")
        step = range(1, 8)[(seed >> 32) % 7]
        alpha, sigma = (torch.tensor(values[step]) for values in (grid.alphas, grid.sigmas))
        noise = draw_noise([seed], opened.dataset.recipe.latent_shape)
        here = replace(
            one,
            noisy=alpha * clean + sigma * noise,
            timestep=torch.tensor([grid.timesteps[step]]),
        )
        target = as_prediction(kind, clean, noise, alpha, sigma)
        error = (predict(copy, here, opened) - target).square().mean()
        (error / (8 if is_rollout else 8 / STEPS)).backward()
    assert len(drawn) not in (0, 8 / STEPS, 8)
    expected = torch.cat([value.grad.flatten() for value in learned.values()])  # type: ignore[union-attr]
    torch.testing.assert_close(whole, expected, rtol=1e-2, atol=1e-3 * float(expected.abs().max()))
    assert float(whole.norm()) > 0.02
    torch.testing.assert_close(clipped, whole * 0.01 / whole.norm(), rtol=1e-2, atol=1e-5)


def keep_gradients(companion: Companion, kept: list[torch.Tensor]) -> None:
    """Of each update, as the optimizer gets them."""

    def keep(*_: object) -> None:
        values = companion.trainable.values()
        kept.append(torch.cat([value.grad.flatten() for value in values]))  # type: ignore[union-attr]

    companion.optimizer.register_step_pre_hook(keep)


def learn(run: Run, output: Path, **settings: Any) -> tuple[dict[str, Any], pd.DataFrame]:
    return run.learn(output, TRAINING | settings, targets=run.files.targets)


def test_a_resumed_training_has_its_copy(run: Run, tmp_path: Path) -> None:
    whole, losses = learn(run, tmp_path / "whole")
    assert (losses["loss_copy"] > 0).all()
    plain, plain_losses = learn(run, tmp_path / "plain", phases=WITHOUT)
    assert "loss_copy" not in plain_losses
    assert any(not whole[name].equal(plain[name]) for name in whole)
    opened, paths = opened_with(run, tmp_path / "parts")
    opened.stop.signal = 15  # stops after an update
    assert not train(opened, paths)
    opened, paths = opened_with(run, tmp_path / "parts")
    assert train(opened, paths)
    torch.testing.assert_close(load_file(paths.trained / WEIGHTS), whole, rtol=0, atol=0)
    pd.testing.assert_frame_equal(pd.read_parquet(paths.losses), losses)


def test_a_finish_takes_up_a_stored_training_and_begins_a_copy(run: Run, tmp_path: Path) -> None:
    matched = phases(stored=16, online={"samples": 16, "distribution_matching": MATCHING})
    finish: dict[str, Any] = {"phases": matched, "ema_half_life_samples": 16}
    expected, losses = learn(run, tmp_path / "whole", **finish)
    assert losses["loss_copy"].isna().tolist() == [True, True, False, False]
    stored = {"phases": phases(stored=16)}
    learn(run, tmp_path / "parts", **finish | stored)
    found, _ = learn(run, tmp_path / "parts", **finish)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_rollouts_are_drawn_too(run: Run, tmp_path: Path) -> None:
    matched = {"samples": 16, "distribution_matching": MATCHING}
    found, losses = learn(run, tmp_path / "with", phases=phases(online=matched, rollouts=16))
    assert (losses["loss_copy"] > 0).all()
    plain, _ = learn(run, tmp_path / "without", phases=phases(online=16, rollouts=16))
    assert any(not found[name].equal(plain[name]) for name in found)


def test_recipes_without_it_are_those_of_before(run: Run, tmp_path: Path) -> None:
    opened, _ = opened_with(run, tmp_path, phases=WITHOUT)
    assert "distribution_matching" not in opened.recipe.training
    job = run.job("training", TrainingJob)
    with_it = training_recipe(job, opened.dataset, "x")
    assert with_it.training["distribution_matching"]["updates"] == 2


def test_the_copy_takes_memory_but_has_no_average() -> None:
    plain = Training(phases=phases(online=8), global_batch_size=8, dtype="float32")
    online = Online(samples=8, distribution_matching=DistributionMatching())
    with_copy = plain.model_copy(update={"phases": (online,)})
    assert state_bytes(plain, 100, 100) == 1600
    assert state_bytes(with_copy, 100, 100) == 3200
    averaged = with_copy.model_copy(update={"ema_half_life_samples": 8})
    assert state_bytes(averaged, 100, 10) == 2 * 90 * 4 + 10 * (2 * 16 + 4)


def test_it_needs_a_last_segment_that_counts() -> None:
    settings: dict[str, Any] = {
        "phases": phases(online={"samples": 8, "distribution_matching": {"weight": 1.0}}),
        "global_batch_size": 8, "timestep_weights": (1.0, 0.0),
    }  # fmt: skip
    with pytest.raises(ValidationError, match="it acts where the last segment ends"):
        Training(**settings)
    Training(**settings | {"timestep_weights": (0.0, 1.0)})
