"""A drifting finish: what is drawn moves in frozen features, from stored trajectories alone."""

from math import exp
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from distillery.config.training import Training
from distillery.noise import draw_noise
from distillery.training.batch import Batch, rows
from distillery.training.batches import Batches
from distillery.training.distributed import RankInfo
from distillery.training.loop import train
from distillery.training.run import Run as OpenedRun
from distillery.training.state import TrainingState, new_state
from distillery.training.update import end_of_last_step, predict
from distillery.training.ways import add_directions, new_companion
from distillery.training.ways.drawing import update_seed
from distillery.training.ways.drifting import drift, drift_losses, noise_levels
from runs import Run
from training_phases import phases

STEPS, NOISES = 2, 4
WEIGHTS = "diffusion_pytorch_model.safetensors"
FINISH: dict[str, Any] = {
    "samples": 16,
    "weight": 0.5,
    "temperatures": (0.3, 1.0),
    "paired_weight": 0.25,
}
TRAINING: dict[str, Any] = {
    "phases": phases(stored=16, drifting=FINISH),
    "global_batch_size": 8, "learning_rate": 1e-3, "save_every_samples": 8,
    "log_every_samples": 8, "dtype": "float32", "tf32": False,
}  # fmt: skip
SECTIONS: dict[str, Any] = {
    "targets": {"steps": 8, "num_segments": STEPS, "samples_per_prompt": NOISES},
    "student": {"steps": STEPS},
    "training": TRAINING,
}


def test_where_the_student_draws_as_the_teacher_does_nothing_moves() -> None:
    true = torch.randn(2, 3, NOISES, 5)
    field, _ = drift(true, true, (0.05, 1.0), paired_weight=1.0)
    assert float(field.abs().max()) < 1e-5


def test_images_of_one_distribution_do_not_move_in_the_mean() -> None:
    """Whatever noise has which image: the student's may be paired otherwise than the teacher's."""
    generator = torch.Generator().manual_seed(0)
    drawn, true = torch.randn(2, 1, 20_000, NOISES, 2, generator=generator)
    field, _ = drift(drawn, true, (0.3,))
    outside = drawn[..., 0] > 1.0
    moved = field[..., 0][outside].mean() / field[..., 0][outside].std()
    assert abs(float(moved)) < 5 / float(outside.sum()) ** 0.5


def test_too_narrow_images_spread_and_shifted_ones_come_back() -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.randn(1, 4000, NOISES, 2, generator=generator)
    narrow, _ = drift(0.5 * true, true, (0.3,))
    assert float((narrow * true).sum(dim=-1).mean()) > 0.05
    shifted, _ = drift(true + torch.tensor([3.0, 0.0]), true, (0.3,))
    assert float(shifted[..., 0].mean()) < -0.5
    assert abs(float(shifted[..., 1].mean())) < 0.02


@pytest.mark.parametrize("paired_weight", [0.0, 0.5])
def test_the_field_is_the_difference_of_two_mean_shifts(paired_weight: float) -> None:
    """Written out for each image, without its own noise."""
    generator = torch.Generator().manual_seed(1)
    drawn, true = torch.randn(2, 2, 3, NOISES, 5, generator=generator).double()
    temperatures = (0.2, 0.7)
    found, unit = drift(drawn, true, temperatures, paired_weight)
    for prompt in range(2):
        apart = [
            float((true[prompt, place, i] - true[prompt, place, j]).norm())
            for place in range(3) for i in range(NOISES) for j in range(NOISES) if i != j
        ]  # fmt: skip
        scale = sum(apart) / len(apart)
        assert float(unit[prompt]) == pytest.approx(scale)
        for place in range(3):
            xs, ys = drawn[prompt, place], true[prompt, place]
            for i in range(NOISES):
                expected = paired_weight * (ys[i] - xs[i])
                for temperature in temperatures:
                    for sign, points in ((1, ys), (-1, xs)):
                        others = [points[j] for j in range(NOISES) if j != i]
                        kernel = [
                            exp(-float((xs[i] - it).norm()) / (temperature * scale))
                            for it in others
                        ]
                        shift = sum(k * (it - xs[i]) for k, it in zip(kernel, others, strict=True))
                        expected = expected + sign * shift / sum(kernel) / len(temperatures)
                torch.testing.assert_close(found[prompt, place, i], expected / scale)


