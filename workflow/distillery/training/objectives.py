"""What the student is asked for, as pure functions."""

import torch
import torch.nn.functional as F

from distillery.config.training import Loss, Objective, TimestepWeights, check_num_weights
from distillery.schedule import PredictionType, Schedule, as_prediction, secant

SNR_LIMIT = 5.0
"""gamma of Min-SNR, as its authors recommend it."""
MIN_WEIGHT = 0.01
"""Share of the mean weight below which a segment is not learned."""


def ends_of(objective: Objective, segment: int, steps: int) -> tuple[int, int]:
    """The two knots of the student's grid whose secant an objective asks for.

    segment: the ends of the segment, so that `steps` steps walk the teacher's trajectory. direct:
    from its beginning to the clean end, so that one step from anywhere ends there. reflow: the
    trajectory's two ends, for states on the straight line between them (Liu et al. 2023,
    arXiv:2209.03003, algorithm 1, with the teacher's own pairing of noise and picture). prediction:
    those of the segment, of which the first alone matters.

    Args:
        objective: which.
        segment: of the student, from 0.
        steps: of the student.
    """
    match objective:
        case "segment" | "prediction":
            return segment, segment + 1
        case "direct":
            return segment, steps
        case "reflow":
            return 0, steps


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


def sample_losses(
    prediction: torch.Tensor, target: torch.Tensor, loss: Loss = "mse", width: float = 1.0
) -> torch.Tensor:
    """The loss of each sample, (b, ...) to (b,), in float32 whatever the inputs are.

    mse: the mean square. huber: square up to `width`, linear beyond, by element (Huber 1964).
    pseudo_huber: sqrt(mean square + width²) - width, by sample (Song & Dhariwal 2023,
    arXiv:2310.14189, eq. 7, with c = width times the root of the number of elements).
    """
    ours, theirs = prediction.float(), target.float()
    if loss == "huber":
        elements = F.huber_loss(ours, theirs, reduction="none", delta=width)
        return elements.flatten(1).mean(dim=1)
    squares = F.mse_loss(ours, theirs, reduction="none").flatten(1).mean(dim=1)
    # Small errors would cancel in the difference of the docstring; this is the same number.
    return squares if loss == "mse" else squares / ((squares + width**2).sqrt() + width)


def segment_weights(
    weights: TimestepWeights, grid: Schedule, prediction_type: PredictionType
) -> tuple[float, ...]:
    """The weight of each of the student's segments in the gradient; their mean is one.

    So the scale of the gradient, and with it `max_grad_norm`, mean the same with any weights.

    Args:
        weights: `training.timestep_weights`.
        grid: the student's.
        prediction_type: of the student.

    Raises:
        ValueError: not one weight a segment, or `min_snr` would leave out a segment.
    """
    check_num_weights(weights, len(grid.timesteps))
    if weights == "uniform":
        return (1.0,) * len(grid.timesteps)
    if weights == "min_snr":
        levels = list(zip(grid.alphas[:-1], grid.sigmas[:-1], strict=True))
        found = [min_snr_weight(prediction_type, alpha, sigma) for alpha, sigma in levels]
        _check_all_learned(found, prediction_type)
    else:
        found = [float(weight) for weight in weights]
    mean = sum(found) / len(found)
    return tuple(weight / mean for weight in found)


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
    faint = [str(number) for number, it in enumerate(weights) if it <= MIN_WEIGHT * mean]
    if faint:
        raise ValueError(
            f"training.timestep_weights is 'min_snr', which gives segment {', '.join(faint)} of "
            f"this student's {len(weights)} less than a hundredth of the mean weight: a "
            f"{prediction_type} network would not learn that step; use uniform or a list of weights"
        )
