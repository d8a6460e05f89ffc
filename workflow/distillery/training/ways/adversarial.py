"""An adversarial finish from stored trajectories alone: no teacher is loaded.

Regression towards one image of each noise averages what the student cannot tell apart, and blurs.
Small heads on the features of the frozen untrained student learn to tell the student's images from
the trajectories' own, all with noise added once more; the student learns to pass. The targets' loss
stays, which keeps each noise at its image. After Sauer et al. 2024 (arXiv:2403.12015), who have the
heads on the teacher's features, and Lin et al. 2024 (arXiv:2402.13929), who keep a regression.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from distillery.config.ways import Adversarial
from distillery.training.batch import Batch
from distillery.training.state import Companion, make_moments, trainable_of
from distillery.training.update import end_of_step
from distillery.training.ways.drawing import (
    Drawing,
    add_noise_to,
    parts_of,
    steps_with_an_image,
    update,
    update_seed,
)
from distillery.training.ways.features import Features
from distillery.training.ways.way import Way

if TYPE_CHECKING:  # a run is made from ways to learn, which need these functions
    from distillery.training.run import Run
    from distillery.training.state import TrainingState

MAX_WIDTH = 256
"""Hidden width of a head."""
JITTER = 0.05
"""Noise on a state under which the heads should hardly change, in units of the latents."""
BETAS = (0.0, 0.99)


class Heads(nn.Module):
    """Heads on a frozen network's features; the network itself gets no gradient of its own.

    Attributes:
        seen: the features, of some blocks.
        heads: one a block.
    """

    def __init__(self, seen: Features, num_knots: int = 0) -> None:
        """New heads.

        Args:
            num_knots: that they know one from another; 0: they do not.
        """
        super().__init__()
        self.seen = seen
        self.heads = nn.ModuleList(map(_new_head, seen.widths))
        self.last = num_knots - 1
        widths = seen.widths if num_knots else []
        self.knots = nn.ModuleList(_of_knots(num_knots, width) for width in widths)

    def forward(self, batch: Batch, run: Run) -> list[torch.Tensor]:
        """Logits (b, tokens) of each head: positive for images of the teacher's trajectories.

        Args:
            batch: with `noisy` and `timestep`.
            run: settings, and the family whose network it is.
        """
        return self.logits(self.seen(batch, run), batch.segment)

    def logits(self, features: list[torch.Tensor], segment: torch.Tensor) -> list[torch.Tensor]:
        """Logits (b, tokens) of each head, for where the steps `segment` (b,) end."""
        if self.knots:
            pairs = zip(features, self.knots, strict=True)
            step = segment.clamp(max=self.last)  # on which rollouts end too
            features = [feature + knot(step).unsqueeze(1) for feature, knot in pairs]
        return [head(it).squeeze(-1) for head, it in zip(self.heads, features, strict=True)]


def new_heads(student: Path, settings: Adversarial, run: Run) -> Companion:
    """Heads that know nothing yet; see `Features.load` for arguments and errors."""
    seen = Features.load(student, "adversarial", run)
    with torch.random.fork_rng([]):  # made on the CPU
        torch.manual_seed(update_seed(run, 0, "heads"))
        network = Heads(seen, run.dataset.steps if settings.at == "knots" else 0)
    network.to(run.device)
    optimizer = torch.optim.Adam(
        trainable_of(network).values(), lr=settings.learning_rate, betas=BETAS
    )
    make_moments(optimizer)
    return Companion("heads", network, optimizer, torch.zeros(2, device=run.device))


def judge(
    drawing: Drawing, heads: Companion, settings: Adversarial, begin: int, run: Run
) -> torch.Tensor:
    """The directions (b, *latent) float32 in which what was drawn passes less; then heads learn.

    Args:
        drawing: of this process; maybe of nothing.
        heads: that have learned from earlier ones.
        begin: samples seen before the phase.
    """
    network, seen, kind = heads.network, _what_heads_see(drawing, settings, run), settings.loss
    waits = drawing.samples_seen < begin + settings.warmup_samples
    gradients: list[torch.Tensor] = []

    def losses(size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        gradients.clear()
        kinds = (parts_of(batch, size) for batch in (seen.drawn, seen.true, seen.other, seen.near))
        for drawn, true, *others in zip(*kinds, strict=True):
            # The noised image's gradient in the image is alpha, which is applied at the end.
            image = drawn.noisy.detach().requires_grad_(not waits)
            with torch.no_grad():
                wanted = network.seen(true, run)
            features = network.seen(replace(drawn, noisy=image), run)
            weights = token_weights(features, wanted) if settings.weigh_tokens else None
            if not waits:
                logits = network.logits(features, drawn.segment)
                passes = _mean((passing(it, kind) for it in logits), weights).sum()
                gradients.extend(torch.autograd.grad(passes, image))
            fake = network.logits([feature.detach() for feature in features], drawn.segment)
            real = network.logits(wanted, true.segment)
            misled, near = (network(part, run) for part in others)
            told = _mean((as_true(it, kind) for it in real), weights)
            for false in (fake, misled):
                told = told + _mean((as_false(it, kind) for it in false), weights) / 2
            changes = zip(real, near, strict=True)
            change = _mean((one - beside).square() for one, beside in changes)
            yield told + settings.smoothness * change, told

    run.watchdog.heartbeat("update of the heads", joint=True)
    update(heads, losses, drawing, run)
    if waits:
        return torch.zeros_like(drawing.ends)
    # The batch's loss takes the mean over a sample's elements.
    scale = settings.weight * drawing.ends[:1].numel()
    return scale * seen.alpha * torch.cat([drawing.ends[:0], *gradients])


class AdversarialWay(Way[Adversarial]):
    """The next segments of the stream, beside which heads judge what the student draws."""

    @property
    def directs_all(self) -> bool:
        """With knots."""
        return self.phase.at == "knots"

    def drawn(self, output: torch.Tensor, batch: Batch, run: Run) -> torch.Tensor:
        """Where each step ends, with knots."""
        if self.directs_all:
            return end_of_step(output, batch.noisy, batch.segment, run)
        return super().drawn(output, batch, run)

    def companion(self, student: Path, run: Run) -> Companion:
        """The heads."""
        return new_heads(student, self.phase, run)

    def direct(
        self, drawing: Drawing, state: TrainingState, companion: Companion, begin: int, run: Run
    ) -> torch.Tensor:
        """To where the heads take what is drawn for a trajectory's own image."""
        return judge(drawing, companion, self.phase, begin, run)


