"""The one noise convention, schedules and secants: `noisy = alpha * clean + sigma * noise`.

Flow matching has alpha = 1 - sigma (Lipman et al. 2023, arXiv:2210.02747, eq. 22, t = 1 - sigma);
variance-preserving diffusion has alpha² + sigma² = 1 (Song et al. 2021, arXiv:2011.13456).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # recipes are read at each call of Snakemake, which shall not wait for it
    import torch

PredictionType = Literal["epsilon", "v_prediction", "sample", "flow_prediction"]
"""What a network predicts, in the words of the Diffusers schedulers."""


@dataclass(frozen=True)
class Schedule:
    """A scheduler's grid, as numbers.

    Attributes:
        timesteps: one per step, as the network gets them (int or float by the scheduler's type).
        alphas, sigmas: one a state, so one more than steps; the last state is clean (1, 0).
        scales: one a state. A scheduler's state is `scale * (alpha * clean + sigma * noise)`, and
            the network sees it divided by its scale. Only variance-exploding samplers (Euler on
            SDXL) have scales other than 1.
    """

    timesteps: tuple[int | float, ...]
    alphas: tuple[float, ...]
    sigmas: tuple[float, ...]
    scales: tuple[float, ...]

    def subset(self, knots: Sequence[int]) -> Schedule:
        """The schedule restricted to the states at `knots`; the last knot has no timestep."""
        return Schedule(
            timesteps=tuple(self.timesteps[knot] for knot in knots[:-1]),
            alphas=tuple(self.alphas[knot] for knot in knots),
            sigmas=tuple(self.sigmas[knot] for knot in knots),
            scales=tuple(self.scales[knot] for knot in knots),
        )

    def distance(self, other: Schedule) -> float:
        """The largest difference of any number of two schedules, timesteps in thousandths.

        Infinite where they have not equally many steps.
        """
        if len(self.timesteps) != len(other.timesteps):
            return inf
        pairs = zip(self._levels(), other._levels(), strict=True)
        return max(abs(level - other_level) for level, other_level in pairs)

    def _levels(self) -> tuple[float, ...]:
        thousandths = (timestep / 1000 for timestep in self.timesteps)
        return (*thousandths, *self.alphas, *self.sigmas, *self.scales)


def add_noise(
    clean: torch.Tensor, noise: torch.Tensor, alpha: torch.Tensor, sigma: torch.Tensor
) -> torch.Tensor:
    """`alpha * clean + sigma * noise`; all arguments broadcast against each other."""
    return alpha * clean + sigma * noise


def secant(
    noisy_j: torch.Tensor,
    noisy_k: torch.Tensor,
    alpha_j: torch.Tensor,
    sigma_j: torch.Tensor,
    alpha_k: torch.Tensor,
    sigma_k: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The (clean, noise) whose straight path runs through two states of one trajectory.

    Solves `noisy_j = a_j clean + s_j noise` and `noisy_k = a_k clean + s_k noise` by Cramer's rule.
    A first-order sampler (DDIM, flow Euler) that is given this pair at j lands exactly on k.

    Args:
        noisy_j, noisy_k: two states of one trajectory, of equal shape, the noisier one first.
        alpha_j, sigma_j, alpha_k, sigma_k: their coefficients, broadcastable to the states.

    Returns:
        clean and noise, of the states' shape.

    Raises:
        ValueError: the two states have the same noise level, so no line is determined.
    """
    determinant = alpha_j * sigma_k - alpha_k * sigma_j
    if bool((determinant == 0).any()):
        raise ValueError("a secant needs two states of different noise level")
    clean = (noisy_j * sigma_k - noisy_k * sigma_j) / determinant
    noise = (noisy_k * alpha_j - noisy_j * alpha_k) / determinant
    return clean, noise


def as_prediction(
    prediction_type: PredictionType,
    clean: torch.Tensor,
    noise: torch.Tensor,
    alpha: torch.Tensor,
    sigma: torch.Tensor,
) -> torch.Tensor:
    """Express the pair (clean, noise) as what a network of this type outputs.

    epsilon: noise (Ho et al. 2020, arXiv:2006.11239). v_prediction: alpha * noise - sigma * clean
    (Salimans & Ho 2022, arXiv:2202.00512, §4). flow_prediction: noise - clean. sample: clean.
    """
    match prediction_type:
        case "epsilon":
            return noise
        case "v_prediction":
            return alpha * noise - sigma * clean
        case "flow_prediction":
            return noise - clean
        case "sample":
            return clean


def from_prediction(
    prediction_type: PredictionType,
    prediction: torch.Tensor,
    noisy: torch.Tensor,
    alpha: torch.Tensor,
    sigma: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The inverse of `as_prediction` at a known noisy state: (clean, noise)."""
    match prediction_type:
        case "epsilon":
            return (noisy - sigma * prediction) / alpha, prediction
        case "v_prediction":
            scale = alpha**2 + sigma**2
            clean = (alpha * noisy - sigma * prediction) / scale
            return clean, (sigma * noisy + alpha * prediction) / scale
        case "flow_prediction":
            clean = (noisy - sigma * prediction) / (alpha + sigma)
            return clean, clean + prediction
        case "sample":
            return prediction, (noisy - alpha * prediction) / sigma
