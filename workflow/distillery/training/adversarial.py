"""An adversarial finish from stored trajectories alone: no teacher is loaded.

Regression towards one image of each noise averages what the student cannot tell apart, and blurs.
Small heads on the features of the frozen untrained student learn to tell the student's images from
the trajectories' own, all with noise added once more; the student learns to pass. The targets' loss
stays, which keeps each noise at its image. After Sauer et al. 2024 (arXiv:2403.12015), who have the
heads on the teacher's features, and Lin et al. 2024 (arXiv:2402.13929), who keep a regression.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from distillery.config.finishes import Adversarial
from distillery.families.protocol import Denoiser
from distillery.model_folder import load_denoiser
from distillery.teacher.loading import torch_dtype
from distillery.training import parallel
from distillery.training.data import Batch, rows
from distillery.training.drawing import (
    Drawing,
    add_noise_to,
    parts_of,
    steps_with_an_image,
    update,
    update_seed,
    with_what_fits,
)
from distillery.training.run import Run
from distillery.training.update import Companion, inspecting, make_moments, predict, trainable_of

DEPTHS = (0.1, 0.3, 0.5, 0.75, 0.95)
"""Of the blocks in the order in which they run, whose features the heads see."""
MAX_WIDTH = 256
"""Hidden width of a head."""
JITTER = 0.05
"""Noise on a state under which the heads should hardly change, in units of the latents."""
BETAS = (0.0, 0.99)


class Heads(nn.Module):
    """Heads on a frozen network's features; the network itself gets no gradient of its own.

    Attributes:
        frozen: the untrained student.
        heads: one a block, by the block's place among `blocks`.
    """

    def __init__(self, frozen: Denoiser, places: Sequence[int], widths: Sequence[int]) -> None:
        """New heads.

        Args:
            frozen: in evaluation mode, without gradients.
            places: of the observed blocks among `parallel.blocks_of`.
            widths: of their features.
        """
        super().__init__()
        self.frozen: Any = frozen
        self.places = list(places)
        self.heads = nn.ModuleList(map(_new_head, widths))

    def forward(self, batch: Batch, run: Run) -> list[torch.Tensor]:
        """Logits (b, tokens) of each head: positive for images of the teacher's trajectories.

        Args:
            batch: with `noisy` and `timestep`.
            run: settings, and the family whose network it is.
        """
        blocks = parallel.blocks_of(self.frozen)
        with _observing([blocks[place] for place in self.places]) as features:
            predict(self.frozen, batch, run)
        seen = (features[blocks[place]] for place in self.places)
        return [
            head(_tokens(feature)).squeeze(-1)
            for head, feature in zip(self.heads, seen, strict=True)
        ]


def new_heads(student: Path, settings: Adversarial, run: Run) -> Companion:
    """Heads that know nothing yet.

    Args:
        student: folder of the untrained one.
        settings: of the configuration.
        run: with the dataset, of which one item is passed to find the features' widths.

    Raises:
        ValueError: the network has no blocks to look at.
    """
    frozen = load_denoiser(student, torch_dtype(run.training.dtype))
    frozen = frozen.requires_grad_(False).to(run.device).eval()
    blocks = parallel.blocks_of(frozen)
    if not blocks:
        raise ValueError(
            "training.adversarial is set and the student's network names no blocks whose features "
            "heads could look at: use another finish"
        )
    sample = rows(run.dataset.__getitems__([0]), slice(1)).to(run.device)
    dtype = torch_dtype(run.training.dtype)
    with inspecting(frozen, run.device, dtype), _observing(blocks) as features:
        predict(frozen, sample, run)
    ran = list(features)  # in the order in which they did
    chosen = dict.fromkeys(ran[round(depth * (len(ran) - 1))] for depth in DEPTHS)
    widths = [_tokens(features[block]).shape[-1] for block in chosen]
    with torch.random.fork_rng([]):  # made on the CPU
        torch.manual_seed(update_seed(run, 0, "heads"))
        network = Heads(frozen, [blocks.index(block) for block in chosen], widths)
    network.to(run.device)
    optimizer = torch.optim.Adam(
        trainable_of(network).values(), lr=settings.learning_rate, betas=BETAS
    )
    make_moments(optimizer)
    return Companion("heads", network, optimizer, torch.zeros(2, device=run.device))


def judge(drawing: Drawing, heads: Companion, settings: Adversarial, run: Run) -> torch.Tensor:
    """The directions (b, *latent) float32 in which what was drawn passes less; then heads learn.

    Args:
        drawing: of this process; maybe of nothing.
        heads: that have learned from earlier ones.
        settings: of the configuration.
        run: with the dataset.
    """
    seeds, shares = drawing.seeds(run, "adversarial"), level_shares(run)
    steps = [_pick(shares, seed >> 32) for seed in seeds]
    reals = run.dataset.clean_ends(drawing.batch.items).to(run.device)
    waits = drawing.samples_seen < run.training.finish_begins + settings.warmup_samples

    def push(size: int) -> torch.Tensor:
        """The gradient of the student's loss in what it has drawn."""
        gradients: list[torch.Tensor] = []
        for start in range(0, len(steps), size):
            part = slice(start, start + size)
            ends = drawing.ends[part].detach().requires_grad_(True)
            batch = rows(drawing.batch, part)
            noised = add_noise_to(ends, batch, steps[part], seeds[part], run).batch
            loss = _mean(F.softplus(-logits) for logits in heads.network(noised, run)).sum()
            gradients += torch.autograd.grad(loss, ends)
        return torch.cat([torch.zeros_like(drawing.ends[:0]), *gradients])

    direction = torch.zeros_like(drawing.ends)
    if not waits:
        # The batch's loss takes the mean over a sample's elements.
        scale = settings.weight * direction[:1].numel()
        direction = scale * with_what_fits(push, drawing.size, run.device)
    run.watchdog.heartbeat("update of the heads", joint=True)
    _learn(drawing, heads, reals, steps, seeds, settings, run)
    return direction


