"""Distribution matching: the student's images as a whole are drawn towards the teacher's.

Targets say where one trajectory ends. Here a second copy of the student learns to denoise what the
student draws, and so knows the student's distribution as the guided teacher knows its own. Noise is
added to what the student has drawn, both say what they see in it, and the difference is the
direction in which the student's distribution must move (Yin et al. 2024, arXiv:2311.18828, eq. 7;
the copy's several updates for one of the student's: arXiv:2405.14867, section 4.2). It acts where a
step ends on an image: at the last step of online targets, and on rollouts.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from distillery.noise import draw_noise
from distillery.schedule import Schedule, add_noise, as_prediction, from_prediction
from distillery.teacher.loading import torch_dtype
from distillery.training import distributed, parallel
from distillery.training.data import Batch, rows
from distillery.training.objectives import sample_losses
from distillery.training.parallel import set_checkpointing, uses_checkpointing
from distillery.training.run import Run
from distillery.training.update import (
    TrainingState,
    end_of_last_step,
    inspecting,
    predict,
    roll_out_student,
)

NUM_LEVELS = 4
"""Noise levels of an update at which the teacher looks: a stock call has one for all its states."""


@dataclass(frozen=True)
class Noised:
    """What was drawn, with noise added.

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


def add_directions(batch: Batch, state: TrainingState, size: int, run: Run) -> Batch:
    """This rank's batch with directions, if its samples have any; meanwhile the copy learns.

    Args:
        batch: of one update, with its targets.
        state: whose student draws; its weights stay, those of the copy change.
        size: samples that a network may take at once.
        run: settings and device.
    """
    settings = run.training.distribution_matching
    draws = batch.is_online or batch.is_rollout
    if settings is None or state.copy is None or not draws:
        return batch
    last = run.dataset.steps - 1 + batch.is_rollout
    drawing = [row for row, step in enumerate(batch.segment.tolist()) if step == last]
    part = rows(batch, drawing).to(run.device)
    run.watchdog.heartbeat("images that the student draws", joint=True)
    drawn = _draw(part, state, size, run)
    set_checkpointing(state.copy.denoiser, uses_checkpointing(state.denoiser))
    direction = torch.zeros_like(batch.noisy)
    direction[drawing] = settings.weight * _directions(part, drawn, state, size, run).cpu()
    for number in range(settings.updates):
        run.watchdog.heartbeat(f"update {number + 1} of the copy", joint=True)
        _learn(part, drawn, number, state, size, run)
    return replace(batch, direction=direction)


def _draw(part: Batch, state: TrainingState, size: int, run: Run) -> torch.Tensor:
    """The clean latents (b, *latent) float32 where the student's steps end."""

    def draw(some: Batch) -> torch.Tensor:
        if some.is_rollout:
            return roll_out_student(state.denoiser, some, run)
        return end_of_last_step(predict(state.denoiser, some, run), some.noisy, run)

    with inspecting(state.denoiser, run.device, torch_dtype(run.training.dtype)):
        return _in_parts(draw, part, size)


def _directions(
    part: Batch, drawn: torch.Tensor, state: TrainingState, size: int, run: Run
) -> torch.Tensor:
    """(b, *latent) float32: what the copy sees less what the teacher sees, in units of the mean
    distance of what was drawn to the latter."""
    assert state.copy is not None
    copy, kind = state.copy.denoiser, run.dataset.recipe.prediction_type
    levels = _levels_of_update(state, run)
    noised = _noised(part, drawn, "direction", state, run, levels)
    seen = run.dataset.teachers_view(noised.batch.noisy, noised.steps, part.items)
    with inspecting(copy, run.device, torch_dtype(run.training.dtype)):
        prediction = _in_parts(lambda some: predict(copy, some, run), noised.batch, size).float()
    copied, _ = from_prediction(kind, prediction, noised.batch.noisy, noised.alpha, noised.sigma)
    distance = (drawn - seen).abs().flatten(1).mean(dim=1).clamp(min=torch.finfo().tiny)
    return (copied - seen) / distance.view(-1, *[1] * (drawn.ndim - 1))


