"""One loss over the rows of a training's history."""

from collections import deque
from math import inf, isfinite, nan
from statistics import fmean

NUM_BEFORE_SPIKE = 8
"""Rows that a spike is held against; half of them must be there."""


class Course:
    """One loss over the rows: its last window, and the lowest of the windows before it.

    Attributes:
        size: rows in a window.
        lowest: mean of a window that has ended; infinite before.
    """

    def __init__(self, size: int) -> None:
        """No row yet."""
        self.size = size
        self._rows: deque[float] = deque(maxlen=max(2 * size, 1 + NUM_BEFORE_SPIKE))
        self.lowest = inf

    def add(self, loss: float) -> None:
        """Add the next row."""
        self._rows.append(loss)
        if len(self._rows) >= 2 * self.size:
            mean = fmean(self.last(2 * self.size)[: self.size])
            self.lowest = min(self.lowest, mean) if isfinite(mean) else self.lowest

    def last(self, count: int) -> list[float]:
        """Up to `count` of the last rows; no more are kept than two windows, or a spike needs."""
        return list(self._rows)[-count:]

    @property
    def window(self) -> list[float]:
        """The last one; shorter where there are fewer rows."""
        return self.last(self.size)

    @property
    def growth(self) -> float:
        """The mean of the last window over the lowest mean of those that ended before it.

        NaN where there are fewer than two windows, or a window without a number.
        """
        if not 0 < self.lowest < inf:
            return nan
        return fmean(self.window) / self.lowest