@dataclass(frozen=True)
class Seen:
    """What the heads see in an update, all at the same noise and levels.

    Attributes:
        drawn: what the student has drawn, to be found false.
        true: the trajectories' own images.
        other: these under the prompts of others, to be found false too.
        near: the true ones with a little more noise, under which the heads should not change.
        alpha: (b, 1, ...), the share of an image in what is seen of it.
    """

    drawn: Batch
    true: Batch
    other: Batch
    near: Batch
    alpha: torch.Tensor


def _what_heads_see(drawing: Drawing, settings: Adversarial, run: Run) -> Seen:
    """Of one update; the noise's levels are drawn by `level_shares`."""
    batch, seeds, shares = drawing.batch, drawing.seeds(run, "adversarial"), level_shares(run)
    steps = [_pick(shares, seed >> 32) for seed in seeds]
    of_knots = settings.at == "knots" and not batch.is_rollout
    if of_knots:
        reals = end_of_step(batch.target, batch.noisy, batch.segment, run)
    else:
        reals = run.dataset.clean_ends(batch.items).to(run.device)
    noised = [add_noise_to(ends, batch, steps, seeds, run) for ends in (drawing.ends, reals)]
    drawn, true = (each.batch for each in noised)
    alpha = noised[0].alpha
    if of_knots:
        drawn, true = (_at_knots(*pair, run) for pair in ((drawn, drawing.ends), (true, reals)))
        alpha = torch.where(_on_the_way(batch, run).view_as(alpha), 1.0, alpha)
    others = run.dataset.other_conditioning(batch.items, seeds) if batch.items else {}
    other = {name: value.to(run.device) for name, value in others.items()} or batch.conditioning
    jitter = [update_seed(run, drawing.samples_seen, f"jitter\n{seed}") for seed in seeds]
    moved = add_noise_to(torch.zeros_like(reals), batch, steps, jitter, run).noise
    return Seen(
        drawn=drawn,
        true=true,
        other=replace(true, conditioning=other),
        near=replace(true, noisy=true.noisy + JITTER * moved),
        alpha=alpha,
    )