def _learn(
    part: Batch, drawn: torch.Tensor, number: int, state: TrainingState, size: int, run: Run
) -> None:
    """One update of the copy, by the plain denoising loss on what the student has drawn.

    Its gradient is summed over all processes without DDP, for one that drew nothing has none.
    """
    copy = state.copy
    assert copy is not None
    noised = _noised(part, drawn, f"copy {number}", state, run, None)
    kind = run.dataset.recipe.prediction_type
    target = as_prediction(kind, drawn, noised.noise, noised.alpha, noised.sigma)
    whole = replace(noised.batch, target=target)
    # As many as an update has in the mean, so that the sum does not depend on the processes.
    count = run.training.global_batch_size / (1 if part.is_rollout else run.dataset.steps)
    copy.denoiser.train()
    total = torch.zeros((), device=run.device)
    for some in _parts(whole, size):
        loss = sample_losses(predict(copy.denoiser, some, run), some.target).sum() / count
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    parameters = list(copy.trainable.values())
    run.watchdog.heartbeat("gradients of the copy", waits=True)
    parallel.sum_gradients(parameters)
    copy.loss = distributed.all_reduce(total)
    parallel.clip_gradients(parameters, run.training.max_grad_norm)
    copy.optimizer.step()
    copy.optimizer.zero_grad(set_to_none=True)


def _noised(
    part: Batch,
    drawn: torch.Tensor,
    purpose: str,
    state: TrainingState,
    run: Run,
    levels: Sequence[int] | None,
) -> Noised:
    """Add to each sample the noise that is its own in this update, whichever process has it.

    Args:
        part: samples, b.
        drawn: (b, *latent) float32, their clean latents.
        purpose: of the noise; another has other noise.
        state: at an update.
        run: with the seed.
        levels: the teacher's steps to choose from; None: all but the first.
    """
    recipe, grid = run.dataset.recipe, run.dataset.teacher_grid
    chosen_from = levels or _steps_with_an_image(recipe.steps)
    seeds = [_seed(run, state, f"{purpose}\n{item}") for item in part.items]
    steps = [chosen_from[(seed >> 32) % len(chosen_from)] for seed in seeds]
    noise = draw_noise(seeds, recipe.latent_shape).to(drawn.device)
    alpha, sigma = (_column(values, steps, drawn) for values in (grid.alphas, grid.sigmas))
    batch = replace(
        part,
        noisy=add_noise(drawn, noise, alpha, sigma),
        timestep=_timesteps(grid, steps).to(drawn.device),
    )
    return Noised(batch, noise, steps, alpha, sigma)


def _levels_of_update(state: TrainingState, run: Run) -> list[int]:
    """The teacher's steps at which it looks in this update, the same on all processes."""
    steps = _steps_with_an_image(run.dataset.recipe.steps)
    seeds = (_seed(run, state, f"level\n{number}") for number in range(NUM_LEVELS))
    return [steps[seed % len(steps)] for seed in seeds]


def _steps_with_an_image(teacher_steps: int) -> range:
    """All steps of a teacher but the first, whose state is noise alone."""
    return range(min(1, teacher_steps - 1), teacher_steps)


def _seed(run: Run, state: TrainingState, purpose: str) -> int:
    """63 bits of SHA-256, by the run's seed, the update and a purpose."""
    text = f"matching\n{run.recipe.seed}\n{state.samples_seen}\n{purpose}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def _column(values: Sequence[float], steps: list[int], like: torch.Tensor) -> torch.Tensor:
    """A grid's values at steps (b,), shaped to multiply latents (b, *latent), beside them."""
    column = torch.tensor([values[step] for step in steps], dtype=torch.float32)
    return column.view(-1, *[1] * (like.ndim - 1)).to(like.device)


def _timesteps(grid: Schedule, steps: list[int]) -> torch.Tensor:
    """What the network gets for steps (b,), in the type of the student's own."""
    return torch.tensor(grid.timesteps)[torch.tensor(steps, dtype=torch.int64)]


def _parts(batch: Batch, size: int) -> Iterator[Batch]:
    """A batch in parts of at most `size` samples."""
    for start in range(0, len(batch.items), size):
        yield rows(batch, slice(start, start + size))


def _in_parts(compute: Callable[[Batch], torch.Tensor], batch: Batch, size: int) -> torch.Tensor:
    """What a network gives for a batch, (b, *latent), computed in parts."""
    parts: Iterable[torch.Tensor] = [compute(part) for part in _parts(batch, size)]
    return torch.cat([torch.empty_like(batch.noisy[:0]), *parts])