def opened_with(run: Run, output: Path, **settings: Any) -> tuple[OpenedRun, Any]:
    return run.opened_with(output, TRAINING | settings)


def begun(run: Run, output: Path, **finish: Any) -> tuple[OpenedRun, TrainingState, Batch]:
    """A training at the first update of its finish that has last steps, and that update's batch."""
    opened, paths = opened_with(run, output, phases=phases(stored=16, drifting=FINISH | finish))
    state = new_state(paths.student, opened)
    state.companion = new_companion(paths.student, opened)
    state.samples_seen = 16
    for items in opened.batches.positions(state.samples_seen):
        batch = opened.dataset.__getitems__(items)
        if STEPS - 1 in batch.segment:
            return opened, state, batch
        state.samples_seen += 8
    raise AssertionError("the order has no last steps")


def test_the_direction_is_the_gradient_of_the_way_to_go(each: Run, tmp_path: Path) -> None:
    opened, state, batch = begun(each, tmp_path)
    found = add_directions(batch, state, 3, opened).direction  # less than a prompt at once
    assert found is not None
    last = [row for row, step in enumerate(batch.segment.tolist()) if step == STEPS - 1]
    assert not found[[row for row in range(8) if row not in last]].any()
    levels, recipe = noise_levels(0.5, opened), opened.dataset.recipe
    grid, settings = opened.dataset.usual.teacher_grid, state.companion.network  # type: ignore[union-attr]
    for start in range(0, len(last), NOISES):
        group = last[start : start + NOISES]
        part = rows(batch, group)
        (prompt,) = {opened.dataset.prompt_of(item) for item in part.items}
        seed = update_seed(opened, state.samples_seen, f"drifting\n{prompt}")
        step = levels[(seed >> 32) % len(levels)]
        noise = draw_noise([seed], recipe.latent_shape)
        with torch.no_grad():
            drawn = end_of_last_step(predict(state.denoiser, part, opened), part.noisy, opened)
        true = end_of_last_step(part.target, part.noisy, opened)
        drawn.requires_grad_(True)
        timestep = torch.full((NOISES,), grid.timesteps[step])
        noised = (grid.alphas[step] * it + grid.sigmas[step] * noise for it in (drawn, true))
        here, there = (
            settings(replaced(part, noisy=it, timestep=timestep), opened) for it in noised
        )
        phase = opened.training.phases[1]
        lost = [drift_losses(x, y, NOISES, phase) for x, y in zip(here, there, strict=True)]  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(torch.stack(lost).mean(dim=0).sum(), drawn)
        expected = 0.5 * drawn[0].numel() * gradient
        assert float(expected.abs().max()) > 1e-4
        near = 2e-3 * float(expected.abs().max())
        torch.testing.assert_close(found[group], expected, rtol=2e-2, atol=near)


def replaced(batch: Batch, **changes: Any) -> Batch:
    return Batch(**{**vars(batch), **changes})


def test_a_loss_is_the_square_of_the_way(run: Run, tmp_path: Path) -> None:
    """And its gradient leads there: two times the way, backwards."""
    opened, _ = opened_with(run, tmp_path)
    phase: Any = opened.training.phases[1]
    drawn = torch.randn(NOISES, 1, 5, requires_grad=True)
    true = torch.randn(NOISES, 1, 5)
    lost = drift_losses(drawn, true, NOISES, phase)
    here, there = (it.detach().transpose(0, 1)[None] for it in (drawn, true))
    way, unit = drift(here, there, phase.temperatures, phase.paired_weight)
    # One token is its own mean, and has no deviation.
    expected = way[0, 0].square().sum(dim=-1)
    statistics = torch.stack([here[0, 0], torch.full((NOISES, 5), 1e-3)])[None]
    goals = torch.stack([there[0, 0], torch.full((NOISES, 5), 1e-3)])[None]
    ways, _ = drift(statistics, goals, phase.temperatures, phase.paired_weight)
    expected = (expected + ways[0].square().sum(dim=-1).mean(dim=0)) / 2
    torch.testing.assert_close(lost, expected)
    only = drift_losses(drawn, true, NOISES, phase).sum()
    (gradient,) = torch.autograd.grad(only, drawn)
    along = -(gradient[:, 0] * way[0, 0]).sum() / (gradient.norm() * way.norm())
    assert float(along) > 0.9
    assert float(unit) > 0


