"""Measure on a small fixed grid whether the student still answers to its states and prompts.

A collapsed student often has a falling loss: it has learned the mean. What gives it away is that
its answers no longer differ. So a few states and a few prompts are crossed, every state with every
prompt, and the spread of the answers over each is held against the spread of the targets.
"""

import time
from dataclasses import dataclass
from typing import Self

import torch

from distillery.config.training import Training
from distillery.families.protocol import Denoiser
from distillery.families.text import on
from distillery.schedule import Schedule, as_prediction, from_prediction
from distillery.teacher.loading import torch_dtype
from distillery.training import parallel
from distillery.training.batch import Batch
from distillery.training.data import SegmentDataset
from distillery.training.objectives import sample_losses
from distillery.training.run import Run
from distillery.training.state import TrainingState
from distillery.training.update import inspecting, output_of
from distillery.training.watchers import Moment, Watcher
from distillery.training.watchers.alarms import (
    LOSS_ALARMS,
    VARIATION_ALARMS,
    WINDOW_SAMPLES,
    Alarm,
    Alarms,
    LossJudge,
    Variation,
    judge_variation,
)

NUM_VARIED, NUM_HELD = 4, 2
"""States or prompts that are varied, and how many of the other kind they are crossed with."""


@dataclass(frozen=True)
class CollapseProbe:
    """The first and the last states of n trajectories, with their prompts and targets.

    Where noise turns into a composition the prompt must count; where the composition is there the
    state must. (The first prediction hardly depends on its noise with any student: it is near the
    mean of all images of the prompt.)

    Attributes:
        first, last: n items of the first and of the last segment, on the CPU.
    """

    first: Batch
    last: Batch

    @classmethod
    def of(cls, dataset: SegmentDataset) -> Self:
        """Trajectories spread evenly over the store, so that their prompts differ."""
        rows = dataset.measured(NUM_VARIED)
        first, last = (
            dataset.__getitems__([dataset.item(row, segment) for row in rows])
            for segment in (0, len(dataset.tasks) - 1)
        )
        return cls(first, last)

    def measure(self, denoiser: Denoiser, run: Run) -> Variation:
        """Predict both grids and compare their spread with that of the targets.

        Mode and weights of the network and PyTorch's random numbers stay as they were. The network
        must be whole: sharded ones exchange their parts in a forward pass.
        """
        dtype = torch_dtype(run.training.dtype)
        with inspecting(denoiser, run.device, dtype):
            over_prompts = crossed(denoiser, self.first, NUM_HELD, len(self.first.items), run)
            over_states = crossed(denoiser, self.last, len(self.last.items), NUM_HELD, run)
        dataset = run.dataset
        return Variation(
            state=state_variation(over_states, self.last, dataset),
            prompt=prompt_variation(over_prompts, self.first, dataset),
        )


def crossed(
    denoiser: Denoiser, batch: Batch, num_states: int, num_prompts: int, run: Run
) -> torch.Tensor:
    """The answers (n states, m prompts, *latent) in float32 on the CPU, for the batch's first ones.

    A call takes one state, so that hardly any memory is needed beside the training's.
    """
    dtype, device = torch_dtype(run.training.dtype), run.device
    num_prompts = min(num_prompts, len(batch.items))
    first = {name: value[:num_prompts] for name, value in batch.conditioning.items()}
    conditioning = on(first, device, dtype)

    def repeated(values: torch.Tensor, state: int) -> torch.Tensor:
        return _repeated(values, state, num_prompts).to(device)

    answers = [
        output_of(
            denoiser,
            repeated(batch.noisy, state),
            repeated(batch.timestep, state),
            None if batch.until is None else repeated(batch.until, state),
            conditioning,
            run.dataset.view(batch.items[0]).setting,
            run.dataset.family,
        )
        for state in range(min(num_states, len(batch.items)))
    ]
    return torch.stack(answers).float().cpu()


def _repeated(values: torch.Tensor, row: int, count: int) -> torch.Tensor:
    """One row of a batch, `count` times."""
    return values[row : row + 1].expand(count, *values.shape[1:])


def state_variation(grid: torch.Tensor, batch: Batch, dataset: SegmentDataset) -> float | None:
    """The spread of the answers over states, as a share of the targets' spread; None if that is 0.

    It is taken of the predictions as they are, and of the clean images that they imply. A network
    whose output is constant shows in the first; one that answers the same image to every state
    shows in the second, since a flow's output still varies with the noise. The smaller one counts.

    Args:
        grid: (n states, m prompts, *latent) predictions.
        batch: the n items that the states and targets are of.
    """
    images = clean_of(grid, batch.noisy.unsqueeze(1), batch, dataset)
    targets = clean_of(batch.target, batch.noisy, batch, dataset)
    own = _ratio(spread(grid, 0), spread(batch.target, 0))
    implied = _ratio(spread(images, 0), spread(targets, 0))
    return None if own is None or implied is None else min(own, implied)


def prompt_variation(grid: torch.Tensor, batch: Batch, dataset: SegmentDataset) -> float | None:
    """The spread of the clean images over prompts, as a share of that of the targets' images.

    None where there is one prompt, or where the targets' images do not vary.

    Args:
        grid: (n states, m prompts, *latent) predictions.
        batch: at least m items; the states are of the first n.
    """
    if len({dataset.sample(item).prompt_id for item in batch.items}) == 1:
        return None
    images = clean_of(grid, batch.noisy[: len(grid)].unsqueeze(1), batch, dataset)
    targets = clean_of(batch.target, batch.noisy, batch, dataset)
    return _ratio(spread(images, 1), spread(targets, 0))


