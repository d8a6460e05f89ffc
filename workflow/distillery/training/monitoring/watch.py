"""Rank 0's eye on a training: measures at each row of the loss history whether it collapses."""

import time

from distillery.training import parallel
from distillery.training.monitoring.alarms import (
    OF_LOSSES,
    OF_VARIATION,
    WINDOW_SAMPLES,
    Alarm,
    Alarms,
    LossJudge,
    Variation,
    judge_variation,
)
from distillery.training.monitoring.variation import Probe, ignorant_losses
from distillery.training.run import Run
from distillery.training.state import TrainingState

MAX_SHARE = 0.01
"""Of the training's time that probes may take; the first and the last are always made."""


class Watch:
    """Judges losses at every row, and the student's answers as often as `MAX_SHARE` allows."""

    def __init__(self, state: TrainingState, run: Run) -> None:
        """Reads some items of the store; a sharded student is not probed.

        Its forward passes exchange weights, so all processes would have to take part.
        """
        self._state, self._run = state, run
        self._alarms = Alarms(run.reporter, run.recipe_hash)
        training = run.training
        ignorant = ignorant_losses(run.dataset, training)
        self._judge = LossJudge(ignorant, training.log_every_samples, training.num_samples)
        self._num_judged = 0
        self._enough = min(training.log_every_samples, WINDOW_SAMPLES * len(ignorant))
        self._probe = None if parallel.is_sharded(state.denoiser) else Probe.of(run.dataset)
        self._begin_s, self._spent_s = time.perf_counter(), 0.0

    def look(self) -> tuple[list[Alarm], Variation | None]:
        """Judge the last row: alarms that begin to ring, and what a probe found if one was made."""
        seen = self._state.samples_seen
        new = self._look_at_losses()
        variation = self._measure(is_last=seen == self._run.training.num_samples)
        if variation is not None:
            new += self._alarms.tell(OF_VARIATION, judge_variation(variation), seen)
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
        return self._alarms.tell(OF_LOSSES, self._judge.judge(), self._state.samples_seen)

    def _measure(self, is_last: bool) -> Variation | None:
        """A probe, if it may be made now."""
        begin_s = time.perf_counter()
        may = is_last or self._spent_s <= MAX_SHARE * (begin_s - self._begin_s)
        if self._probe is None or not may:
            return None
        found = self._probe.measure(self._state.denoiser, self._run)
        self._spent_s += time.perf_counter() - begin_s
        return found
