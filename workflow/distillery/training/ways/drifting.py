"""A drifting finish from stored trajectories alone: no teacher, and nothing that learns beside.

Regression towards one image of each noise averages what the student cannot tell apart: its images
of a prompt are blurred, and nearer to one another than the teacher's. Here they move, in features
of the frozen untrained student, towards the teacher's images of the prompt and away from each
other; where both are spread alike the two cancel. The targets' loss stays, which keeps each noise
at its image. After Deng et al. 2026 (arXiv:2602.04770), who have a network of its own for the
features, and Zhang et al. 2026 (arXiv:2605.07327), who have the teacher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from distillery.config.phases import Span
from distillery.config.ways import Drifting
from distillery.training import distributed
from distillery.training.batch import Batch
from distillery.training.state import Companion
from distillery.training.ways.drawing import (
    Drawing,
    add_noise_to,
    parts_of,
    steps_with_an_image,
    update_seed,
    with_what_fits,
)
from distillery.training.ways.features import Features
from distillery.training.ways.way import Way

if TYPE_CHECKING:  # a run is made from ways to learn, which need these functions
    from distillery.training.batches import Batches
    from distillery.training.run import Run
    from distillery.training.state import TrainingState

MIN_NOISES = 2
"""Of a prompt: an image is compared with the others. Of two alone no kernel has a choice."""
EPSILON = 1e-6
"""Of distances and variances that may be zero."""


def drift(
    drawn: torch.Tensor,
    true: torch.Tensor,
    temperatures: Sequence[float],
    paired_weight: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where images should move, (p, k, n, d), and the unit of it, (p, 1, 1, 1).

    The drifting field V = V⁺ - V⁻ of arXiv:2602.04770: the mean shifts towards the true images and
    towards the drawn ones, by kernels exp(-distance / temperature), each normalised by itself. An
    image's own noise is in neither. So V vanishes in the mean where both have one distribution,
    however noises and images are paired; and always, where all images are the teacher's.

    Args:
        drawn, true: features of the images of p prompts' n noises in one order, at k places, each
            of which is looked at apart.
        temperatures: in the unit, the mean distance of the true ones of a prompt; their fields are
            averaged.
        paired_weight: of the way to the true image of the same noise, beside that.
    """
    _, places, count, _ = drawn.shape
    own = torch.eye(count, dtype=torch.bool, device=drawn.device)
    unit = torch.cdist(true, true).sum(dim=(1, 2, 3)) / (places * count * (count - 1))
    unit = unit.clamp(min=EPSILON).view(-1, 1, 1, 1)

    def mean_near(points: torch.Tensor, temperature: float) -> torch.Tensor:
        logits = -torch.cdist(drawn, points) / (temperature * unit)
        return logits.masked_fill(own, -inf).softmax(dim=-1) @ points

    fields = [mean_near(true, it) - mean_near(drawn, it) for it in temperatures]
    field = torch.stack(fields).mean(dim=0) + paired_weight * (true - drawn)
    return field / unit, unit


def drift_losses(
    drawn: torch.Tensor, true: torch.Tensor, per_prompt: int, settings: Drifting
) -> torch.Tensor:
    """How far images have to move in a block's features, (b,), with the graph of what is drawn.

    The mean of two: over the tokens, each compared with those in its place; and over the mean and
    the standard deviation of all tokens.

    Args:
        drawn, true: (b, tokens, d), `per_prompt` images of each prompt one after another.
    """
    lost = []
    for points, goals in ((drawn, true), (_statistics(drawn), _statistics(true))):
        here, there = (
            each.reshape(-1, per_prompt, *each.shape[1:]).transpose(1, 2)
            for each in (points, goals)
        )
        move, unit = drift(here.detach(), there, settings.temperatures, settings.paired_weight)
        goal = here.detach() / unit + move
        lost.append((here / unit - goal).square().sum(dim=-1).mean(dim=1).flatten())
    return torch.stack(lost).mean(dim=0)


def _statistics(tokens: torch.Tensor) -> torch.Tensor:
    """Mean and standard deviation of tokens (b, n, d), (b, 2, d)."""
    deviation = (tokens.var(dim=1, correction=0) + EPSILON).sqrt()
    return torch.stack([tokens.mean(dim=1), deviation], dim=1)


