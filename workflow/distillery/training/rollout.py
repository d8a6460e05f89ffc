"""The finishing phase: the student takes all its own steps, and the loss is on where it ends.

Trained segment by segment, a student never sees the states that its own errors lead to. Here it
does: its sampler is unrolled, and the gradient goes through every step.
"""

from collections.abc import Callable

import torch

from distillery.schedule import PredictionType, Schedule, add_noise, from_prediction

Predict = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A network's output (b, *latent) at states (b, *latent) and timesteps (b,)."""


def roll_out(
    predict: Predict, noisy: torch.Tensor, grid: Schedule, prediction_type: PredictionType
) -> torch.Tensor:
    """Where the student's own first-order steps end, (b, *latent) float32, with their graph.

    A step solves its prediction for (clean, noise) and mixes them again at the next level, which is
    DDIM (Song et al. 2021, arXiv:2010.02502, eq. 12 with sigma_t = 0) and, for a flow, Euler: what
    the exported scheduler does: one that clips is refused with the targets.

    Args:
        predict: the student for these prompts.
        noisy: the first states (b, *latent) float32, divided by their scale.
        grid: the student's.
        prediction_type: of the student.
    """
    alphas, sigmas = torch.tensor(grid.alphas), torch.tensor(grid.sigmas)
    for segment, timestep in enumerate(grid.timesteps):
        timesteps = torch.full((len(noisy),), timestep, device=noisy.device)
        prediction = predict(noisy, timesteps).float()
        clean, noise = from_prediction(
            prediction_type, prediction, noisy, alphas[segment], sigmas[segment]
        )
        noisy = add_noise(clean, noise, alphas[segment + 1], sigmas[segment + 1])
    return noisy
