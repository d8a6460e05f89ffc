"""What a training reports: rows of loss.parquet, telemetry, points of TensorBoard's curves."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from types import MappingProxyType, TracebackType
from typing import Any, Self

import torch
import yaml
from tqdm import tqdm

from distillery.telemetry import ProgressBar, peak_memory_bytes
from distillery.training.alarms import COMPANIONS, HELD_OUT
from distillery.training.board_previews import BoardPreviews
from distillery.training.health import SLOWER, START_LIMIT_S
from distillery.training.previews import LivePreviews
from distillery.training.run import PreviewPaths, Run
from distillery.training.state import TrainingState, Window, learning_rate_at
from distillery.training.tensorboard import TensorBoard, tags_of
from distillery.training.update import UpdateTotals
from distillery.training.variation import Watch
from distillery.words import counted

GIB = 1 << 30
LAST_IMAGES_S = 10.0
"""Beside the time that the images took here: what the last ones of other ranks are waited for."""
MEMORY_RISE = 1.05
"""A rank other than 0 logs its peak memory when it has risen by this factor."""


class ProgressLog:
    """Collects updates to one row an interval, and reports it; a context manager.

    Nothing that it does changes a weight, and no process waits for another in here. Its own failure
    is raised only where the training has none.
    """

    def __init__(self, state: TrainingState, run: Run, previews: PreviewPaths | None) -> None:
        """Bar, curves and alarms are rank 0's; every rank has its events and its previews."""
        self._state, self._run = state, run
        self._bar = _bar(state, run)
        self._previews = LivePreviews(state, run, previews)
        self._watch = Watch(state, run) if run.ranks.is_main else None
        self._board: TensorBoard | None = None
        self._shown: BoardPreviews | None = None
        if run.ranks.is_main:
            folder = run.reporter.path.parent / "tensorboard"
            if self._previews.share is not None:
                self._shown = BoardPreviews(self._previews.share, folder, state.samples_seen)
            self._board = TensorBoard(folder, state.samples_seen, run.reporter.warning)
            self._board.text("configuration", settings_of(run), state.samples_seen)
        self._interval = LogWindow(time.time())
        self._logged_bytes, self._drew_s = 0, 0.0

    def __enter__(self) -> Self:
        """The first interval begins."""
        self._interval = LogWindow(time.time())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """Report the rest; after an error of the training, only that one is raised."""
        try:
            self._close(wait=error is None)
        except Exception as second:
            if error is None:
                raise
            self._run.reporter.warning(f"the log of the training was not ended: {second!r}")

    def _close(self, wait: bool) -> None:
        """Report the rest, and close everything."""
        if self._interval.num_mine:
            self._emit()
        self._previews.close(wait=wait)
        if self._board is not None:
            if wait:
                self._show_last_previews(self._board)
            self._board.close()
        self._bar.close()

    def _show_last_previews(self, board: TensorBoard) -> None:
        """Those that no later row takes up; a stopped training leaves the rest to the next start.

        The student is trained and its checkpoint written, so rank 0 keeps nobody waiting here. A
        rank that draws for longer than this one did has failed to.
        """
        if self._shown is None:
            return
        is_finished = self._state.samples_seen == self._run.training.num_samples
        limit_s = LAST_IMAGES_S + SLOWER * self._drew_s if is_finished else 0.0
        self._run.watchdog.heartbeat("last previews of all ranks", limit_s=START_LIMIT_S + limit_s)
        if (missing := self._shown.show_last(board, limit_s)) and is_finished:
            self._run.reporter.warning(
                f"TensorBoard lacks {counted(missing, 'preview')} that no process had saved "
                f"{limit_s:.0f} s after the training's end"
            )

    def add(
        self,
        totals: UpdateTotals,
        num_mine: int,
        waiting_s: float,
        held_out: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Add one update; at the end of an interval add a row to the history and report.

        The training's end is one too, so no update is left out of the history.

        Args:
            totals: of all processes.
            num_mine: samples of this process.
            waiting_s: that this process waited for them.
            held_out: columns of the row that some intervals end with, see `HeldOut`.
        """
        window = self._state.window
        window.losses = [a + b for a, b in zip(window.losses, totals.losses, strict=True)]
        window.counts = [a + b for a, b in zip(window.counts, totals.counts, strict=True)]
        window.grad_norm += totals.grad_norm
        window.companion_loss += totals.companion_loss
        window.companion_count += totals.companion_count
        window.num_updates += 1
        self._interval.num_mine += num_mine
        self._interval.waiting_s += waiting_s
        seen, training = self._state.samples_seen, self._run.training
        self._interval.num_all += training.global_batch_size
        self._bar.update(training.global_batch_size)
        if seen % training.log_every_samples == 0 or seen == training.num_samples:
            self._close_interval(held_out)

    def _close_interval(self, held_out: Mapping[str, float]) -> None:
        """One row, one event, one line, one point of each curve."""
        state, training = self._state, self._run.training
        last_update = state.samples_seen - training.global_batch_size
        row = row_of(
            state.window,
            state.samples_seen,
            learning_rate_at(last_update, training),
            has_rollouts=training.walks_whole,
            companion=state.companion.name if state.companion else None,
        ) | dict(held_out)
        state.history.append(row)
        state.window = Window.empty(len(state.window.losses))
        interval, memory = self._interval, peak_memory_bytes(self._run.device)
        self._emit(loss=row["loss"])
        seconds = max(time.time() - interval.begin_s - interval.drawing_s, 1e-9)
        speed = interval.num_all / seconds
        if self._run.ranks.is_main:
            self._bar.set_postfix(loss=f"{row['loss']:.4f}")
            left = tqdm.format_interval((training.num_samples - state.samples_seen) / speed)
            waited = 100 * interval.waiting_s / seconds
            self._run.reporter.milestone(
                f"{state.samples_seen} samples, loss {row['loss']:.5f}, {of_others(row)}"
                f"gradient norm {row['grad_norm']:.3f}, learning rate {row['learning_rate']:.2e}, "
                f"{speed:.1f} samples/s, {left} left, waited {waited:.1f} % of the time for data, "
                f"{_memory(self._run.device)}"
            )
        elif memory > MEMORY_RISE * self._logged_bytes:
            self._logged_bytes = memory
            self._run.reporter.info(
                f"after {state.samples_seen} samples {_memory(self._run.device)}"
            )
        self._show(row, speed, memory)
        self._interval = LogWindow(time.time())

    def _show(self, row: dict[str, float], speed: float, memory: int) -> None:
        """The row and its judgement as points of TensorBoard's curves; rank 0."""
        if self._watch is None or self._board is None:
            return
        seen = self._state.samples_seen
        alarms, variation = self._watch.look()
        extra = {"speed/samples_per_s": speed, "speed/peak_memory_gib": memory / GIB}
        if variation is not None:
            over = {"states": variation.state, "prompts": variation.prompt}
            extra |= {f"variation/over_{name}": _or_nan(value) for name, value in over.items()}
        self._board.numbers(tags_of(row) | extra, seen)
        for alarm in alarms:
            self._board.text("alarms", alarm.text, seen)
        if self._shown is not None:
            self._shown.show(self._board)

    def draw(self) -> bool:
        """Draw previews, if this moment is to be shown; returns whether it is, alike on all ranks.

        A process that is asked to stop leaves the rest for the next start: see `LivePreviews`.
        """
        begin_s = time.time()
        self._previews.draw_if_due()
        if self._shown is not None and self._previews.is_due:
            self._shown.expect(self._state.samples_seen)
        self._drew_s = time.time() - begin_s
        self._interval.drawing_s += self._drew_s
        return self._previews.is_due

    def _emit(self, **facts: Any) -> None:
        """One stretch of the timeline, with this process's memory."""
        run, interval = self._run, self._interval
        facts |= {
            "recipe": run.recipe_hash,
            "samples_seen": self._state.samples_seen,
            "peak_memory_bytes": peak_memory_bytes(run.device),
            "waiting_s": interval.waiting_s,
            "drawing_s": interval.drawing_s,
        }
        run.reporter.emit("work", interval.begin_s, time.time(), interval.num_mine, **facts)


@dataclass
class LogWindow:
    """What this process did since the last row.

    Attributes:
        begin_s: Unix time.
        num_mine: samples.
        num_all: samples of all processes meanwhile.
        waiting_s: for data.
        drawing_s: on previews.
    """

    begin_s: float
    num_mine: int = 0
    num_all: int = 0
    waiting_s: float = 0.0
    drawing_s: float = 0.0


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


def settings_of(run: Run) -> str:
    """What a training's recipe holds, as Markdown with YAML in it."""
    return f"```yaml\n{yaml.safe_dump(run.recipe.to_json(), sort_keys=False)}```"


def of_others(row: Mapping[str, float]) -> str:
    """The loss of what is held out and of what learns beside the student, in words, if any."""
    held_out = f"held-out loss {row[HELD_OUT]:.5f}, " if HELD_OUT in row else ""
    return held_out + "".join(
        f"of the {name} {row[f'loss_{name}']:.4f}, " for name in COMPANIONS if f"loss_{name}" in row
    )


def _or_nan(value: float | None) -> float:
    """NaN for what was not to be measured: a curve has no point there."""
    return nan if value is None else value


def _memory(device: torch.device) -> str:
    """This process's memory in words."""
    peak = f"peak memory {peak_memory_bytes(device) / GIB:.2f} GiB"
    if device.type != "cuda":
        return peak
    return f"{peak}, {torch.cuda.memory_allocated(device) / GIB:.2f} GiB allocated"
