"""The numbers of a training as TensorBoard event files, over the samples seen; never read back."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from distillery.pixels import Pixels

FLUSH_S = 10
"""Between two writes of the library's own thread: what a killed process loses at most."""
MAX_QUEUE = 100
"""Points that wait for the library's own thread."""
ROOM_S = 10.0
"""That a full queue is given; a thread that still writes nothing then is on a disk that hangs."""
POLL_S = 0.01


class TensorBoard:
    """A writer for one process's attempt; `close` it at the end.

    Curves are dispensable: where they cannot be written, on a full disk say, one warning is told,
    and nothing more of this attempt is written.

    tensorboardX writes event files without TensorBoard, its server and gRPC, which PyTorch's own
    writer needs for the file format alone. Whoever looks at the curves installs TensorBoard there.
    """

    def __init__(self, folder: Path, samples_seen: int, warn: Callable[[str], None]) -> None:
        """Write to a new file in `folder`.

        Points of earlier attempts that lie beyond `samples_seen`, where this one goes on, are
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

    def picture(self, tag: str, pixels: Pixels, samples_seen: int) -> None:
        """Write a picture (h, w, 3)."""
        if self._has_room():
            self._writer.add_image(tag, pixels, samples_seen, dataformats="HWC")

    def _has_room(self) -> bool:
        """Whether a point may be put in the queue; waits for room, and drops the board if in vain.

        Nobody would ever take it out, and the next `put` would wait for ever, if the thread that
        does is gone: it ends at the first error of the disk.
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
        self._warn(f"no more curves for TensorBoard: {reason}; the training goes on")
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
        elif name != "samples_seen":
            tags[f"training/{name}"] = value
    return tags