def drift_direction(
    drawing: Drawing, drifting: Companion, settings: Drifting, run: Run
) -> torch.Tensor:
    """The directions (b, *latent) float32 from which what was drawn should drift away.

    Args:
        drawing: of this process; maybe of nothing.
        drifting: the frozen network; its loss is noted.
    """
    per_prompt = run.dataset.recipe.samples_per_prompt
    drawn, true, alpha = _seen(drawing, settings, run)

    def look(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        whole = max(size // per_prompt, 1) * per_prompt  # what is compared stays together
        pairs = zip(parts_of(drawn, whole), parts_of(true, whole), strict=True)
        found = [_pull(*pair, drifting.network, per_prompt, settings, run) for pair in pairs]
        empty = (drawing.ends[:0], drawing.ends.new_zeros(0))
        gradients, lost = zip(empty, *found, strict=True)
        return torch.cat(gradients), torch.cat(lost)

    run.watchdog.heartbeat("drift of what is drawn", joint=True)
    gradients, lost = with_what_fits(look, drawing.size, run.device)
    shown = torch.stack([lost.sum(), lost.new_tensor(float(len(lost)))])
    run.watchdog.heartbeat("drift of all ranks", waits=True)
    drifting.losses = distributed.all_reduce(shown)
    # The batch's loss takes the mean over a sample's elements.
    return settings.weight * drawing.ends[:1].numel() * alpha * gradients


def _pull(
    drawn: Batch, true: Batch, features: Features, per_prompt: int, settings: Drifting, run: Run
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss's gradient in noised images (b, *latent), and the loss (b,), of whole prompts."""
    image = drawn.noisy.detach().requires_grad_(True)
    here = features(replace(drawn, noisy=image), run)
    with torch.no_grad():
        there = features(true, run)
    lost = [drift_losses(*pair, per_prompt, settings) for pair in zip(here, there, strict=True)]
    lost_b = torch.stack(lost).mean(dim=0)
    (gradient,) = torch.autograd.grad(lost_b.sum(), image)
    return gradient, lost_b.detach()


def _seen(drawing: Drawing, settings: Drifting, run: Run) -> tuple[Batch, Batch, torch.Tensor]:
    """What was drawn and the trajectories' own images, with the same noise for all of a prompt; and
    the share (b, 1, ...) of an image in it."""
    batch, dataset = drawing.batch, run.dataset
    levels = noise_levels(settings.max_noise, run)
    seeds = [
        update_seed(run, drawing.samples_seen, f"drifting\n{dataset.prompt_of(item)}")
        for item in batch.items
    ]
    steps = [levels[(seed >> 32) % len(levels)] for seed in seeds]
    reals = dataset.clean_ends(batch.items).to(run.device)
    drawn = add_noise_to(drawing.ends, batch, steps, seeds, run)
    return drawn.batch, add_noise_to(reals, batch, steps, seeds, run).batch, drawn.alpha


def noise_levels(max_noise: float, run: Run) -> list[int]:
    """The teacher's steps whose states have at most this share of noise; its last one in any case.

    A share is sigma / (alpha + sigma).
    """
    grid, steps = run.dataset.usual.teacher_grid, steps_with_an_image(run)
    found = [
        step
        for step in steps
        if grid.sigmas[step] <= max_noise * (grid.alphas[step] + grid.sigmas[step])
    ]
    return found or [steps[-1]]


class DriftingWay(Way[Drifting]):
    """All noises of a prompt at a time; what the student draws drifts."""

    def items(self, batches: Batches, span: Span, start: int, stop: int) -> list[int]:
        """Of whole prompts."""
        return batches.whole_prompts(start, stop)

    def companion(self, student: Path, run: Run) -> Companion:
        """The frozen network, which learns nothing.

        Raises ValueError where a process would not have all noises of a prompt, or too few.
        """
        per_prompt, ranks = run.dataset.recipe.samples_per_prompt, run.ranks.world_size
        if per_prompt < MIN_NOISES:
            raise ValueError(
                f"targets.samples_per_prompt is {per_prompt} and training.phases has drifting, "
                f"which compares images of a prompt: use {MIN_NOISES} or more, better 4 or 8"
            )
        whole = per_prompt * ranks
        if run.training.global_batch_size % whole:
            raise ValueError(
                f"training.global_batch_size is {run.training.global_batch_size} and "
                f"training.phases has drifting, which takes all {per_prompt} noises of a prompt on "
                f"one of {ranks} processes: use a multiple of {whole}"
            )
        features = Features.load(student, "drifting", run)
        nothing = torch.optim.SGD([{"params": []}], lr=0.0)
        return Companion("drift", features, nothing, torch.zeros(2, device=run.device))

    def direct(
        self, drawing: Drawing, state: TrainingState, companion: Companion, begin: int, run: Run
    ) -> torch.Tensor:
        """Along the drift."""
        return drift_direction(drawing, companion, self.phase, run)
