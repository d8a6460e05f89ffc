"""Trajectories that a training does not learn from: its loss on them, and how far the student's own
steps lead away.

The loss of what is learned falls for ever. That of prompts which are never learned from stops
falling where the student begins to learn the trajectories by heart: there more of them would help,
and more updates would not. The loss asks for a step from the teacher's states. The errors at the
knots are of the student's own walk from the noise: they grow along it where its steps add up their
errors, which rounds and rollouts are for.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from distillery.teacher.loading import torch_dtype
from distillery.training import distributed
from distillery.training.data import spread_evenly
from distillery.training.health import START_LIMIT_S
from distillery.training.objectives import sample_losses, walk
from distillery.training.run import Run
from distillery.training.state import TrainingState
from distillery.training.update import inspecting, predict, student_of
from distillery.training.watchers import Moment, Watcher
from distillery.training.watchers.alarms import HELD_OUT, KNOT

MAX_SEGMENTS = 256
"""That one measurement looks at; as many steps of walks come on top."""
NUM_POINTS = 20
"""Measurements of a training, about; together they cost what 3,400 samples of training do."""
Stored = TypeVar("Stored")


class HeldOut(Watcher):
    """Measures what is held out, for some rows of the history."""

    def __init__(self, state: TrainingState, run: Run) -> None:
        """What this process measures, padded to as much as the others', and what of it counts."""
        self._state, self._run = state, run
        world_size, rank = run.ranks.world_size, run.ranks.rank
        held_out = run.batches.split.held_out
        wanted = spread_evenly(len(held_out), max(MAX_SEGMENTS // len(run.dataset.tasks), 1))
        self._of_one_size: list[list[int]] = []
        counts = []
        for alike in run.dataset.of_one_size:
            chosen = [held_out[place] for place in wanted if held_out[place] in alike]
            padded = chosen + chosen[:1] * (-len(chosen) % world_size)
            self._of_one_size.append(padded[rank::world_size])
            counts.append((torch.arange(len(padded)) < len(chosen))[rank::world_size])
        self.trajectories = [number for alike in self._of_one_size for number in alike]
        self._counts = torch.cat(counts).to(run.device)
        num_rows = -(-run.training.num_samples // run.training.log_every_samples)
        self._rows_between = -(-num_rows // NUM_POINTS)

    def measure(self, moment: Moment) -> None:
        """Add columns to some rows, of the weights as they are.

        `held_out_loss` is the mean loss of all segments; `held_out_error_knot_k` the mean square
        between the student's own state after k steps and the teacher's there.
        """
        number, beside = divmod(moment.seen, moment.training.log_every_samples)
        is_due = moment.is_last or (beside == 0 and number % self._rows_between == 0)
        if self.trajectories and is_due:
            moment.row |= self._columns(moment.size)

    def _columns(self, size: int) -> dict[str, float]:
        """All ranks measure, `size` samples at once."""
        run = self._run
        run.watchdog.heartbeat("what is held out", joint=True, limit_s=START_LIMIT_S)
        with inspecting(self._state.denoiser, run.device, torch_dtype(run.training.dtype)):
            measured = torch.cat(list(self._measure(size)))
        kept = measured[self._counts]
        sums = torch.cat([kept.sum(dim=0), kept.new_tensor([float(len(kept))])])
        run.watchdog.heartbeat("what others hold out", waits=True, limit_s=START_LIMIT_S)
        *totals, count = distributed.all_reduce(sums).tolist()
        run.watchdog.heartbeat("log, checkpoint or next batch")
        names = [HELD_OUT, *(f"{KNOT}{knot}" for knot in range(1, run.dataset.steps + 1))]
        return {name: total / count for name, total in zip(names, totals, strict=True)}

    def _measure(self, size: int) -> Iterator[torch.Tensor]:
        """Of each trajectory its segments' mean loss and its errors, (b, 1 + steps) float64."""
        parts = [
            alike[start : start + size]
            for alike in self._of_one_size
            for start in range(0, len(alike), size)
        ]
        for part in parts:
            dataset = self._run.dataset
            losses = [self._losses(part, segment) for segment in range(len(dataset.tasks))]
            # Each as often as it is learned from, so that the two losses can be compared.
            losses = [losses[segment] for segment in dataset.places]
            columns = [torch.stack(losses).mean(dim=0), *self._errors(part)]
            yield torch.stack(columns, dim=1)

    def _losses(self, trajectories: Sequence[int], segment: int) -> torch.Tensor:
        """Of one segment of each trajectory, (b,) float64."""
        run, training = self._run, self._run.training
        items = [run.dataset.item(trajectory, segment) for trajectory in trajectories]
        batch = _read(run.dataset.__getitems__, items).to(run.device)
        output = predict(self._state.denoiser, batch, run)
        return sample_losses(output, batch.target, training.loss, training.huber_width).double()

    def _errors(self, trajectories: Sequence[int]) -> Iterator[torch.Tensor]:
        """Of the student's own walks, (b,) float64 at each knot but the noise."""
        run, dataset = self._run, self._run.dataset
        items = [dataset.first_rollout + trajectory for trajectory in trajectories]
        batch = _read(dataset.__getitems__, items).to(run.device)
        teachers = _read(dataset.states_at_knots, trajectories).to(run.device)
        student = student_of(self._state.denoiser, batch, run)
        grid = dataset.view(items[0]).grid
        states = walk(student, batch.noisy, grid, dataset.recipe.prediction_type)
        for knot, state in enumerate(states, 1):
            difference = state.double() - teachers[:, knot]
            yield difference.square().flatten(1).mean(dim=1)


def _read(stored: Callable[[list[int]], Stored], numbers: Sequence[int]) -> Stored:
    """Read from the stores as outside a measurement: autocast to bfloat16 stacks no float16."""
    with torch.autocast("cpu", enabled=False):
        return stored(list(numbers))
