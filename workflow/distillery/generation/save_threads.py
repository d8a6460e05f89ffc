"""Threads that save samples while the GPU draws the next ones."""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

MAX_THREADS = 8
MAX_WAITING = 128
"""Images made but not yet saved, at most; 3 MB each at 1024 px."""
Then = Callable[[Any], None]


def nothing(_: object) -> None:
    """What is done with a result that nobody waits for."""


class SaveThreads:
    """Threads that save while the GPU continues; the compression releases Python's lock.

    Leaving the context waits for all, and raises the first error that saving met.
    """

    def __init__(self, num_frames: int = 1) -> None:
        """As many threads as the job has cores, within reason.

        Args:
            num_frames: of each sample; fewer clips than images wait, since each is larger.
        """
        self._most = max(MAX_THREADS, MAX_WAITING // num_frames)
        self._pool = ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), MAX_THREADS))
        self._waiting: deque[tuple[Future[Any], Then]] = deque()

    def __enter__(self) -> Self:
        """Start."""
        return self

    def submit(self, work: Callable[[], Any], then: Then = nothing) -> None:
        """Queue `work`; waits while too much is queued. Raises what earlier work raised.

        Args:
            then: gets the result, in this thread and in the order of the queue.
        """
        self._waiting.append((self._pool.submit(work), then))
        while self._waiting and (self._waiting[0][0].done() or len(self._waiting) > self._most):
            self._finish_first()

    def wait(self) -> None:
        """Wait for all that was submitted."""
        while self._waiting:
            self._finish_first()

    def _finish_first(self) -> None:
        future, then = self._waiting.popleft()
        then(future.result())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish what was submitted; a disk that is full must not pass unnoticed."""
        self._pool.shutdown(wait=True)
        if error is not None:  # what went well is kept, and the first error is the one to tell
            self._waiting = deque(it for it in self._waiting if it[0].exception() is None)
        self.wait()
