"""What the student is asked for, as pure functions."""

import torch
import torch.nn.functional as F

from distillery.schedule import PredictionType, as_prediction, secant


def segment_target(
    prediction_type: PredictionType,
    noisy_j: torch.Tensor,
    noisy_k: torch.Tensor,
    alpha_j: torch.Tensor,
    sigma_j: torch.Tensor,
    alpha_k: torch.Tensor,
    sigma_k: torch.Tensor,
) -> torch.Tensor:
    """What the network must output at knot j for one first-order step to land on knot k.

    The pair (clean, noise) solves `noisy_j = a_j clean + s_j noise` and `noisy_k = a_k clean + s_k
    noise`; in words of the network's prediction type it is, for a flow (a = 1 - s),

        target = noise - clean = (noisy_j - noisy_k) / (s_j - s_k),

    the mean velocity over the segment; for epsilon, v and the clean sample see
    `schedule.as_prediction`. It is the target of progressive distillation (Salimans & Ho 2022,
    arXiv:2202.00512, algorithm 2), with all the teacher's steps of a segment in the place of two.

    Args:
        prediction_type: of the student, which is the teacher's.
        noisy_j, noisy_k: two states of one trajectory, of equal shape, the noisier one first.
        alpha_j, sigma_j, alpha_k, sigma_k: their coefficients, broadcastable to the states.
    """
    clean, noise = secant(noisy_j, noisy_k, alpha_j, sigma_j, alpha_k, sigma_k)
    return as_prediction(prediction_type, clean, noise, alpha_j, sigma_j)


def sample_losses(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean squared error of each sample, (b, ...) to (b,), in float32 whatever the inputs are."""
    squared = F.mse_loss(prediction.float(), target.float(), reduction="none")
    return squared.flatten(1).mean(dim=1)
