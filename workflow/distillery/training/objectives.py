"""What the student is asked for: targets, weights, losses and rollouts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

from distillery.config.training import Loss, Objective, TimestepWeights, on_num_weights
from distillery.families import Family, Setting
from distillery.notes import refuse
from distillery.schedule import (
    PredictionType,
    Schedule,
    add_noise,
    as_prediction,
    from_prediction,
    secant,
)
from distillery.student.flow_map import pairs_of
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.loading import load_network

SNR_LIMIT = 5.0
"""gamma of Min-SNR, as its authors recommend it."""
MIN_WEIGHT = 0.01
"""Share of the mean weight below which a segment is not learned."""
Levels = tuple[torch.Tensor, torch.Tensor]
"""alpha and sigma."""


@dataclass(frozen=True)
class Task:
    """One kind of thing that the student is asked at a knot of its grid.

    Attributes:
        knot: at whose noise level the network is asked.
        first, last: the knots whose secant it should give.
    """

    knot: int
    first: int
    last: int


def tasks_of(objective: Objective, steps: int) -> tuple[Task, ...]:
    """What an objective asks of a student, by its segment."""
    return tuple(Task(segment, *ends_of(objective, segment, steps)) for segment in range(steps))


def flow_map_tasks(steps: int) -> tuple[Task, ...]:
    """What is asked of an any-step student: the mean velocity from each knot to each at which one
    of its steps may end (Boffi et al. 2024, arXiv:2406.07507; Gu et al. 2026, arXiv:2605.13724).

    Both states are stored, so that the target is exact and takes no teacher and no derivative.
    """
    return tuple(Task(first, first, last) for first, last in pairs_of(steps))


def ends_of(objective: Objective, segment: int, steps: int) -> tuple[int, int]:
    """The two knots of the student's grid whose secant an objective asks for.

    segment: the ends of the segment, so that `steps` steps walk the teacher's trajectory. direct:
    from its beginning to the clean end, so that one step from anywhere ends there. reflow: the
    trajectory's two ends, for states on the straight line between them (Liu et al. 2023,
    arXiv:2209.03003, algorithm 1, with the teacher's own pairing of noise and image).

    Args:
        segment: of the student, from 0.
    """
    match objective:
        case "segment":
            return segment, segment + 1
        case "direct":
            return segment, steps
        case "reflow":
            return 0, steps


def task_of(
    objective: Objective,
    prediction_type: PredictionType,
    noisy_j: torch.Tensor,
    noisy_k: torch.Tensor,
    levels_j: Levels,
    levels_k: Levels,
    levels: Levels,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The states that the network sees, and what it should output there; each (b, *latent).

    Args:
        noisy_j, noisy_k: states of one trajectory at the two knots of `ends_of`.
        levels_j, levels_k: alpha and sigma there, broadcastable to the states.
        levels: the same at the beginning of the student's segment.
    """
    if objective != "reflow":
        return noisy_j, segment_target(prediction_type, noisy_j, noisy_k, *levels_j, *levels_k)
    clean, noise = secant(noisy_j, noisy_k, *levels_j, *levels_k)
    return add_noise(clean, noise, *levels), as_prediction(prediction_type, clean, noise, *levels)


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
        noisy_j, noisy_k: two states of one trajectory, of equal shape, the noisier one first.
        alpha_j, sigma_j, alpha_k, sigma_k: their coefficients, broadcastable to the states.
    """
    clean, noise = secant(noisy_j, noisy_k, alpha_j, sigma_j, alpha_k, sigma_k)
    return as_prediction(prediction_type, clean, noise, alpha_j, sigma_j)


def sample_losses(
    prediction: torch.Tensor, target: torch.Tensor, loss: Loss = "mse", width: float = 1.0
) -> torch.Tensor:
    """The loss of each sample, (b, ...) to (b,), in float32 whatever the inputs are.

    mse: the mean square. huber: square up to `width`, linear beyond, by element (Huber 1964).
    pseudo_huber: sqrt(mean square + width²) - width, by sample (Song & Dhariwal 2023,
    arXiv:2310.14189, eq. 7, with c = width times the root of the number of elements).
    """
    predicted, wanted = prediction.float(), target.float()
    if loss == "huber":
        elements = F.huber_loss(predicted, wanted, reduction="none", delta=width)
        return elements.flatten(1).mean(dim=1)
    squares = F.mse_loss(predicted, wanted, reduction="none").flatten(1).mean(dim=1)
    # Small errors would cancel in the difference of the docstring; this is the same number.
    return squares if loss == "mse" else squares / ((squares + width**2).sqrt() + width)


def segment_weights(
    weights: TimestepWeights, grid: Schedule, prediction_type: PredictionType
) -> tuple[float, ...]:
    """The weight of each of the student's segments in the gradient; their mean is one.

    So the scale of the gradient, and with it `max_grad_norm`, mean the same with any weights.

    Raises:
        ValueError: not one weight a segment, or `min_snr` would leave out a segment.
    """
    refuse(on_num_weights(weights, len(grid.timesteps)))
    if weights == "uniform":
        return (1.0,) * len(grid.timesteps)
    if weights == "min_snr":
        levels = list(zip(grid.alphas[:-1], grid.sigmas[:-1], strict=True))
        unscaled = [min_snr_weight(prediction_type, alpha, sigma) for alpha, sigma in levels]
        _check_all_learned(unscaled, prediction_type)
    else:
        unscaled = [float(weight) for weight in weights]
    mean = sum(unscaled) / len(unscaled)
    return tuple(weight / mean for weight in unscaled)


def min_snr_weight(prediction_type: PredictionType, alpha: float, sigma: float) -> float:
    """Min-SNR weight of a squared error of a prediction at one noise level.

    `min(SNR, gamma)` for the clean sample (Hang et al. 2023, arXiv:2303.09556, eq. 7 to 9), times
    the square of what an error of this prediction is as an error of the clean sample: 1 / SNR for
    epsilon, 1 / (SNR + 1) for v, sigma² for a flow.
    """
    if alpha == 0.0 and prediction_type == "epsilon":
        return 1.0  # the limit
    snr = (alpha / sigma) ** 2
    factor = {
        "epsilon": sigma / alpha if alpha else 1.0,
        "v_prediction": sigma / (alpha**2 + sigma**2),
        "flow_prediction": sigma / (alpha + sigma),
        "sample": 1.0,
    }[prediction_type]
    return float(min(snr, SNR_LIMIT) * factor**2)


def _check_all_learned(weights: list[float], prediction_type: PredictionType) -> None:
    """Raise ValueError for a segment of no weight: where there is only noise, SNR is 0."""
    mean = sum(weights) / len(weights)
    faint = [str(number) for number, weight in enumerate(weights) if weight <= MIN_WEIGHT * mean]
    if faint:
        raise ValueError(
            f"training.timestep_weights is 'min_snr', which gives segment {', '.join(faint)} of "
            f"this student's {len(weights)} less than a hundredth of the mean weight: a "
            f"{prediction_type} network would not learn that step; use uniform or a list of weights"
        )


Predict = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""A network's output (b, *latent) at states (b, *latent) and timesteps (b,), of a step that ends at
other timesteps (b,); only flow maps look at these."""


