"""The plan's notes about precision: stored states that are rounded, averages that begin late."""

from collections.abc import Iterator
from math import hypot

import torch

from distillery.config.run import Config
from distillery.config.section import Dtype
from distillery.notes import Note, doubt
from distillery.schedule import PredictionType, Schedule, as_prediction
from distillery.teacher.loading import torch_dtype
from distillery.training.objectives import segment_target

ROUNDING_RMS = 0.212
"""Root mean square of a rounding error, as a share of the number and of the type's epsilon: uniform
over a spacing of epsilon / m for mantissas m from 1 to 2, which are as frequent as 1 / m."""
NOTED_ERROR = 0.05
NOTED_SHARE = 0.05


def on_rounding(config: Config, grid: Schedule, prediction_type: PredictionType) -> Iterator[Note]:
    """Short segments, which are the difference of two rounded states."""
    dtype = config.targets.dtype
    if dtype == "float32" or config.training.objective != "segment":
        return
    errors = rounding_errors(dtype, grid, prediction_type)
    worst = max(errors)
    if worst > NOTED_ERROR:
        yield doubt(
            f"targets.dtype is {dtype}",
            f" and the student has {len(errors)} steps: a step's target is the difference of two "
            "stored states divided by their distance, so their rounding makes an error of about "
            f"{worst:.0%} of the target in segment {errors.index(worst)}; it is noise without "
            "bias, but the loss cannot fall below it",
            "store float32, or train fewer steps",
        )


def rounding_errors(dtype: Dtype, grid: Schedule, prediction_type: PredictionType) -> list[float]:
    """The relative error (root mean square) of each segment's target, from states that are rounded.

    Clean samples and noise are taken to have unit variance each.
    """
    unit = torch_dtype(dtype)
    rounding = ROUNDING_RMS * torch.finfo(unit).eps
    alphas, sigmas = torch.tensor(grid.alphas), torch.tensor(grid.sigmas)
    sizes = rounding * torch.hypot(alphas, sigmas)
    nothing = torch.zeros(())
    errors = []
    for j, k in zip(range(len(sizes) - 1), range(1, len(sizes)), strict=True):
        levels = (alphas[j], sigmas[j], alphas[k], sigmas[k])
        of_first = segment_target(prediction_type, sizes[j], nothing, *levels)
        of_second = segment_target(prediction_type, nothing, sizes[k], *levels)
        target = hypot(
            float(as_prediction(prediction_type, torch.ones(()), nothing, alphas[j], sigmas[j])),
            float(as_prediction(prediction_type, nothing, torch.ones(()), alphas[j], sigmas[j])),
        )
        errors.append(hypot(float(of_first), float(of_second)) / target)
    return errors


def on_average(config: Config) -> Iterator[Note]:
    """An average of a long half-life, which is still in part the untrained student."""
    half_life, length = config.training.ema_half_life_samples, config.training.num_samples
    share = 0.5 ** (length / half_life) if half_life else 0.0
    if share > NOTED_SHARE:
        yield doubt(
            f"training.ema_half_life_samples is {half_life}",
            f" in a training of {length} samples: {share:.0%} of the exported average are still "
            "the initial weights",
            f"use {length // 8} or fewer",
        )
