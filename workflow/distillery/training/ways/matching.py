"""Distribution matching: the student's images as a whole are drawn towards the teacher's.

Targets say where one trajectory ends. Here a second copy of the student learns to denoise what the
student draws, and so knows the student's distribution as the guided teacher knows its own. Noise is
added to what the student has drawn, both say what they see in it, and the difference is the
direction in which the student's distribution must move (Yin et al. 2024, arXiv:2311.18828, eq. 7;
the copy's several updates for one of the student's: arXiv:2405.14867, section 4.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from distillery.config.ways import DistributionMatching
from distillery.schedule import as_prediction, from_prediction
from distillery.student.on_disk import load_trainable
from distillery.teacher.loading import torch_dtype
from distillery.training.objectives import sample_losses
from distillery.training.state import Companion, make_moments, trainable_of
from distillery.training.update import inspecting, predict
from distillery.training.ways.drawing import (
    Drawing,
    add_noise_to,
    in_parts,
    parts_of,
    steps_with_an_image,
    update,
    update_seed,
)

if TYPE_CHECKING:  # a run is made from ways to learn, which need these functions
    from distillery.training.run import Run

NUM_LEVELS = 4
"""Noise levels of an update at which the teacher looks: a stock call has one for all its states."""


def new_copy(student: Path, settings: DistributionMatching, run: Run) -> Companion:
    """The untrained student once more, which draws as the teacher does where it has its weights."""
    denoiser = load_trainable(student, torch_dtype(run.training.dtype)).to(run.device)
    optimizer = torch.optim.AdamW(
        trainable_of(denoiser).values(),
        lr=settings.learning_rate,
        betas=run.training.betas,
        weight_decay=run.training.weight_decay,
        fused=run.device.type == "cuda",
    )
    make_moments(optimizer)
    return Companion("copy", denoiser, optimizer, torch.zeros(2, device=run.device))


def match(
    drawing: Drawing, copy: Companion, settings: DistributionMatching, run: Run
) -> torch.Tensor:
    """The directions (b, *latent) float32 of what was drawn; then the copy learns from it.

    Args:
        drawing: of this process; maybe of nothing.
        copy: that has learned from earlier ones.
    """
    direction = settings.weight * _difference(drawing, copy, run)
    for number in range(settings.updates):
        run.watchdog.heartbeat(f"update {number + 1} of the copy", joint=True)
        _learn(drawing, copy, number, run)
    return direction


def _difference(drawing: Drawing, copy: Companion, run: Run) -> torch.Tensor:
    """What the copy sees less what the teacher sees, (b, *latent), in units of the mean distance of
    what was drawn to the latter."""
    levels = levels_of_update(drawing.samples_seen, run)
    seeds = drawing.seeds(run, "direction")
    steps = [levels[(seed >> 32) % len(levels)] for seed in seeds]
    noised = add_noise_to(drawing.ends, drawing.batch, steps, seeds, run)
    seen = run.dataset.teachers_view(noised.batch.noisy, steps, drawing.batch.items)
    with inspecting(copy.network, run.device, torch_dtype(run.training.dtype)):
        prediction = in_parts(
            lambda part: predict(copy.network, part, run), noised.batch, drawing.size
        )
    kind = run.dataset.recipe.prediction_type
    level = (noised.alpha, noised.sigma)
    copied, _ = from_prediction(kind, prediction.float(), noised.batch.noisy, *level)
    distance = (drawing.ends - seen).abs().flatten(1).mean(dim=1).clamp(min=torch.finfo().tiny)
    return (copied - seen) / distance.view(-1, *[1] * (seen.ndim - 1))


def levels_of_update(samples_seen: int, run: Run) -> list[int]:
    """The teacher's steps at which it looks in this update, the same on all processes."""
    steps = steps_with_an_image(run)
    seeds = (update_seed(run, samples_seen, f"level\n{number}") for number in range(NUM_LEVELS))
    return [steps[seed % len(steps)] for seed in seeds]


def _learn(drawing: Drawing, copy: Companion, number: int, run: Run) -> None:
    """One update of the copy, by the plain denoising loss on what the student has drawn."""
    seeds, levels = drawing.seeds(run, f"copy {number}"), steps_with_an_image(run)
    steps = [levels[(seed >> 32) % len(levels)] for seed in seeds]
    noised = add_noise_to(drawing.ends, drawing.batch, steps, seeds, run)
    kind, level = run.dataset.recipe.prediction_type, (noised.alpha, noised.sigma)
    target = as_prediction(kind, drawing.ends, noised.noise, *level)
    whole = replace(noised.batch, target=target)
    copy.network.train()

    def losses(size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for part in parts_of(whole, size):
            loss_b = sample_losses(predict(copy.network, part, run), part.target)
            yield loss_b, loss_b

    update(copy, losses, drawing, run, max_grad_norm=run.training.max_grad_norm)