def roll_out(
    predict: Predict, noisy: torch.Tensor, grid: Schedule, prediction_type: PredictionType
) -> torch.Tensor:
    """Where the student's own first-order steps end, (b, *latent) float32, with their graph.

    Args: as for `walk`.
    """
    *_, end = walk(predict, noisy, grid, prediction_type)
    return end


def walk(
    predict: Predict, noisy: torch.Tensor, grid: Schedule, prediction_type: PredictionType
) -> Iterator[torch.Tensor]:
    """The states (b, *latent) float32 after each of the student's own first-order steps.

    A step solves its prediction for (clean, noise) and mixes them again at the next level, which is
    DDIM (Song et al. 2021, arXiv:2010.02502, eq. 12 with sigma_t = 0) and, for a flow, Euler. The
    exported scheduler does the same: one that clips is refused with the targets.

    Args:
        predict: the student for these prompts.
        noisy: the first states (b, *latent) float32, divided by their scale.
    """
    alphas, sigmas = torch.tensor(grid.alphas), torch.tensor(grid.sigmas)
    for segment, (begin, end) in enumerate(pairwise((*grid.timesteps, CLEAN))):
        timesteps = torch.full((len(noisy),), begin, device=noisy.device)
        prediction = predict(noisy, timesteps, torch.full_like(timesteps, end)).float()
        clean, noise = from_prediction(
            prediction_type, prediction, noisy, alphas[segment], sigmas[segment]
        )
        noisy = add_noise(clean, noise, alphas[segment + 1], sigmas[segment + 1])
        yield noisy


