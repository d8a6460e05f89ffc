"""Save while the training goes on: a quick copy to host memory, and a thread that writes it.

The training stops for the copy alone; the memory for it is taken beside the first updates. One
checkpoint is written at a time: the next save waits for it, so host memory holds one copy, in the
same pages for the whole training.
"""

import time
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from distillery.training import checkpoint, distributed
from distillery.training.checkpoint import Snapshot
from distillery.training.fingerprint import fingerprint
from distillery.training.host_copy import Entry, HostCopy
from distillery.training.parallel import full_tensor, is_sharded
from distillery.training.run import Run
from distillery.training.state import TrainingState
from distillery.training.watchdog import PATIENCE_S, START_LIMIT_S


class Saver:
    """Checks and saves the state; a context manager, which ends when all is on disk."""

    def __init__(self, run: Run) -> None:
        """Every rank has one; rank 0's holds the copy and writes."""
        self._run = run
        self._host: Future[HostCopy] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[Path] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """After an error of this rank, or of another, a sound checkpoint has a moment to end."""
        if error is None:
            self.wait()
            self._close_host()
        elif isinstance(error, Exception) and self._writing is not None:
            self._run.watchdog.beat("a checkpoint's last bytes after an error")
            futures.wait([self._writing], PATIENCE_S)
        self._thread.shutdown(wait=False)

    def prepare(self, state: TrainingState) -> None:
        """Take memory for copies of a state in the background; to be called after each update, when
        all is there that is saved.

        Raises RuntimeError if the memory was not to be had.
        """
        if self._host is None and self._run.place.is_main:
            self._host = self._thread.submit(self._take, list(checkpoint.tensors_of(state)))
        elif self._host is not None and self._host.done():
            self._host.result()

    def wait(self) -> None:
        """Until the checkpoint under way is on disk; what went wrong there is raised here."""
        if self._writing is not None:
            # Other ranks meet this one in the next collective, and have as long.
            self._run.watchdog.beat("a checkpoint's last bytes", limit_s=START_LIMIT_S)
            writing, self._writing = self._writing, None
            writing.result()

    def save(self, state: TrainingState) -> None:
        """Check that all ranks hold the same weights, copy the state, and have it written.

        Raises:
            RuntimeError: the weights differ between ranks; nothing is written.
            OSError: neither the last checkpoint nor this one could be written.
        """
        begin_s, begin = time.time(), time.perf_counter()
        last_failed = self._last_failed()
        entries = list(checkpoint.tensors_of(state))
        host = self._room(state)
        self._run.watchdog.beat("weights of all ranks", waits=True, limit_s=START_LIMIT_S)
        check_equal_weights(state, self._run.device)
        self._run.watchdog.beat("copy of the state", joint=is_sharded(state.denoiser))
        if host is None:
            for *_, tensor in entries:
                full_tensor(tensor)  # of a sharded one rank 0 needs this rank's part
            return
        snapshot = self._copy(state, entries, host)
        stall_s = time.perf_counter() - begin
        self._writing = self._thread.submit(self._write, snapshot, begin_s, stall_s)
        self._run.watchdog.finishing = self._writing
        if last_failed:
            self.wait()

    def _last_failed(self) -> bool:
        """Whether the checkpoint under way, waited for, could not be written; `_write` said so.

        Any other error is raised.
        """
        try:
            self.wait()
        except OSError:
            return True
        return False

    def _take(self, entries: list[Entry]) -> HostCopy:
        """Memory for the copy."""
        host = HostCopy(entries, self._run.device)
        if host.problem is not None:
            self._run.reporter.warning(host.problem)
        return host

    def _room(self, state: TrainingState) -> HostCopy | None:
        """Memory for the copy on rank 0, waited for where it is not there yet."""
        self.prepare(state)
        if self._host is None:
            return None
        # Other ranks meet this one in the next collective, and have as long.
        self._run.watchdog.beat("host memory for the copy", limit_s=START_LIMIT_S)
        return self._host.result()

    def _copy(self, state: TrainingState, entries: list[Entry], host: HostCopy) -> Snapshot:
        """The state in host memory."""
        tensors = host.fill(entries)
        if self._run.device.type == "cuda":
            torch.cuda.current_stream(self._run.device).synchronize()
        return Snapshot(tensors, list(state.history), deepcopy(state.window), state.samples_seen)

    def _close_host(self) -> None:
        """Give the host memory back."""
        if self._host is not None:
            self._host.result().close()
            self._host = None

    def _write(self, snapshot: Snapshot, begin_s: float, stall_s: float) -> Path:
        """Write and report, also a failure; in the background."""
        run, begin = self._run, time.perf_counter()
        try:
            path = checkpoint.write(
                snapshot, run.checkpoints, run.recipe_hash, run.training.keep_checkpoints
            )
        except OSError as error:
            run.reporter.warning(
                f"no checkpoint after {snapshot.samples_seen} samples: {error}; mend it before the "
                "next save, the training ends when two in a row, or the last, cannot be written"
            )
            raise
        write_s = time.perf_counter() - begin
        run.reporter.emit(
            "save", begin_s, time.time(),
            samples_seen=snapshot.samples_seen, num_bytes=snapshot.num_bytes,
            stall_s=stall_s, write_s=write_s,
        )  # fmt: skip
        run.reporter.info(
            f"saved {path}: the training stood still for {stall_s:.2f} s, writing "
            f"{snapshot.num_bytes / 1e9:.2f} GB took {write_s:.2f} s"
        )
        return path


def check_equal_weights(state: TrainingState, device: torch.device) -> None:
    """Raise RuntimeError if a rank's trainable parameters are not, bit for bit, those of rank 0.

    Without a process group there is nothing to compare with. Shards of one parameter differ rightly
    and do not count.
    """
    if not dist.is_initialized():
        return
    whole = [value for value in state.trainable.values() if not isinstance(value, DTensor)]
    differing = distributed.differing_ranks(fingerprint(whole, device))
    if differing:
        raise RuntimeError(
            f"after {state.samples_seen} samples the weights of rank "
            f"{', '.join(map(str, differing))} are not those of rank 0: no checkpoint was written, "
            "start again to go on from the last"
        )
