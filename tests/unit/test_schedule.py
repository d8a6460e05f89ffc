"""The noise convention: secants land on the next state, predictions and their inverse agree."""

from typing import get_args

import pytest
import torch

from distillery.schedule import PredictionType, add_noise, as_prediction, from_prediction, secant

TYPES: tuple[PredictionType, ...] = get_args(PredictionType)
FLOW, PRESERVING = "flow", "variance preserving"


def levels(kind: str, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """(alpha_j, sigma_j, alpha_k, sigma_k) of 5 samples, the first noisier; float64."""
    high = torch.rand(5, 1, 1, 1, generator=generator, dtype=torch.float64) * 0.4 + 0.55
    low = torch.rand(5, 1, 1, 1, generator=generator, dtype=torch.float64) * 0.4 + 0.05
    if kind == FLOW:
        return 1 - high, high, 1 - low, low
    return (1 - high**2).sqrt(), high, (1 - low**2).sqrt(), low


def states(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    noisy_j, noisy_k = torch.randn(2, 5, 3, 2, 2, generator=generator, dtype=torch.float64)
    return noisy_j, noisy_k


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", [FLOW, PRESERVING])
@pytest.mark.parametrize("prediction_type", TYPES)
def test_one_first_order_step_with_the_secant_lands_on_the_next_state(
    prediction_type: PredictionType, kind: str, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    alpha_j, sigma_j, alpha_k, sigma_k = levels(kind, generator)
    noisy_j, noisy_k = states(generator)
    clean, noise = secant(noisy_j, noisy_k, alpha_j, sigma_j, alpha_k, sigma_k)
    target = as_prediction(prediction_type, clean, noise, alpha_j, sigma_j)
    # What a sampler does: prediction to (clean, noise) at j, then the same pair at k.
    found = from_prediction(prediction_type, target, noisy_j, alpha_j, sigma_j)
    torch.testing.assert_close(add_noise(*found, alpha_k, sigma_k), noisy_k)
    torch.testing.assert_close(add_noise(*found, alpha_j, sigma_j), noisy_j)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", [FLOW, PRESERVING])
@pytest.mark.parametrize("prediction_type", TYPES)
def test_prediction_and_its_inverse(prediction_type: PredictionType, kind: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    alpha, sigma, _, _ = levels(kind, generator)
    clean, noise = states(generator)
    noisy = add_noise(clean, noise, alpha, sigma)
    prediction = as_prediction(prediction_type, clean, noise, alpha, sigma)
    found_clean, found_noise = from_prediction(prediction_type, prediction, noisy, alpha, sigma)
    torch.testing.assert_close(found_clean, clean)
    torch.testing.assert_close(found_noise, noise)


@pytest.mark.parametrize("kind", [FLOW, PRESERVING])
def test_the_secant_of_a_straight_path_is_its_clean_and_noise(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    alpha_j, sigma_j, alpha_k, sigma_k = levels(kind, generator)
    clean, noise = states(generator)
    found = secant(
        add_noise(clean, noise, alpha_j, sigma_j),
        add_noise(clean, noise, alpha_k, sigma_k),
        alpha_j, sigma_j, alpha_k, sigma_k,
    )  # fmt: skip
    torch.testing.assert_close(found[0], clean)
    torch.testing.assert_close(found[1], noise)


def test_the_flow_of_a_secant_is_the_slope_between_the_states() -> None:
    generator = torch.Generator().manual_seed(0)
    alpha_j, sigma_j, alpha_k, sigma_k = levels(FLOW, generator)
    noisy_j, noisy_k = states(generator)
    clean, noise = secant(noisy_j, noisy_k, alpha_j, sigma_j, alpha_k, sigma_k)
    slope = (noisy_j - noisy_k) / (sigma_j - sigma_k)
    torch.testing.assert_close(
        as_prediction("flow_prediction", clean, noise, alpha_j, sigma_j), slope
    )


def test_words_of_the_literature() -> None:
    clean, noise, alpha, sigma = (torch.tensor(value) for value in (2.0, 5.0, 0.6, 0.8))
    expected = {"epsilon": 5.0, "v_prediction": 0.6 * 5 - 0.8 * 2, "flow_prediction": 3.0}
    for name, value in {**expected, "sample": 2.0}.items():
        found = as_prediction(name, clean, noise, alpha, sigma)  # type: ignore[arg-type]
        assert found.item() == pytest.approx(value)


def test_two_states_of_one_noise_level_have_no_secant() -> None:
    one, half = torch.ones(1), torch.full((1,), 0.5)
    with pytest.raises(ValueError, match="different noise level"):
        secant(one, one, half, half, half, half)