def _ratio(answers: float, targets: float) -> float | None:
    """One spread as a share of the other; None where the other is 0."""
    return answers / targets if targets else None


def clean_of(
    prediction: torch.Tensor, noisy: torch.Tensor, batch: Batch, dataset: SegmentDataset
) -> torch.Tensor:
    """The clean images that predictions at states imply; all items are of one segment."""
    knot = dataset.tasks[int(batch.segment[0])].knot
    alpha, sigma = _levels(dataset.view(batch.items[0]).grid, knot)
    kind = dataset.recipe.prediction_type
    return from_prediction(kind, prediction, noisy, alpha, sigma)[0]


def _levels(grid: Schedule, knot: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(grid.alphas[knot]), torch.tensor(grid.sigmas[knot])


def spread(values: torch.Tensor, dim: int) -> float:
    """The variance along one dimension, averaged over all others; 0 for a single value."""
    return float(values.double().var(dim=dim, correction=0).mean())


def constant_baseline_losses(dataset: SegmentDataset, training: Training) -> list[float]:
    """By segment, the loss of the constant-output baseline: the better of two such students.

    One has a constant output, the mean of the targets; the other always answers the same image,
    the mean of the targets' clean images. A student that does not do better has learned nothing
    of a segment but its mean, as it does from targets that belong to other noise or other prompts.
    """
    rows = dataset.measured()
    baselines = []
    for segment, task in enumerate(dataset.tasks):
        # One by one: the prompts, which are not needed here, can be large.
        items = [dataset.__getitems__([dataset.item(row, segment)]) for row in rows]
        target = torch.cat([item.target for item in items])
        noisy = torch.cat([item.noisy for item in items])
        answers = (
            _same_image(target, noisy, items[0].items[0], task.knot, dataset),
            target.mean(0, keepdim=True).expand_as(target),
        )
        losses = (
            sample_losses(answer, target, training.loss, training.huber_width).mean()
            for answer in answers
        )
        baselines.append(min(map(float, losses)))
    return baselines


def _same_image(
    target: torch.Tensor, noisy: torch.Tensor, item: int, knot: int, dataset: SegmentDataset
) -> torch.Tensor:
    """Predictions (b, *latent) at an item's states (b, *latent) at a knot that all imply the
    targets' mean image."""
    kind = dataset.recipe.prediction_type
    alpha, sigma = _levels(dataset.view(item).grid, knot)
    clean, _ = from_prediction(kind, target, noisy, alpha, sigma)
    same = clean.mean(0, keepdim=True).expand_as(clean)
    return as_prediction(kind, same, (noisy - alpha * same) / sigma, alpha, sigma)


MAX_SHARE = 0.01
"""Of the training's time that probes may take; the first and the last are always made."""


class AlarmWatcher(Watcher):
    """Judges losses at every row, and the student's answers as often as `MAX_SHARE` allows."""

    def __init__(self, state: TrainingState, run: Run) -> None:
        """Reads some items of the store; a sharded student is not probed.

        Its forward passes exchange weights, so all processes would have to take part.
        """
        self._state, self._run = state, run
        self._alarms = Alarms(run.reporter, run.recipe_hash)
        training = run.training
        baseline = constant_baseline_losses(run.dataset, training)
        self._judge = LossJudge(
            baseline, training.log_every_samples, training.num_samples, training.restarts
        )
        self._num_judged = 0
        self._enough = min(training.log_every_samples, WINDOW_SAMPLES * len(baseline))
        self._probe = None if parallel.is_sharded(state.denoiser) else CollapseProbe.of(run.dataset)
        self._begin_s, self._spent_s = time.perf_counter(), 0.0

    def measure(self, moment: Moment) -> None:
        """A row's alarms and variation."""
        if not moment.is_row:
            return
        alarms, variation = self.look()
        moment.texts += [alarm.text for alarm in alarms]
        if variation is not None:
            over = {"states": variation.state, "prompts": variation.prompt}
            moment.points |= {
                f"variation/over_{name}": value for name, value in over.items() if value is not None
            }

    def look(self) -> tuple[list[Alarm], Variation | None]:
        """Judge the last row: alarms that begin to ring, and the variation if it was measured."""
        seen = self._state.samples_seen
        new = self._look_at_losses()
        variation = self._measure(is_last=seen == self._run.training.num_samples)
        if variation is not None:
            new += self._alarms.tell(VARIATION_ALARMS, judge_variation(variation), seen)
        return new, variation

    def _look_at_losses(self) -> list[Alarm]:
        """Judge the last row, unless it is the training's last and of too few samples.

        A resumed training's rows are taken in with its first new one.
        """
        history = self._state.history
        for row in history[self._num_judged :]:
            self._judge.add(row)
        self._num_judged = len(history)
        begin = history[-2]["samples_seen"] if len(history) > 1 else 0
        if history[-1]["samples_seen"] - begin < self._enough:
            return []
        return self._alarms.tell(LOSS_ALARMS, self._judge.judge(), self._state.samples_seen)

    def _measure(self, is_last: bool) -> Variation | None:
        """The variation, if a probe may be made now."""
        begin_s = time.perf_counter()
        may = is_last or self._spent_s <= MAX_SHARE * (begin_s - self._begin_s)
        if self._probe is None or not may:
            return None
        variation = self._probe.measure(self._state.denoiser, self._run)
        self._spent_s += time.perf_counter() - begin_s
        return variation
