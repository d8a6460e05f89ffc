"""TensorBoard's event files of a training: what rank 0 writes there, and what is there already."""

import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from distillery.training.health import SLOWER, START_LIMIT_S
from distillery.training.previews import Previews
from distillery.training.run import Run
from distillery.training.state import TrainingState
from distillery.training.watchers import Moment, Watcher
from distillery.training.watchers.alarms import HELD_OUT, KNOT
from distillery.training.watchers.previews import LivePreviews
from distillery.words import counted

FLUSH_S = 10
"""Between two writes of the library's own thread: what a killed process loses at most."""
MAX_QUEUE = 100
"""Points that wait for the library's own thread."""
ROOM_S = 10.0
"""Time that a full queue is given; a thread that writes nothing in it is on a disk that hangs."""
POLL_S = 0.01
LOOK_S = 0.1
"""Between two looks for the last images."""
LAST_IMAGES_S = 10.0
"""Beside the time that the images took here: what the last ones of other ranks are waited for."""
EVENT_FILES = "events.out.tfevents.*"
PREVIEWS = "previews/"
"""What the tags of images begin with."""
RGB = 3
"""The protocol's name of this colour space."""


class TensorBoard:
    """A writer for one process's attempt; `close` it at the end.

    Curves are dispensable: where they cannot be written, on a full disk say, one warning is logged,
    and nothing more of this attempt is written.

    tensorboardX writes event files without TensorBoard, its server and gRPC, which PyTorch's own
    writer needs for the file format alone. Install TensorBoard where the curves are looked at.
    """

    def __init__(self, folder: Path, samples_seen: int, warn: Callable[[str], None]) -> None:
        """Write to a new file in `folder`.

        Points of earlier attempts that lie beyond `samples_seen`, where this one resumes, are
        declared void: TensorBoard drops them at the mark that `purge_step` leaves. One that begins
        drops all: they may be another training's. `warn` takes the one warning.
        """
        from tensorboardX import SummaryWriter

        self._warn = warn
        self._writer: Any = None
        with self._dropping():
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = SummaryWriter(
                str(folder),
                purge_step=first_void(samples_seen),
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

    def preview(self, prompt_id: str, png: bytes, prompt: str, samples_seen: int) -> None:
        """Write an image and its prompt: one record, so that a killed process leaves both or none.

        Args:
            prompt_id: the last part of both tags.
            png: the image's file, which is not encoded again.
        """
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import text

        width, height = struct.unpack(">II", png[16:24])  # where every PNG has them
        image = Summary.Image(width=width, height=height, colorspace=RGB, encoded_image_string=png)
        values = [
            Summary.Value(tag=f"{PREVIEWS}{prompt_id}", image=image),
            *text(f"prompts/{prompt_id}", prompt).value,
        ]
        if self._has_room():
            self._writer.file_writer.add_summary(Summary(value=values), samples_seen)

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


def first_void(samples_seen: int) -> int:
    """From which step on earlier points are void where an attempt resumes from `samples_seen`."""
    return samples_seen + 1 if samples_seen else 0


def shown_previews(folder: Path, samples_seen: int) -> set[tuple[int, str]]:
    """(samples seen, prompt id) of the images that stay where an attempt resumes.

    Whole files are read, some hundred MB per second: it is asked for once per attempt. What a
    killed process has left half written, or a bad disk has spoilt, ends its file, as it does for
    TensorBoard.
    """
    from tensorboardX.proto.event_pb2 import SessionLog

    shown: set[tuple[int, str]] = set()
    for path in sorted(folder.glob(EVENT_FILES)) if samples_seen else []:
        for event in _read_events(path):
            if event.session_log.status == SessionLog.START:
                shown = {(step, name) for step, name in shown if step < event.step}
            for value in event.summary.value:
                if value.HasField("image") and event.step < first_void(samples_seen):
                    shown.add((event.step, value.tag.removeprefix(PREVIEWS)))
    return shown


def _read_events(path: Path) -> Iterator[Any]:
    """The records of a file: eight bytes of length, a checksum, an `Event`, a checksum."""
    from google.protobuf.message import DecodeError
    from tensorboardX.proto.event_pb2 import Event

    try:
        with path.open("rb") as file:
            while len(head := file.read(12)) == 12:
                length = struct.unpack("<Q", head[:8])[0]
                if length > path.stat().st_size:
                    return
                content = file.read(length + 4)
                if len(content) < length + 4:
                    return
                yield Event.FromString(content[:-4])
    except (OSError, DecodeError):
        return


class BoardPreviews:
    """Rank 0's; it knows which images TensorBoard lacks."""

    def __init__(self, previews: Previews, folder: Path, samples_seen: int) -> None:
        """Lack what earlier attempts have drawn and TensorBoard does not show.

        Args:
            previews: of rank 0, which know the prompts of all.
            folder: of TensorBoard's files, before this attempt adds one.
        """
        self._previews = previews
        self._ids = previews.prompt_ids
        self._shown = shown_previews(folder, samples_seen)
        self._lacking: dict[int, set[int]] = {}  # {samples seen: rows of prompts}
        for seen in previews.moments(samples_seen):
            self._lack(seen, previews.drawn(self._unshown(seen), seen))

    def expect(self, samples_seen: int) -> None:
        """Every rank draws its share at this moment."""
        self._lack(samples_seen, self._unshown(samples_seen))

    def show(self, board: TensorBoard) -> None:
        """Write what has been saved since the last look, in the order of the moments.

        TensorBoard may drop the later points of a tag when an earlier one follows. The newest
        moment is looked at first: a rank saves its images in order, so an image that is not there
        after a later one of its prompt was seen never comes, for it could not be drawn.
        """
        found = [
            (seen, row)
            for seen in sorted(self._lacking, reverse=True)
            for row in self._previews.drawn(self._lacking[seen], seen)
        ]
        newest = {row: seen for seen, row in sorted(found)}
        for seen, row in sorted(found):
            self._write(board, seen, row)
        for seen, rows in list(self._lacking.items()):
            self._lacking[seen] = {row for row in rows if newest.get(row, -1) < seen}
            if not self._lacking[seen]:
                del self._lacking[seen]

    def show_last(self, board: TensorBoard, limit_s: float) -> int:
        """Show what is saved within some seconds; how many images are lacking then."""
        until_s = time.monotonic() + limit_s
        self.show(board)
        while self._lacking and time.monotonic() < until_s:
            time.sleep(LOOK_S)
            self.show(board)
        return sum(map(len, self._lacking.values()))

    def _unshown(self, samples_seen: int) -> set[int]:
        names = enumerate(self._ids)
        return {row for row, name in names if (samples_seen, name) not in self._shown}

    def _lack(self, samples_seen: int, rows: set[int]) -> None:
        if rows:
            self._lacking[samples_seen] = rows

    def _write(self, board: TensorBoard, samples_seen: int, row: int) -> None:
        """Write an image; one that has gone meanwhile, or cannot be read, is not shown."""
        try:
            png = self._previews.image(row, samples_seen).read_bytes()
        except OSError:
            return
        name = self._ids[row]
        board.preview(name, png, self._previews.prompts[name], samples_seen)
        self._shown.add((samples_seen, name))


class Curves(Watcher):
    """Rows, points and alarms on TensorBoard, and the previews of all ranks; of rank 0."""

    def __init__(self, state: TrainingState, run: Run, previews: LivePreviews) -> None:
        """A new file; `previews` are this rank's."""
        folder = run.reporter.path.parent / "tensorboard"
        self._state, self._run, self._previews = state, run, previews
        self._shown: BoardPreviews | None = None
        if previews.share is not None:
            self._shown = BoardPreviews(previews.share, folder, state.samples_seen)
        self._board = TensorBoard(folder, state.samples_seen, run.reporter.warning)
        self._board.text("configuration", settings_of(run), state.samples_seen)

    def measure(self, moment: Moment) -> None:
        """A row, and images that were saved meanwhile."""
        if not moment.is_row:
            return
        self._board.numbers(tags_of(moment.row) | moment.points, moment.seen)
        for text in moment.texts:
            self._board.text("alarms", text, moment.seen)
        if self._shown is not None:
            self._shown.show(self._board)

    def show(self, moment: Moment) -> bool:
        """Expect the images that all ranks draw at this moment."""
        if self._shown is not None and self._previews.is_due(moment):
            self._shown.expect(moment.seen)
        return False

    def close(self, wait: bool) -> None:
        """Show what is left, unless the training ended with an error."""
        if wait and self._shown is not None:
            self._show_last(self._shown)
        self._board.close()

    def _show_last(self, shown: BoardPreviews) -> None:
        """Those that no later row takes up; a stopped training leaves the rest to the next start.

        The student is trained and its checkpoint written, so rank 0 keeps nobody waiting here. A
        rank that draws for longer than this one did has failed to.
        """
        is_finished = self._state.samples_seen == self._run.training.num_samples
        limit_s = LAST_IMAGES_S + SLOWER * self._previews.drew_s if is_finished else 0.0
        self._run.watchdog.heartbeat("last previews of all ranks", limit_s=START_LIMIT_S + limit_s)
        if (missing := shown.show_last(self._board, limit_s)) and is_finished:
            self._run.reporter.warning(
                f"TensorBoard lacks {counted(missing, 'preview')} that no process had saved "
                f"{limit_s:.0f} s after the training's end"
            )


def settings_of(run: Run) -> str:
    """What a training's recipe holds, as Markdown with YAML in it."""
    return f"```yaml\n{yaml.safe_dump(run.recipe.to_json(), sort_keys=False)}```"
