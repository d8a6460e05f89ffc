"""The learning rate and the averaged weights, both by samples."""

import pytest
import torch

import tiny
from distillery.config.training import Training
from distillery.training.state import (
    ema_decay,
    learning_rate_at,
    make_moments,
    make_optimizer,
    update_ema,
)
from training_phases import phases


def training(**changes):
    return Training(**(tiny.TRAINING | changes))


def after_updates(settings, gradients):
    """A weight that begins at one, after an update by each gradient."""
    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = make_optimizer([weight], settings, torch.device("cpu"))
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    return weight.item()


def test_weights_decay_by_the_setting_without_a_gradient():
    settings = training(learning_rate=0.1, weight_decay=0.5)
    assert after_updates(settings, [0.0]) == pytest.approx(1 - 0.1 * 0.5)


def test_moments_that_are_made_before_the_first_update_change_nothing():
    settings = training(learning_rate=0.1, weight_decay=0.5)
    weights = [torch.nn.Parameter(torch.ones(())) for _ in range(2)]
    made, plain = (make_optimizer([weight], settings, torch.device("cpu")) for weight in weights)
    make_moments(made)
    assert weights[0].item() == 1
    assert weights[0].grad is None
    assert {name: value.item() for name, value in made.state[weights[0]].items()} == {
        "step": 0, "exp_avg": 0, "exp_avg_sq": 0,
    }  # fmt: skip
    for _ in range(2):
        for weight, optimizer in zip(weights, (made, plain), strict=True):
            weight.grad = torch.tensor(0.3)
            optimizer.step()
    assert weights[0].item() == weights[1].item()


@pytest.mark.parametrize("betas", [(0.5, 0.8), (0.5, 0.95), (0.9, 0.8)])
def test_an_update_is_remembered_by_the_momenta_of_the_setting(betas):
    """Without a second gradient b / (1 + b) is left of the first one's moments, bias corrected."""
    mean, square = (beta / (1 + beta) for beta in betas)
    settings = training(learning_rate=0.1, betas=betas)
    expected = 1 - 0.1 * (1 + mean / square**0.5)
    assert after_updates(settings, [1.0, 0.0]) == pytest.approx(expected)


def test_the_learning_rate_rises_linearly_then_falls_to_almost_nothing():
    settings = training(phases=phases(stored=800), warmup_samples=80, global_batch_size=8)
    rates = [learning_rate_at(seen, settings) for seen in range(0, 800, 8)]
    assert rates[0] > 0
    assert rates[1] / rates[0] == pytest.approx(3.0, rel=1e-2)
    assert max(rates) <= settings.learning_rate
    assert 0 < rates[-1] < 1e-3 * settings.learning_rate
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_a_constant_learning_rate_is_constant_after_the_rise():
    settings = training(schedule="constant", warmup_samples=16)
    assert learning_rate_at(16, settings) == settings.learning_rate
    assert learning_rate_at(56, settings) == settings.learning_rate
    assert learning_rate_at(0, settings) == pytest.approx(settings.learning_rate / 4)


@pytest.mark.parametrize("global_batch_size", [1, 8, 32])
def test_after_the_half_life_half_of_the_old_average_is_left(global_batch_size):
    settings = training(
        global_batch_size=global_batch_size,
        ema_half_life_samples=64,
        phases=phases(stored=64),
        log_every_samples=64,
        save_every_samples=64,
    )
    averages, parameters = [torch.ones(3)], [torch.zeros(3)]
    for _ in range(64 // global_batch_size):
        update_ema(averages, parameters, ema_decay(settings))
    torch.testing.assert_close(averages[0], torch.full((3,), 0.5))
