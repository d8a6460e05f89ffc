"""What the student draws: the images on which its steps end, and noise on them once more.

All random numbers are functions of the run's seed, the update and the item, so that they do not
depend on which process has an item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from distillery import noise
from distillery.schedule import add_noise
from distillery.teacher.loading import torch_dtype
from distillery.training import distributed, parallel
from distillery.training.batch import Batch, at_knots, rows, split
from distillery.training.state import Companion, TrainingState
from distillery.training.update import inspecting, predict, roll_out_student

if TYPE_CHECKING:  # a run is made from ways to learn, which need these functions
    from distillery.training.run import Run
    from distillery.training.ways.way import Way

Result = TypeVar("Result")


@dataclass(frozen=True)
class Drawing:
    """The samples of a process whose step ends on an image.

    Attributes:
        rows: of the batch that they are.
        batch: of them, on the device; maybe of none.
        ends: (b, *latent) float32, where the student's steps end: clean latents, or states where
            `Way.directs_all`.
        samples_seen: before the update.
        size: samples that a network may take at once.
        count: of such samples in an update in the mean, over all processes. What is learned is
            divided by it, and so does not depend on the processes.
    """

    rows: list[int]
    batch: Batch
    ends: torch.Tensor
    samples_seen: int
    size: int
    count: float

    def seeds(self, run: Run, purpose: str) -> list[int]:
        """A number of each sample in this update, for a purpose."""
        return [
            update_seed(run, self.samples_seen, f"{purpose}\n{item}") for item in self.batch.items
        ]


def draw(batch: Batch, state: TrainingState, size: int, way: Way[Any], run: Run) -> Drawing:
    """Let the student draw, without gradients, what of a batch ends on an image.

    Args:
        batch: of one update, with its targets.
        size: samples that it may take at once.
        way: whose companion looks at what is drawn.
    """
    last = run.dataset.steps - 1 + batch.is_rollout
    chosen = [
        row for row, step in enumerate(batch.segment.tolist()) if step == last or way.directs_all
    ]
    run.watchdog.heartbeat("images that the student draws", joint=True)
    sharded = parallel.is_sharded(state.denoiser)
    whole = (batch if sharded else rows(batch, chosen)).to(run.device)

    def end(part: Batch) -> torch.Tensor:
        if part.is_rollout:
            return roll_out_student(state.denoiser, part, run)
        return way.drawn(predict(state.denoiser, part, run), part, run)

    with inspecting(state.denoiser, run.device, torch_dtype(run.training.dtype)):
        if sharded:  # all processes compute together, equally often
            num_parts = min(-(-run.batches.largest_local_batch // size), len(batch.items))
            ends = torch.cat([end(part) for part in split(whole, num_parts)])[chosen]
            whole = rows(whole, chosen)
        else:
            ends = in_parts(end, whole, size)
    seldom = not (batch.is_rollout or way.directs_all)
    count = run.training.global_batch_size / (run.dataset.steps if seldom else 1)
    return Drawing(chosen, whole, ends, state.samples_seen, size, count)


@dataclass(frozen=True)
class Noised:
    """Clean latents with noise added.

    Attributes:
        batch: with `noisy` (b, *latent) as networks see it, and `timestep`.
        noise: (b, *latent) float32, that was added.
        steps: b of the teacher's, whose noise levels these are.
        alpha, sigma: of them, shaped to multiply latents.
    """

    batch: Batch
    noise: torch.Tensor
    steps: list[int]
    alpha: torch.Tensor
    sigma: torch.Tensor


def add_noise_to(
    clean: torch.Tensor, batch: Batch, steps: list[int], seeds: Sequence[int], run: Run
) -> Noised:
    """Noise of the teacher's levels on clean latents.

    Args:
        steps: b of the teacher's.
        seeds: b, of the noise.
    """
    grid = run.dataset.usual.teacher_grid
    drawn = noise.draw_noise(seeds, run.dataset.recipe.latent_shape).to(clean.device)
    knots = torch.tensor(steps, dtype=torch.int64)
    alpha, sigma = (at_knots(values, knots, clean) for values in (grid.alphas, grid.sigmas))
    timestep = torch.tensor(grid.timesteps)[knots]
    noisy = add_noise(clean, drawn, alpha, sigma)
    noised = replace(batch, noisy=noisy, timestep=timestep.to(clean.device))
    return Noised(noised, drawn, steps, alpha, sigma)


def steps_with_an_image(run: Run) -> range:
    """All steps of the teacher but the first, whose state is noise alone."""
    steps = run.dataset.recipe.steps
    return range(min(1, steps - 1), steps)


def update_seed(run: Run, samples_seen: int, purpose: str) -> int:
    """63 bits of SHA-256, by the run's seed, the update and a purpose."""
    return noise.seed_of(f"drawing\n{run.recipe.seed}\n{samples_seen}\n{purpose}")


def parts_of(batch: Batch, size: int) -> Iterator[Batch]:
    """A batch in parts of at most `size` samples."""
    for start in range(0, len(batch.items), size):
        yield rows(batch, slice(start, start + size))


def in_parts(compute: Callable[[Batch], torch.Tensor], batch: Batch, size: int) -> torch.Tensor:
    """What a network gives for a batch, (b, *latent), computed in parts."""
    parts = [compute(part) for part in parts_of(batch, size)]
    return torch.cat([torch.empty_like(batch.noisy[:0]), *parts])


def with_what_fits(work: Callable[[int], Result], size: int, device: torch.device) -> Result:
    """Do something in parts of `size` samples, or of fewer where memory does not suffice.

    It is begun anew with half the size, by this process alone: no other may wait meanwhile.
    Raises torch.OutOfMemoryError where one sample does not fit.
    """
    while True:
        try:
            return work(size)
        except torch.OutOfMemoryError:
            if size == 1:
                raise
        size = -(-size // 2)
        if device.type == "cuda":
            torch.cuda.empty_cache()


Losses = Callable[[int], Iterator[tuple[torch.Tensor, torch.Tensor]]]
"""For parts of at most so many samples: what is to fall, and what the history shows, each (b,)."""


def update(
    companion: Companion,
    losses: Losses,
    drawing: Drawing,
    run: Run,
    max_grad_norm: float | None = None,
) -> None:
    """One update of what learns beside the student.

    Gradients are summed over all processes without DDP, for one that drew nothing has none.

    Args:
        losses: of what was drawn; begun anew with smaller parts where memory does not suffice.
        max_grad_norm: to which the gradient is clipped; None: to none.
    """

    def accumulate(size: int) -> torch.Tensor:
        companion.optimizer.zero_grad(set_to_none=True)
        shown = torch.zeros((), device=run.device)
        for falling_b, shown_b in losses(size):
            (falling_b.sum() / drawing.count).backward()  # type: ignore[no-untyped-call]
            shown += shown_b.detach().sum()
        return torch.stack([shown, torch.full_like(shown, len(drawing.rows))])

    shown = with_what_fits(accumulate, drawing.size, run.device)
    parameters = list(companion.trainable.values())
    run.watchdog.heartbeat(f"gradients of the {companion.name}", waits=True)
    parallel.sum_gradients(parameters)
    companion.losses = distributed.all_reduce(shown)
    if max_grad_norm is not None:
        parallel.clip_gradients(parameters, max_grad_norm)
    companion.optimizer.step()
    companion.optimizer.zero_grad(set_to_none=True)
