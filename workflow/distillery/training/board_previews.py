"""The previews of all ranks on their way to TensorBoard, which rank 0 alone writes.

Every rank saves its images as files, which appear whole. Rank 0 takes them from there when it logs:
so no rank waits for another, and what a killed one had drawn is shown by the next attempt.
"""

import time
from pathlib import Path

from distillery.training.previews import Previews
from distillery.training.tensorboard import TensorBoard, shown_previews

LOOK_S = 0.1
"""Between two looks for the last images."""


class BoardPreviews:
    """Rank 0's; it knows which images TensorBoard lacks."""

    def __init__(self, previews: Previews, folder: Path, samples_seen: int) -> None:
        """Lack what earlier attempts have drawn and TensorBoard does not show.

        Args:
            previews: of rank 0, which know the prompts of all.
            folder: of TensorBoard's files, before this attempt adds one.
            samples_seen: where this attempt resumes.
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