CLEAN = 0
"""The timestep at which the last step ends; whole, so that beside whole ones all stay so."""
EPSILON = 1e-6
"""Beside a channel's variance, which may be zero."""


@dataclass(frozen=True)
class PerceptualLoss:
    """The latent perceptual loss of Berrada et al. 2024 (arXiv:2411.04873, §3.2).

    Features of every block of the decoder, standardised by channel as the target's are over its
    pixels; the mean square of their difference, averaged over the blocks. Their weights of the
    blocks and their mask of outliers are left out.

    Attributes:
        vae: a Diffusers autoencoder with frozen weights in float32.
        family: whose latents these are.
        setting: their size.
    """

    vae: Any
    family: Family
    setting: Setting

    def __call__(self, latents: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The distance (b,) of latents to their targets, both (b, *latent) float32, normalised."""
        with torch.no_grad():
            target_features = self.features(target)
        latents_features = self.features(latents)
        distances = [
            _distance(left, right)
            for left, right in zip(latents_features, target_features, strict=True)
        ]
        return torch.stack(distances).mean(dim=0)

    def features(self, latents: torch.Tensor) -> list[torch.Tensor]:
        """What the decoder's blocks give while it decodes, each (b, c, ...)."""
        outputs: list[torch.Tensor] = []
        decoder = self.vae.decoder
        blocks = [getattr(decoder, "mid_block", None), *decoder.up_blocks]
        hooks = [
            block.register_forward_hook(lambda _block, _inputs, output: outputs.append(output))
            for block in blocks
            if block is not None
        ]
        try:
            self.decode(latents)
        finally:
            for hook in hooks:
                hook.remove()
        return outputs

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """The images (b, 3, ...) in [-1, 1] of a sampler's latents (b, *latent)."""
        given = self.family.vae_input(latents, self.setting, self.vae.config)
        decoded: torch.Tensor = self.vae.decode(given, return_dict=False)[0]
        return decoded


def load_perceptual(
    folder: PipelineFolder, setting: Setting, device: torch.device
) -> PerceptualLoss:
    """The teacher's VAE in float32 with frozen weights; nothing else of the teacher is read.

    Raises FileNotFoundError where the teacher in `folder` has none.
    """
    vae = load_network(folder, "vae", torch.float32)
    return PerceptualLoss(vae.to(device).requires_grad_(False), folder.family, setting)


def _distance(features: torch.Tensor, target_features: torch.Tensor) -> torch.Tensor:
    """Mean square (b,) of the difference of features (b, c, ...), in units of target variance.

    The mean, by which features are standardised too, cancels.
    """
    pixels = tuple(range(2, target_features.ndim))
    std = (target_features.var(dim=pixels, keepdim=True, correction=0) + EPSILON).sqrt()
    return (
        F.mse_loss(features / std, target_features / std, reduction="none").flatten(1).mean(dim=1)
    )
