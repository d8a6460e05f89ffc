"""What a training reports: rows of loss.parquet, telemetry, points of TensorBoard's curves."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import torch
import yaml
from tqdm import tqdm

from distillery.images import Pixels
from distillery.telemetry import ProgressBar, peak_memory_bytes
from distillery.training.alarms import COMPANIONS, HELD_OUT, KNOT
from distillery.training.previews import LivePreviews
from distillery.training.run import PreviewPaths, Run
from distillery.training.state import TrainingState, Window, learning_rate_at
from distillery.training.update import UpdateTotals
from distillery.training.variation import Watch

FLUSH_S = 10
"""Between two writes of the library's own thread: what a killed process loses at most."""
MAX_QUEUE = 100
"""Points that wait for the library's own thread."""
ROOM_S = 10.0
"""Time that a full queue is given; a thread that writes nothing in it is on a disk that hangs."""
POLL_S = 0.01


class TensorBoard:
    """A writer for one process's attempt; `close` it at the end.

    Curves are dispensable: where they cannot be written, on a full disk say, one warning is logged,
    and nothing more of this attempt is written.

    tensorboardX writes event files without TensorBoard, its server and gRPC, which PyTorch's own
    writer needs for the file format alone. Install TensorBoard where the curves are looked at.
    """

    def __init__(self, folder: Path, samples_seen: int, warn: Callable[[str], None]) -> None:
        """Write to a new file in `folder`.

        Points of earlier attempts that lie beyond `samples_seen`, where this one continues, are
        declared void: TensorBoard drops them at the mark that `purge_step` leaves. `warn` takes the
        one warning.
        """
        from tensorboardX import SummaryWriter

        self._warn = warn
        self._writer: Any = None
        with self._dropping():
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = SummaryWriter(
                str(folder),
                purge_step=samples_seen + 1,
                flush_secs=FLUSH_S,
                max_queue=MAX_QUEUE,
                # By themselves the names differ by seconds; an equal one would be written over.
                filename_suffix=f".{os.getpid()}.{samples_seen:012d}",
            )

    def close(self) -> None:
        """Write what is waiting."""
        with self._dropping():
            if self._has_room():
                self._writer.close()
                self._writer = None

    def numbers(self, values: Mapping[str, float], samples_seen: int) -> None:
        """Write points; values that are not finite, as of a segment without samples, are left out.

        Args:
            values: by tag, e.g. "loss/all".
            samples_seen: the position on the axis.
        """
        for tag, value in values.items():
            if isfinite(value) and self._has_room():
                self._writer.add_scalar(tag, value, samples_seen)

    def text(self, tag: str, text: str, samples_seen: int) -> None:
        """Write a line of text."""
        if self._has_room():
            self._writer.add_text(tag, text, samples_seen)

    def image(self, tag: str, pixels: Pixels, samples_seen: int) -> None:
        """Write an image (h, w, 3)."""
        if self._has_room():
            self._writer.add_image(tag, pixels, samples_seen, dataformats="HWC")

    def _has_room(self) -> bool:
        """Whether a point may be put in the queue; waits for room, and drops the board if in vain.

        The thread that takes points out ends at the first error of the disk: the next `put` into a
        full queue would then wait for ever.
        """
        if self._writer is None:
            return False
        events = self._writer.file_writer.event_writer
        until_s = time.monotonic() + ROOM_S
        while events._worker.is_alive():
            if not events._event_queue.full():
                return True
            if time.monotonic() > until_s:
                return self._drop(f"nothing was written for {ROOM_S:g} s")
            time.sleep(POLL_S)
        return self._drop("the thread that writes them has ended, as it does when the disk is full")

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        """Drop the board at an error of the disk."""
        try:
            yield
        except OSError as error:
            self._drop(str(error))

    def _drop(self, reason: str) -> bool:
        """Write nothing more; False."""
        writer, self._writer = self._writer, None
        if writer is not None:
            # At the process's end the library would put a last word in the queue, and Python would
            # wait until it is read; nobody reads it.
            events = writer.file_writer.event_writer
            events._closed = True
            events._event_queue.cancel_join_thread()
        self._warn(f"no more curves for TensorBoard: {reason}; the training continues")
        return False


def tags_of(row: Mapping[str, float]) -> dict[str, float]:
    """The columns of a row of loss.parquet by TensorBoard's tags, which group by their first word.

    loss_segment_2 becomes loss/segment_2, loss becomes loss/all; the rest is under training/.
    """
    tags = {}
    for name, value in row.items():
        if name == "loss":
            tags["loss/all"] = value
        elif name.startswith("loss_"):
            tags[f"loss/{name.removeprefix('loss_')}"] = value
        elif name == HELD_OUT:
            tags["loss/held_out"] = value
        elif name.startswith(KNOT):
            tags[f"held_out_error/knot_{name.removeprefix(KNOT)}"] = value
        elif name != "samples_seen":
            tags[f"training/{name}"] = value
    return tags


GIB = 1 << 30
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
        if run.ranks.is_main:
            folder = run.reporter.path.parent / "tensorboard"
            self._board = TensorBoard(folder, state.samples_seen, run.reporter.warning)
            self._board.text("configuration", settings_of(run), state.samples_seen)
        self._interval = LogWindow(time.time())
        self._logged_bytes = 0

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
            self._board.close()
        self._bar.close()

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
            has_rollouts=training.rollout_samples > 0,
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

    def draw(self) -> bool:
        """Draw previews, if this moment is to be shown; returns whether it is, alike on all ranks.

        A process that is asked to stop leaves the rest for the next start: see `LivePreviews`.
        """
        begin_s = time.time()
        for path, pixels in self._previews.draw_if_due().items():
            if self._board is not None:
                self._board.image(f"previews/{path.stem}", pixels, self._state.samples_seen)
                prompt = self._previews.prompts.get(path.stem, "")
                self._board.text(f"prompts/{path.stem}", prompt, self._state.samples_seen)
        self._interval.drawing_s += time.time() - begin_s
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