def _learn(
    drawing: Drawing,
    heads: Companion,
    reals: torch.Tensor,
    steps: list[int],
    seeds: list[int],
    settings: Adversarial,
    run: Run,
) -> None:
    """One update of the heads: the trajectories' images against the student's, at the same noise
    and level; and, as further false ones, true images under the prompts of others."""
    wrong = drawing.batch
    if wrong.items:
        others = run.dataset.other_conditioning(wrong.items, seeds)
        others = {name: value.to(run.device) for name, value in others.items()}
        wrong = replace(wrong, conditioning=others)
    jitter = [update_seed(run, drawing.samples_seen, f"jitter\n{seed}") for seed in seeds]
    false = add_noise_to(drawing.ends, drawing.batch, steps, seeds, run).batch
    true, other = (
        add_noise_to(reals, of, steps, seeds, run).batch for of in (drawing.batch, wrong)
    )
    moved = replace(
        true,
        noisy=true.noisy
        + JITTER * add_noise_to(torch.zeros_like(reals), true, steps, jitter, run).noise,
    )

    def losses(size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        kinds = (parts_of(batch, size) for batch in (true, false, other, moved))
        for parts in zip(*kinds, strict=True):
            real, fake, misled, near = (heads.network(part, run) for part in parts)
            told = _mean(F.softplus(-logits) for logits in real)
            told = told + _mean(F.softplus(logits) for logits in (*fake, *misled))
            changes = zip(real, near, strict=True)
            change = _mean((one - beside).square() for one, beside in changes)
            yield told + settings.smoothness * change, told

    update(heads, losses, drawing, run)


def level_shares(run: Run) -> dict[int, float]:
    """How often each of the teacher's steps is a noise level of the heads: shares, of one.

    The noise's share u = sigma / (alpha + sigma) is logit-normal (Esser et al. 2024,
    arXiv:2403.03206, eq. 19), as far as the steps allow: each has the density at its u times half
    the distance to its neighbours.
    """
    grid = run.dataset.teacher_grid
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


@contextmanager
def _observing(blocks: Sequence[nn.Module]) -> Iterator[dict[nn.Module, torch.Tensor]]:
    """The image features that blocks give while a network runs, by block, in their order."""
    features: dict[nn.Module, torch.Tensor] = {}

    def keep(block: nn.Module, _: object, output: Any) -> None:
        # Blocks with a stream of text beside that of the image give the image's last.
        tensors = [output] if torch.is_tensor(output) else [it for it in output if it is not None]
        features[block] = tensors[-1]

    hooks = [block.register_forward_hook(keep) for block in blocks]
    try:
        yield features
    finally:
        for hook in hooks:
            hook.remove()


def _tokens(feature: torch.Tensor) -> torch.Tensor:
    """Features (b, n, width) or (b, width, ...) as tokens (b, n, width) in float32."""
    return (feature if feature.ndim == 3 else feature.flatten(2).transpose(1, 2)).float()


def _mean(values: Iterator[torch.Tensor]) -> torch.Tensor:
    """The mean over heads and tokens of values (b, tokens), (b,)."""
    return torch.stack([value.mean(dim=1) for value in values]).mean(dim=0)
