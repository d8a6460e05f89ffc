"""The history: a row an interval for loss.parquet, with its stretch of telemetry and its line."""

import time
from collections.abc import Mapping
from math import nan
from typing import Any

import torch
from tqdm import tqdm

from distillery.files import GIB
from distillery.telemetry import ProgressBar, peak_memory_bytes
from distillery.training.run import Run
from distillery.training.state import TrainingState, Window, learning_rate_at
from distillery.training.watchers import Interval, Moment, Watcher
from distillery.training.watchers.alarms import COMPANIONS, HELD_OUT

MEMORY_RISE = 1.05
"""A rank other than 0 logs its peak memory when it has risen by this factor."""


class History(Watcher):
    """Collects updates to one row an interval; the bar and the row's line are rank 0's."""

    def __init__(self, state: TrainingState, run: Run) -> None:
        """Goes on with the state's window and history."""
        self._state, self._run = state, run
        self._bar = _bar(state, run)
        self._logged_bytes = 0
        self._open: Interval | None = None
        """Which has updates and no event yet."""

    def measure(self, moment: Moment) -> None:
        """Add an update; at the end of an interval one row, one event, one line."""
        totals, window, interval = moment.totals, self._state.window, moment.interval
        assert totals is not None
        window.losses = [a + b for a, b in zip(window.losses, totals.losses, strict=True)]
        window.counts = [a + b for a, b in zip(window.counts, totals.counts, strict=True)]
        window.grad_norm += totals.grad_norm
        window.companion_loss += totals.companion_loss
        window.companion_count += totals.companion_count
        window.num_updates += 1
        interval.num_mine += moment.num_mine
        interval.waiting_s += moment.waiting_s
        interval.num_all += moment.training.global_batch_size
        self._open = interval
        self._bar.update(moment.training.global_batch_size)
        if moment.is_row:
            self._add_row(moment)

    def close(self, wait: bool) -> None:
        """Report the rest."""
        self._emit()
        self._bar.close()

    def _add_row(self, moment: Moment) -> None:
        """From the window, before the columns that the row has already."""
        state, training = self._state, moment.training
        own = row_of(
            state.window,
            moment.seen,
            learning_rate_at(moment.seen - training.global_batch_size, training),
            has_rollouts=training.walks_whole,
            companion=state.companion.name if state.companion else None,
        )
        moment.row = own | moment.row
        state.history.append(moment.row)
        state.window = Window.empty(len(state.window.losses))
        memory = peak_memory_bytes(self._run.device)
        self._emit(loss=own["loss"])
        interval = moment.interval
        seconds = max(time.time() - interval.begin_s - interval.drawing_s, 1e-9)
        speed = interval.num_all / seconds
        moment.points |= {"speed/samples_per_s": speed, "speed/peak_memory_gib": memory / GIB}
        self._tell(moment, speed, 100 * interval.waiting_s / seconds, memory)

    def _tell(self, moment: Moment, speed: float, waited: float, memory: int) -> None:
        """The row in a line of the log; of other ranks only memory that has risen."""
        row, reporter = moment.row, self._run.reporter
        if self._run.ranks.is_main:
            self._bar.set_postfix(loss=f"{row['loss']:.4f}")
            left = tqdm.format_interval((moment.training.num_samples - moment.seen) / speed)
            reporter.milestone(
                f"{moment.seen} samples, loss {row['loss']:.5f}, {of_others(row)}"
                f"gradient norm {row['grad_norm']:.3f}, learning rate {row['learning_rate']:.2e}, "
                f"{speed:.1f} samples/s, {left} left, waited {waited:.1f} % of the time for data, "
                f"{_memory(self._run.device)}"
            )
        elif memory > MEMORY_RISE * self._logged_bytes:
            self._logged_bytes = memory
            reporter.info(f"after {moment.seen} samples {_memory(self._run.device)}")

    def _emit(self, **facts: Any) -> None:
        """One stretch of the timeline, with this process's memory, of an interval with updates."""
        run, interval, self._open = self._run, self._open, None
        if interval is None or not interval.num_mine:
            return
        facts |= {
            "recipe": run.recipe_hash,
            "samples_seen": self._state.samples_seen,
            "peak_memory_bytes": peak_memory_bytes(run.device),
            "waiting_s": interval.waiting_s,
            "drawing_s": interval.drawing_s,
        }
        run.reporter.emit("work", interval.begin_s, time.time(), interval.num_mine, **facts)


def _bar(state: TrainingState, run: Run) -> ProgressBar:
    """Rank 0's progress bar; its speed is this session's, whatever was done before."""
    bar = run.reporter.progress(run.training.num_samples, " samples", state.samples_seen)
    bar.disable = bar.disable or not run.ranks.is_main
    return bar


def row_of(
    window: Window,
    samples_seen: int,
    learning_rate: float,
    has_rollouts: bool,
    companion: str | None = None,
) -> dict[str, float]:
    """One row of loss.parquet: means over the interval that ends at `samples_seen`, unweighted.

    `grad_norm` is before clipping; `learning_rate` is the last update's; a segment without samples
    in the interval has no loss (NaN). The window's last column is `loss_rollout` if `has_rollouts`;
    `loss_copy` or `loss_heads` is that of a finish's companion, from where it begins.
    """
    by_segment = [
        loss / count if count else nan
        for loss, count in zip(window.losses, window.counts, strict=True)
    ]
    names = [f"loss_segment_{number}" for number in range(len(by_segment) - has_rollouts)]
    names += ["loss_rollout"] * has_rollouts
    more = {}
    if companion and window.companion_count:
        more[f"loss_{companion}"] = window.companion_loss / window.companion_count
    return {
        "samples_seen": samples_seen,
        "loss": sum(window.losses) / sum(window.counts),
        "grad_norm": window.grad_norm / window.num_updates,
        "learning_rate": learning_rate,
        **dict(zip(names, by_segment, strict=True)),
        **more,
    }


def of_others(row: Mapping[str, float]) -> str:
    """The loss of what is held out and of what learns beside the student, in words, if any."""
    held_out = f"held-out loss {row[HELD_OUT]:.5f}, " if HELD_OUT in row else ""
    return held_out + "".join(
        f"of the {name} {row[f'loss_{name}']:.4f}, " for name in COMPANIONS if f"loss_{name}" in row
    )


def _memory(device: torch.device) -> str:
    """This process's memory in words."""
    peak = f"peak memory {peak_memory_bytes(device) / GIB:.2f} GiB"
    if device.type != "cuda":
        return peak
    return f"{peak}, {torch.cuda.memory_allocated(device) / GIB:.2f} GiB allocated"
