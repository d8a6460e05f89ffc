"""Trajectories that a training does not learn from, and its loss on them.

The loss of what is learned falls for ever. That of prompts which are never learned from stops
falling where the student begins to learn the trajectories by heart: there more of them would help,
and more updates would not.
"""

from collections.abc import Sequence

import torch

from distillery.teacher.loading import torch_dtype
from distillery.training import distributed
from distillery.training.data import spread_evenly
from distillery.training.health import START_LIMIT_S
from distillery.training.objectives import sample_losses
from distillery.training.run import Run
from distillery.training.update import TrainingState, inspecting, predict

MAX_ITEMS = 256
"""Segments that one measurement looks at."""
NUM_POINTS = 20
"""Measurements of a training, about; with MAX_ITEMS segments each they cost what 1,700 samples of
training do."""


class HeldOut:
    """Measures the loss of what is held out, in some of the rows of the history."""

    def __init__(self, state: TrainingState, run: Run) -> None:
        """What this process measures, padded to as much as the others', and what of it counts."""
        self._state, self._run = state, run
        world_size, rank = run.ranks.world_size, run.ranks.rank
        items = items_of(run.batches.split.held_out, run.dataset.steps)
        padded = items + items[:1] * (-len(items) % world_size)
        self._items = padded[rank::world_size]
        self._counts = torch.tensor([place < len(items) for place in range(len(padded))])
        self._counts = self._counts[rank::world_size].to(run.device)
        self._rows_between = -(-num_rows(run) // NUM_POINTS)

    @property
    def is_due(self) -> bool:
        """Whether the last update ended a row that has it; alike on all ranks."""
        seen, training = self._state.samples_seen, self._run.training
        number, beside = divmod(seen, training.log_every_samples)
        is_row = beside == 0 and number % self._rows_between == 0
        return bool(self._items) and (is_row or seen == training.num_samples)

    def measure_if_due(self, size: int) -> float | None:
        """The mean loss of all segments that are held out, of the weights as they are; all ranks.

        Args:
            size: samples that the student may take at once.
        """
        if not self.is_due:
            return None
        run, training = self._run, self._run.training
        run.watchdog.heartbeat("held-out loss", joint=True, limit_s=START_LIMIT_S)
        losses = []
        with inspecting(self._state.denoiser, run.device, torch_dtype(training.dtype)):
            for start in range(0, len(self._items), size):
                part = run.dataset.__getitems__(self._items[start : start + size]).to(run.device)
                output = predict(self._state.denoiser, part, run)
                losses.append(
                    sample_losses(output, part.target, training.loss, training.huber_width)
                )
        kept = torch.cat(losses).double()[self._counts]
        sums = torch.stack([kept.sum(), kept.new_tensor(float(len(kept)))])
        run.watchdog.heartbeat("held-out loss of all ranks", waits=True, limit_s=START_LIMIT_S)
        total, count = distributed.all_reduce(sums).tolist()
        run.watchdog.heartbeat("log, checkpoint or next batch")
        return float(total / count)


def items_of(trajectories: Sequence[int], steps: int) -> list[int]:
    """All segments of as many of the trajectories as `MAX_ITEMS` allows."""
    count = max(MAX_ITEMS // steps, 1)
    chosen = [trajectories[place] for place in spread_evenly(len(trajectories), count)]
    return [trajectory * steps + segment for trajectory in chosen for segment in range(steps)]


def num_rows(run: Run) -> int:
    """Of the whole training's history."""
    return -(-run.training.num_samples // run.training.log_every_samples)