def _on_the_way(batch: Batch, run: Run) -> torch.Tensor:
    """Which (b,) of the steps end on a state that has noise."""
    return batch.segment < run.dataset.steps - 1


def _at_knots(noised: Batch, states: torch.Tensor, run: Run) -> Batch:
    """Images as they are, with noise added; but states on the way as they are, at the noise that
    they have."""
    between, timesteps = _on_the_way(noised, run), run.dataset.usual.timesteps.to(states.device)
    following = timesteps[(noised.segment + 1).clamp(max=len(timesteps) - 1)]
    return replace(
        noised,
        noisy=torch.where(between.view(-1, *[1] * (states.ndim - 1)), states, noised.noisy),
        timestep=torch.where(between, following, noised.timestep),
    )


def level_shares(run: Run) -> dict[int, float]:
    """How often each of the teacher's steps is a noise level of the heads: shares, of one.

    The noise's share u = sigma / (alpha + sigma) is logit-normal (Esser et al. 2024,
    arXiv:2403.03206, eq. 19), as far as the steps allow: each has the density at its u times half
    the distance to its neighbours.
    """
    grid = run.dataset.usual.teacher_grid
    noise = [sigma / (alpha + sigma) for alpha, sigma in zip(grid.alphas, grid.sigmas, strict=True)]
    shares = {step: _share(noise, step) for step in steps_with_an_image(run)}
    whole = sum(shares.values())
    return {step: share / whole for step, share in shares.items()}


def _share(noise: Sequence[float], step: int) -> float:
    """Of one step, not scaled."""
    here = min(max(noise[step], 1e-4), 1 - 1e-4)
    density = exp(-(log(here / (1 - here)) ** 2) / 2) / (here * (1 - here))
    width = abs(noise[max(step - 1, 0)] - noise[step + 1]) / 2
    return max(density * width, 1e-9)


def _pick(shares: dict[int, float], seed: int) -> int:
    """A step by its share, from 31 random bits."""
    left = (seed % 2**31) / 2**31
    for step, share in shares.items():
        left -= share
        if left < 0:
            return step
    return max(shares)


def _new_head(width: int) -> nn.Module:
    """Logits of tokens (b, n, width)."""
    hidden = min(width, MAX_WIDTH)
    return nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, 1)
    )


def _of_knots(num_knots: int, width: int) -> nn.Module:
    """What is added to features (b, n, width) by knot; nothing at first."""
    found = nn.Embedding(num_knots, width)
    nn.init.zeros_(found.weight)
    return found


def token_weights(drawn: list[torch.Tensor], true: list[torch.Tensor]) -> list[torch.Tensor]:
    """How much each token (b, n) counts, one in the mean over a sample: as the distance of what is
    drawn to the trajectory's own, for each block's features (b, n, width)."""
    found = []
    for here, there in zip(drawn, true, strict=True):
        apart = (here.detach() - there).norm(dim=-1)
        found.append(apart / apart.mean(dim=1, keepdim=True).clamp(min=torch.finfo().tiny))
    return found


def _mean(
    values: Iterable[torch.Tensor], weights: Sequence[torch.Tensor] | None = None
) -> torch.Tensor:
    """The mean over heads and tokens of values (b, tokens), (b,)."""
    listed = list(values)
    if weights is not None:
        listed = [value * weight for value, weight in zip(listed, weights, strict=True)]
    return torch.stack([value.mean(dim=1) for value in listed]).mean(dim=0)


def as_true(logits: torch.Tensor, kind: str) -> torch.Tensor:
    """What heads lose by such logits of true images."""
    return F.softplus(-logits) if kind == "softplus" else F.relu(1.0 - logits)


def as_false(logits: torch.Tensor, kind: str) -> torch.Tensor:
    """What they lose by such logits of false ones."""
    return as_true(-logits, kind)


def passing(logits: torch.Tensor, kind: str) -> torch.Tensor:
    """What the student loses by such logits of what it draws: with hinge it never has enough."""
    return F.softplus(-logits) if kind == "softplus" else -logits
