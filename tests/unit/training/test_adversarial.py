"""An adversarial finish: heads on frozen features, from stored trajectories alone."""

from collections.abc import Iterable
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from safetensors.torch import load_file

from distillery.config.training import Training
from distillery.noise import draw_noise
from distillery.training.batch import Batch, rows
from distillery.training.checkpoint import COMPANION, COMPANION_OPTIMIZER, find_problem
from distillery.training.execution import state_bytes
from distillery.training.loop import train
from distillery.training.run import Run as OpenedRun
from distillery.training.state import TrainingState, new_state
from distillery.training.update import end_of_last_step, predict
from distillery.training.ways import add_directions, adversarial, new_companion
from distillery.training.ways.adversarial import level_shares
from distillery.training.ways.drawing import add_noise_to, with_what_fits
from in_process import flip
from runs import CPU, Run
from training_phases import phases

STEPS = 2
WEIGHTS = "diffusion_pytorch_model.safetensors"
FINISH = {"samples": 16, "weight": 0.5, "learning_rate": 1e-3}
TRAINING = {
    "phases": phases(stored=16, adversarial=FINISH),
    "global_batch_size": 8, "learning_rate": 1e-3, "save_every_samples": 8,
    "log_every_samples": 8, "dtype": "float32", "tf32": False,
}  # fmt: skip
SECTIONS = {
    "targets": {"steps": 8, "num_segments": STEPS, "samples_per_prompt": 2},
    "student": {"steps": STEPS},
    "training": TRAINING,
}


def opened_with(run: Run, output: Path, **settings: Any) -> tuple[OpenedRun, Any]:
    return run.opened_with(output, TRAINING | settings)


def begun(run: Run, output: Path, **finish: Any) -> tuple[OpenedRun, TrainingState, Batch]:
    """A training at the first update of its finish, and that update's batch."""
    opened, paths = opened_with(run, output, phases=phases(stored=16, adversarial=FINISH | finish))
    state = new_state(paths.student, opened)
    state.companion = new_companion(paths.student, opened)
    state.samples_seen = 16
    items = next(opened.batches.positions(state.samples_seen))
    return opened, state, opened.dataset.__getitems__(items)


def last_rows(batch: Batch) -> list[int]:
    return [row for row, step in enumerate(batch.segment.tolist()) if step == STEPS - 1]


def test_true_images_are_the_clean_ends_of_the_items_own_trajectories(
    each: Run, tmp_path: Path
) -> None:
    """Where the last segment's target leads; not a state on the way."""
    opened, _, batch = begun(each, tmp_path)
    last = last_rows(batch)
    expected = end_of_last_step(batch.target[last], batch.noisy[last], opened)
    found = opened.dataset.clean_ends([batch.items[row] for row in last])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert opened.dataset.clean_ends([]).shape == (0, *found.shape[1:])


def test_other_prompts_are_never_the_items_own(scaled: Run, tmp_path: Path) -> None:
    opened, _, batch = begun(scaled, tmp_path)
    dataset: Any = opened.dataset
    for number in range(7):
        others = dataset.other_conditioning(batch.items, [number] * 8)
        for name, value in batch.conditioning.items():
            assert value.shape == others[name].shape
        same = [
            all(
                value[row].equal(others[name][row])
                for name, value in batch.conditioning.items()
                if value.is_floating_point()
            )
            for row in range(8)
        ]
        assert not any(same)