def test_a_batch_has_all_noises_of_its_prompts(each: Run, tmp_path: Path) -> None:
    """Each step of each prompt once in an epoch, whole on each of two processes."""
    every = {"phases": phases(drifting=144), "held_out_prompts": 3}
    opened, _ = opened_with(each, tmp_path, **every)
    dataset, steps = opened.dataset, opened.dataset.steps
    learned = 6 * NOISES * steps
    seen = []
    for items in opened.batches.positions(0):
        for start in (0, NOISES):
            group = items[start : start + NOISES]
            assert len({(dataset.prompt_of(it), it % steps) for it in group}) == 1
            assert len(set(group)) == NOISES
        seen += items
    assert len(set(seen[:learned])) == learned
    assert len({dataset.prompt_of(item) for item in seen}) == 6
    halves = [
        Batches(dataset, opened.training, opened.batches.seed, RankInfo(rank=rank, world_size=2))
        for rank in (0, 1)
    ]
    parts = [list(it.positions(0)) for it in halves]
    joined = [left + right for left, right in zip(*parts, strict=True)]
    assert joined == list(opened.batches.positions(0))


def test_levels_are_those_of_little_noise(each: Run, tmp_path: Path) -> None:
    opened, _ = opened_with(each, tmp_path)
    grid = opened.dataset.usual.teacher_grid
    found = noise_levels(0.5, opened)
    assert found
    assert 0 not in found
    for step in range(1, 8):
        share = grid.sigmas[step] / (grid.alphas[step] + grid.sigmas[step])
        assert (step in found) == (share <= 0.5)
    assert noise_levels(1e-6, opened) == [7]


def learn(run: Run, output: Path, **settings: Any) -> tuple[dict[str, Any], pd.DataFrame]:
    opened, paths = opened_with(run, output, **settings)
    assert train(opened, paths)
    return load_file(paths.trained / WEIGHTS), pd.read_parquet(paths.losses)


def test_it_changes_the_student_takes_up_a_stored_training_and_resumes(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    whole, losses = learn(run, tmp_path / "whole")
    assert "of the drift " in caplog.text
    assert losses["loss_drift"].isna().tolist()[:2] == [True, True]
    assert losses["loss_drift"].notna().any()
    learn(run, tmp_path / "parts", phases=phases(stored=16))
    found, _ = learn(run, tmp_path / "parts")
    torch.testing.assert_close(found, whole, rtol=0, atol=0)

    opened, paths = opened_with(run, tmp_path / "stopped", phases=phases(drifting=FINISH))
    opened.stop.signal = 15
    assert not train(opened, paths)  # after one update
    opened, paths = opened_with(run, tmp_path / "stopped", phases=phases(drifting=FINISH))
    assert train(opened, paths)
    at_once, _ = learn(run, tmp_path / "at-once", phases=phases(drifting=FINISH))
    torch.testing.assert_close(load_file(paths.trained / WEIGHTS), at_once, rtol=0, atol=0)

    hardly = phases(stored=16, drifting=FINISH | {"weight": 1e-6})
    weak, _ = learn(run, tmp_path / "weak", phases=hardly)
    assert any(not weak[name].equal(whole[name]) for name in whole)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"phases": phases(adversarial=16, drifting=16)}, "adversarial or drifting"),
        ({"objective": "direct"}, "use objective: segment"),
        ({"phases": phases(drifting=16, rollouts=16)}, "do not have all noises of a prompt"),
        ({"phases": phases(drifting=FINISH | {"temperatures": ()})}, "at least 1 item"),
        ({"timestep_weights": (1.0, 0.0)}, "it acts where the last segment ends"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Training(**TRAINING | settings)


def test_prompts_that_batches_cannot_hold_whole_are_refused(run: Run, tmp_path: Path) -> None:
    opened, paths = opened_with(
        run, tmp_path, global_batch_size=6, phases=phases(drifting=12),
        save_every_samples=6, log_every_samples=6,
    )  # fmt: skip
    with pytest.raises(ValueError, match="use a multiple of 4"):
        new_companion(paths.student, opened)
