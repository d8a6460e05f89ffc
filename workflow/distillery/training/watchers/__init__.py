"""What looks at a training while it learns: a list of watchers, none of which the loop names.

Each update has two moments. Before its checkpoint a watcher measures: what it adds to the row is
saved with it. After it a watcher shows, which may take long; what a stop leaves unshown is shown
when the training resumes. No watcher changes a weight, and without any the weights have the same
bytes. All ranks call theirs in the list's order, so that one may talk to its like on other ranks.

The checkpoint is no watcher, for the loop must know that it is whole. `all` has the list.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the report and the plan read names of columns, and need no training
    from distillery.config.training import Training
    from distillery.training.update import UpdateTotals


@dataclass
class Interval:
    """What this process did since the last row.

    Attributes:
        begin_s: Unix time.
        num_mine: samples.
        num_all: samples of all processes meanwhile.
        waiting_s: for data.
        drawing_s: on previews.
    """

    begin_s: float = field(default_factory=time.time)
    num_mine: int = 0
    num_all: int = 0
    waiting_s: float = 0.0
    drawing_s: float = 0.0


@dataclass
class Moment:
    """After an update; or before the first, when `totals` is None and there is nothing to measure.

    Attributes:
        seen: samples, by all processes.
        training: settings.
        totals: of the update, over all processes.
        num_mine: samples of this process in it.
        waiting_s: that this process waited for them.
        size: samples that the student may take at once.
        row: of the history, where an interval ends; else it stays empty.
        points: of curves that are not in the history, by TensorBoard's tags.
        texts: of alarms that begin to ring.
        interval: in which it lies.
    """

    seen: int
    training: Training
    totals: UpdateTotals | None = None
    num_mine: int = 0
    waiting_s: float = 0.0
    size: int = 1
    row: dict[str, float] = field(default_factory=dict)
    points: dict[str, float] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    interval: Interval = field(default_factory=Interval)

    @property
    def is_last(self) -> bool:
        """Whether the training ends here."""
        return self.seen == self.training.num_samples

    @property
    def is_row(self) -> bool:
        """Whether an interval ends here, as one does with the training: no update is left out."""
        return self.seen % self.training.log_every_samples == 0 or self.is_last


class Watcher:
    """One of the list."""

    def measure(self, moment: Moment) -> None:
        """Before the checkpoint; may add to the moment's row, points and texts."""

    def show(self, moment: Moment) -> bool:
        """After it; returns, alike on all ranks, whether they may have waited for one another:
        then they are asked again whether to stop."""
        return False

    def close(self, wait: bool) -> None:
        """The training has ended; without an error if `wait`, and then nothing may be lost."""


class Watched:
    """All of a list, and the interval that is under way."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        """The first interval begins."""
        self._watchers, self._interval = watchers, Interval()

    def measure(self, moment: Moment) -> None:
        """Of an update; after a row the next interval begins, without what measuring took."""
        moment.interval = self._interval
        for watcher in self._watchers:
            watcher.measure(moment)
        if moment.is_row:
            self._interval = Interval()

    def show(self, moment: Moment) -> bool:
        """Whether ranks may have waited for one another."""
        moment.interval = self._interval
        waited = [watcher.show(moment) for watcher in self._watchers]
        return any(waited)

    def close(self, wait: bool) -> None:
        """In the list's order, so that the last ones see what those before them have left."""
        for watcher in self._watchers:
            watcher.close(wait)


@contextmanager
def watching(watchers: Sequence[Watcher], warn: Callable[[str], None]) -> Iterator[Watched]:
    """A list in use; an error of its end is raised only where the training has none."""
    watched = Watched(watchers)
    try:
        yield watched
    except BaseException:
        try:
            watched.close(wait=False)
        except Exception as second:
            warn(f"the log of the training was not ended: {second!r}")
        raise
    watched.close(wait=True)