def test_the_direction_is_the_gradient_of_passing_for_true(each: Run, tmp_path: Path) -> None:
    opened, state, batch = begun(each, tmp_path)
    assert state.companion is not None
    heads = state.companion.network
    for parameter in state.companion.trainable.values():
        torch.nn.init.normal_(parameter, std=0.3)
    before = {name: value.clone() for name, value in state.companion.trainable.items()}
    found = add_directions(batch, state, 3, opened).direction
    assert found is not None
    last = last_rows(batch)
    assert last
    others = [row for row in range(8) if row not in last]
    assert not found[others].any()
    assert any(not value.equal(before[name]) for name, value in state.companion.trainable.items())
    for name, value in state.companion.trainable.items():
        value.data.copy_(before[name])
    shares = level_shares(opened)
    for row in last:
        one = rows(batch, [row])
        with torch.no_grad():
            drawn = end_of_last_step(predict(state.denoiser, one, opened), one.noisy, opened)
        drawn.requires_grad_(True)
        seeds = [
            adversarial.update_seed(opened, state.samples_seen, f"adversarial\n{item}")
            for item in one.items
        ]
        steps = [adversarial._pick(shares, seed >> 32) for seed in seeds]
        noised = add_noise_to(drawn, one, steps, seeds, opened).batch
        logits = torch.stack(
            [values.mean() for values in map(F.softplus, _negative(heads(noised, opened)))]
        )
        (gradient,) = torch.autograd.grad(logits.mean(), drawn)
        expected = 0.5 * drawn.numel() * gradient
        assert float(expected.abs().max()) > 1e-4
        torch.testing.assert_close(found[[row]], expected, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize(("kind", "smoothness"), [("run", 0.0), ("scaled", 1000.0)])
def test_heads_learn_from_four_kinds_of_images(
    kind: str, smoothness: float, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The gradient of their loss written out: what is drawn and true images under the prompts of
    others are false, true ones are true, and a little noise should change nothing; all with the
    same noise."""
    opened, state, batch = begun(request.getfixturevalue(kind), tmp_path, smoothness=smoothness)
    assert state.companion is not None
    heads, learned = state.companion.network, state.companion.trainable
    for parameter in learned.values():
        torch.nn.init.normal_(parameter, std=0.3)
    batch = rows(batch, [*last_rows(batch)[1:], *set(range(8)) - set(last_rows(batch))])
    before = {name: value.clone() for name, value in learned.items()}
    found: dict[str, torch.Tensor] = {}

    def keep(*_: Any) -> None:
        found.update({name: value.grad.clone() for name, value in learned.items()})  # type: ignore[union-attr]

    state.companion.optimizer.register_step_pre_hook(keep)
    add_directions(batch, state, 3, opened)
    for name, value in learned.items():
        value.data.copy_(before[name])
    last, told, loss = last_rows(batch), 0.0, torch.zeros(())
    assert last
    for row in last:
        one = rows(batch, [row])
        (seed,) = seeds = [
            adversarial.update_seed(opened, state.samples_seen, f"adversarial\n{one.items[0]}")
        ]
        step = adversarial._pick(level_shares(opened), seed >> 32)
        jitter = adversarial.update_seed(opened, state.samples_seen, f"jitter\n{seed}")
        grid, shape = opened.dataset.usual.teacher_grid, opened.dataset.recipe.latent_shape
        alpha, sigma = grid.alphas[step], grid.sigmas[step]
        noise, moved = (draw_noise([number], shape) for number in (seed, jitter))
        with torch.no_grad():
            drawn = end_of_last_step(predict(state.denoiser, one, opened), one.noisy, opened)
        true = alpha * end_of_last_step(one.target, one.noisy, opened) + sigma * noise
        others = opened.dataset.other_conditioning(one.items, seeds)

        here = replace(one, timestep=torch.tensor([grid.timesteps[step]]))
        kinds = (
            replace(here, noisy=true),
            replace(here, noisy=alpha * drawn + sigma * noise),
            replace(here, noisy=true, conditioning=others),
            replace(here, noisy=true + 0.05 * moved),
        )
        real, fake, misled, near = (heads(each, opened) for each in kinds)
        real_loss = of_heads(F.softplus(-logits) for logits in real)
        loss_one = real_loss + of_heads(F.softplus(logits) for logits in (*fake, *misled))
        told += loss_one.item()
        changes = (one - beside for one, beside in zip(real, near, strict=True))
        loss = loss + loss_one + smoothness * of_heads(change.square() for change in changes)
    (loss / (8 / STEPS)).backward()  # type: ignore[no-untyped-call]
    for name, value in learned.items():
        near = 2e-3 * float(value.grad.abs().max())  # type: ignore[union-attr]
        torch.testing.assert_close(found[name], value.grad, rtol=1e-2, atol=near)
    assert state.companion.losses.tolist() == pytest.approx([told, len(last)], rel=1e-2)


def of_heads(values: Iterable[torch.Tensor]) -> torch.Tensor:
    """Each head counts alike, whatever the number of its tokens."""
    return torch.stack([value.mean() for value in values]).mean()


def _negative(values: list[torch.Tensor]) -> list[torch.Tensor]:
    return [-value for value in values]


def test_heads_learn_to_tell_images_apart_and_the_network_stays(run: Run, tmp_path: Path) -> None:
    """True ones of one colour, which the student does not draw."""
    opened, state, batch = begun(run, tmp_path, learning_rate=1e-2, smoothness=0.0)
    assert state.companion is not None
    dataset: Any = opened.dataset
    shape = dataset.recipe.latent_shape
    dataset.clean_ends = lambda items: torch.full((len(items), *shape), 3.0)
    frozen = {
        name: value.clone()
        for name, value in state.companion.network.seen.frozen.named_parameters()
    }
    losses = []
    for _ in range(40):
        add_directions(batch, state, 8, opened)
        total, count = state.companion.losses.tolist()
        assert count == len(last_rows(batch))
        losses.append(total / count)
    assert losses[0] == pytest.approx(2 * log(2), rel=0.3)
    assert losses[-1] < 0.8 * losses[0]
    for name, value in state.companion.network.seen.frozen.named_parameters():
        assert value.equal(frozen[name])
        assert value.grad is None
    assert all(value.grad is None for value in state.denoiser.parameters())


def test_while_the_heads_warm_up_the_student_is_spared(run: Run, tmp_path: Path) -> None:
    opened, state, batch = begun(run, tmp_path, warmup_samples=8)
    found = add_directions(batch, state, 8, opened)
    assert found.direction is not None
    assert not found.direction.any()
    state.samples_seen += 8
    found = add_directions(batch, state, 8, opened)
    assert found.direction is not None
    assert found.direction.any()


def test_levels_are_logit_normal_as_far_as_the_steps_allow(each: Run, tmp_path: Path) -> None:
    opened, _, _ = begun(each, tmp_path)
    shares = level_shares(opened)
    assert sum(shares.values()) == pytest.approx(1)
    grid, own = opened.dataset.usual.teacher_grid, {}
    u = [sigma / (alpha + sigma) for alpha, sigma in zip(grid.alphas, grid.sigmas, strict=True)]
    for step in shares:
        logit = log(u[step] / (1 - u[step]))
        own[step] = exp(-(logit**2) / 2) / (u[step] * (1 - u[step])) * (u[step - 1] - u[step + 1])
    assert shares == pytest.approx({step: it / sum(own.values()) for step, it in own.items()})
    assert 0 not in shares, "noise alone tells nothing"
    counts = dict.fromkeys(shares, 0)
    for seed in range(0, 2**31, 2**31 // 1000):
        counts[adversarial._pick(shares, seed)] += 1
    for step, share in shares.items():
        assert counts[step] / sum(counts.values()) == pytest.approx(share, abs=0.005)


def learn(run: Run, output: Path, **settings: Any) -> tuple[dict[str, Any], pd.DataFrame]:
    return run.learn(output, TRAINING | settings)


def test_it_changes_the_student_takes_up_a_stored_training_and_resumes(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    whole, losses = learn(run, tmp_path / "whole")
    last = losses.iloc[-1]
    assert f"32 samples, loss {last.loss:.5f}, of the heads {last.loss_heads:.4f}, " in caplog.text
    assert "of the heads" not in caplog.text.split("16 samples, loss")[1].splitlines()[0]
    assert losses["loss_heads"].isna().tolist() == [True, True, False, False]
    learn(run, tmp_path / "parts", phases=phases(stored=16))
    found, _ = learn(run, tmp_path / "parts")
    torch.testing.assert_close(found, whole, rtol=0, atol=0)

    opened, paths = opened_with(run, tmp_path / "stopped")
    opened.stop.signal = 15
    assert not train(opened, paths)  # after one update
    opened, paths = opened_with(run, tmp_path / "stopped")
    assert train(opened, paths)
    torch.testing.assert_close(load_file(paths.trained / WEIGHTS), whole, rtol=0, atol=0)
    pd.testing.assert_frame_equal(pd.read_parquet(paths.losses), losses)

    hardly = phases(stored=16, adversarial=FINISH | {"weight": 1e-6})
    weak, _ = learn(run, tmp_path / "weak", phases=hardly)
    assert any(not weak[name].equal(whole[name]) for name in whole)


def test_a_damaged_companion_is_noticed(run: Run, tmp_path: Path) -> None:
    opened, paths = opened_with(run, tmp_path)
    opened.stop.signal = 15
    assert not train(opened, paths)
    (checkpoint,) = opened.checkpoints.glob("samples-*")
    for file in (COMPANION, COMPANION_OPTIMIZER):
        assert find_problem(checkpoint) is None
        whole = (checkpoint / file).read_bytes()
        flip(checkpoint / file)
        assert find_problem(checkpoint) == f"{file} is damaged"
        (checkpoint / file).write_bytes(whole)


def test_rollouts_behind_it_pass_too(run: Run, tmp_path: Path) -> None:
    _, losses = learn(run, tmp_path, phases=phases(stored=16, adversarial=FINISH, rollouts=8))
    assert losses["loss_heads"].notna().tolist() == [False, False, True, True, True]


def test_what_does_not_fit_at_once_is_done_in_halves() -> None:
    tried = []

    def work(size: int) -> str:
        tried.append(size)
        if size > 2:
            raise torch.OutOfMemoryError
        return "done"

    assert with_what_fits(work, 7, CPU) == "done"
    assert tried == [7, 4, 2]
    with pytest.raises(torch.OutOfMemoryError):
        with_what_fits(lambda _: (_ for _ in ()).throw(torch.OutOfMemoryError()), 2, CPU)


def test_the_frozen_network_takes_memory() -> None:
    plain = Training(**TRAINING | {"phases": phases(stored=32)})
    assert state_bytes(plain, 100, 100) == 1600
    assert state_bytes(Training(**TRAINING), 100, 100) == 2000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"phases": phases(online=16, adversarial=16)}, "online or adversarial"),
        ({"objective": "direct"}, "use objective: segment"),
        ({"global_batch_size": 1}, "heads that see one image an update"),
        ({"phases": phases(stored=8, adversarial=12)}, r"phases\.1\.samples is 12, .* of 8"),
        (
            {"phases": phases(adversarial={"samples": 16, "warmup_samples": 16})},
            "would never learn from it",
        ),
        ({"phases": phases(adversarial={"samples": 16, "warmup_samples": 9})}, "use 8 or fewer"),
        ({"timestep_weights": (1.0, 0.0)}, "it acts where the last segment ends"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Training(**TRAINING | settings)


def test_recipes_without_it_are_those_of_before(run: Run, tmp_path: Path) -> None:
    opened, _ = opened_with(run, tmp_path, phases=phases(stored=32))
    assert not {"adversarial", "distribution_matching"} & opened.recipe.training.keys()
