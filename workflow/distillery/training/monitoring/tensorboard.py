"""The numbers of a training as TensorBoard event files, over the samples seen; never read back."""

import os
from collections.abc import Mapping
from math import isfinite
from pathlib import Path

from distillery.pixels import Pixels

FLUSH_S = 10
"""Between two writes of the library's own thread: what a killed process loses at most."""


class TensorBoard:
    """A writer for one process's attempt; `close` it at the end.

    tensorboardX writes event files without TensorBoard, its server and gRPC, which PyTorch's own
    writer needs for the file format alone. Whoever looks at the curves installs TensorBoard there.
    """

    def __init__(self, folder: Path, samples_seen: int) -> None:
        """Write to a new file in `folder`.

        Points of earlier attempts that lie beyond `samples_seen`, where this one goes on, are
        declared void: TensorBoard drops them at the mark that `purge_step` leaves.
        """
        from tensorboardX import SummaryWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._writer = SummaryWriter(
            str(folder),
            purge_step=samples_seen + 1,
            flush_secs=FLUSH_S,
            max_queue=100,
            # By themselves the names differ by seconds, and an equal one would be written over.
            filename_suffix=f".{os.getpid()}.{samples_seen:012d}",
        )

    def close(self) -> None:
        """Write what is waiting."""
        self._writer.close()

    def numbers(self, values: Mapping[str, float], samples_seen: int) -> None:
        """Write points; values that are not finite, as of a segment without samples, are left out.

        Args:
            values: by tag, e.g. "loss/all".
            samples_seen: the position on the axis.
        """
        for tag, value in values.items():
            if isfinite(value):
                self._writer.add_scalar(tag, value, samples_seen)

    def text(self, tag: str, text: str, samples_seen: int) -> None:
        """Write a line of text."""
        self._writer.add_text(tag, text, samples_seen)

    def picture(self, tag: str, pixels: Pixels, samples_seen: int) -> None:
        """Write a picture (h, w, 3)."""
        self._writer.add_image(tag, pixels, samples_seen, dataformats="HWC")


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
