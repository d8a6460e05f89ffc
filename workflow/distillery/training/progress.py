"""What a training tells: rows of loss.parquet (no times), and telemetry (times)."""

import resource
import time
from dataclasses import dataclass
from math import nan
from types import TracebackType
from typing import Self

import torch

from distillery.config.training import Training
from distillery.telemetry import Reporter
from distillery.training.distributed import Place
from distillery.training.optimizer import learning_rate_at
from distillery.training.state import TrainingState, Window


@dataclass(frozen=True)
class Totals:
    """One update over all processes.

    Attributes:
        stop: whether any process was asked to stop.
        losses: sum of the samples' losses by segment.
        counts: number of samples by segment.
    """

    stop: bool
    losses: list[float]
    counts: list[float]

    @property
    def loss(self) -> float:
        """Mean over the samples."""
        return sum(self.losses) / sum(self.counts)


class ProgressLog:
    """Collects updates to one row an interval, and reports the interval; a context manager."""

    def __init__(
        self,
        state: TrainingState,
        training: Training,
        place: Place,
        device: torch.device,
        reporter: Reporter,
    ) -> None:
        """The progress bar is rank 0's; every rank emits its own events."""
        self._state = state
        self._training = training
        self._device = device
        self._reporter = reporter
        self._is_main = place.is_main
        bar = reporter.progress(training.num_samples, "sample", state.samples_seen)
        bar.disable = bar.disable or not place.is_main
        self._bar = bar
        self._begin_s = time.time()
        self._num_mine = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self._num_mine:
            self._emit(self._begin_s, time.time())
        self._bar.close()

    def add(self, totals: Totals, grad_norm: float, num_mine: int) -> None:
        """Take one update in; at the end of an interval add a row to the history and report.

        Args:
            totals: of all processes.
            grad_norm: before clipping.
            num_mine: samples of this process.
        """
        window = self._state.window
        window.losses = [a + b for a, b in zip(window.losses, totals.losses, strict=True)]
        window.counts = [a + b for a, b in zip(window.counts, totals.counts, strict=True)]
        window.grad_norm += grad_norm
        window.num_updates += 1
        self._num_mine += num_mine
        self._bar.update(self._training.global_batch_size)
        if self._state.samples_seen % self._training.log_every_samples == 0:
            self._close_interval()

    def _close_interval(self) -> None:
        """One row, one event, one line."""
        state, now_s = self._state, time.time()
        last_update = state.samples_seen - self._training.global_batch_size
        row = row_of(
            state.window, state.samples_seen, learning_rate_at(last_update, self._training)
        )
        state.history.append(row)
        state.window = Window.empty(len(state.window.losses))
        self._emit(self._begin_s, now_s, loss=row["loss"])
        if self._is_main:
            speed = self._training.log_every_samples / max(now_s - self._begin_s, 1e-9)
            self._bar.set_postfix(loss=f"{row['loss']:.4f}")
            self._reporter.info(
                f"{state.samples_seen} samples, loss {row['loss']:.5f}, gradient norm "
                f"{row['grad_norm']:.3f}, learning rate {row['learning_rate']:.2e}, "
                f"{speed:.1f} samples/s"
            )
        self._begin_s, self._num_mine = now_s, 0

    def _emit(self, begin_s: float, end_s: float, **facts: float) -> None:
        """One stretch of the timeline, with this process's peak memory."""
        memory = peak_memory_bytes(self._device)
        self._reporter.emit(
            "work", begin_s, end_s, self._num_mine, peak_memory_bytes=memory, **facts
        )


def row_of(window: Window, samples_seen: int, learning_rate: float) -> dict[str, float]:
    """One row of loss.parquet: means over the interval that ends at `samples_seen`.

    `grad_norm` is before clipping; `learning_rate` is the last update's; a segment without samples
    in the interval has no loss (NaN).
    """
    by_segment = [
        loss / count if count else nan
        for loss, count in zip(window.losses, window.counts, strict=True)
    ]
    return {
        "samples_seen": samples_seen,
        "loss": sum(window.losses) / sum(window.counts),
        "grad_norm": window.grad_norm / window.num_updates,
        "learning_rate": learning_rate,
        **{f"loss_segment_{number}": loss for number, loss in enumerate(by_segment)},
    }


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory this process has held: reserved on its GPU, or resident on the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
