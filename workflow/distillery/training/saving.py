"""Save while the training goes on: a quick copy to host memory, and a thread that writes it.

The training stops for the copy alone. One checkpoint is written at a time: the next save waits for
it, so host memory holds one copy, in the same pages for the whole training.
"""

import time
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from distillery.training import checkpoint, distributed
from distillery.training.checkpoint import Snapshot
from distillery.training.fingerprint import fingerprint
from distillery.training.parallel import full_tensor
from distillery.training.run import Run
from distillery.training.state import TrainingState
from distillery.training.watchdog import START_LIMIT_S

Entry = tuple[str, str, torch.Tensor]
"""(file, name, tensor) of what is saved."""
PATIENCE_S = 10.0
"""A checkpoint under way is given so long when the training fails; then nobody is made to wait."""
CACHE_LINE = 64
"""Bytes; every tensor of the copy begins at one."""


class Saver:
    """Checks and saves the state; a context manager, which ends when all is on disk."""

    def __init__(self, run: Run) -> None:
        """Every rank has one; rank 0's holds the copy and writes."""
        self._run = run
        self._host: HostCopy | None = None
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
            OSError: the last checkpoint could not be written.
        """
        begin_s, begin = time.time(), time.perf_counter()
        self.wait()
        entries = list(checkpoint.tensors_of(state))
        if self._run.place.is_main:
            self._make_room(entries)
        self._run.watchdog.beat("weights of all ranks", waits=True, limit_s=START_LIMIT_S)
        check_equal_weights(state, self._run.device)
        self._run.watchdog.beat("copy of the state")
        if not self._run.place.is_main:
            for *_, tensor in entries:
                full_tensor(tensor)  # of a sharded one rank 0 needs this rank's part
            return
        snapshot = self._copy(state, entries)
        stall_s = time.perf_counter() - begin
        self._writing = self._thread.submit(self._write, snapshot, begin_s, stall_s)

    def _make_room(self, entries: Sequence[Entry]) -> None:
        """Host memory for the copy, unless it is there. The first time takes seconds."""
        if self._host is None or not self._host.fits(entries):
            # Other ranks meet this one in the next collective, and have as long.
            self._run.watchdog.beat("host memory for the copy", limit_s=START_LIMIT_S)
            self._close_host()
            self._host = HostCopy(entries, page_locked=self._run.device.type == "cuda")

    def _copy(self, state: TrainingState, entries: Sequence[Entry]) -> Snapshot:
        """The state in host memory."""
        assert self._host is not None, "room was made"
        tensors = self._host.fill(entries)
        if self._run.device.type == "cuda":
            torch.cuda.current_stream(self._run.device).synchronize()
        return Snapshot(tensors, list(state.history), deepcopy(state.window), state.samples_seen)

    def _close_host(self) -> None:
        """Give the host memory back."""
        if self._host is not None:
            self._host.close()
            self._host = None

    def _write(self, snapshot: Snapshot, begin_s: float, stall_s: float) -> Path:
        """Write and report; in the background."""
        run, begin = self._run, time.perf_counter()
        path = checkpoint.write(
            snapshot, run.checkpoints, run.recipe_hash, run.training.keep_checkpoints
        )
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


class HostCopy:
    """One block of host memory with room for the whole state, taken once and used again.

    For a GPU it is page-locked as a whole: copies run at the bus's full speed, and nothing is
    rounded up to powers of two, as PyTorch's allocator for such memory does.
    """

    def __init__(self, entries: Sequence[Entry], page_locked: bool) -> None:
        """Room for tensors of these names, shapes and types.

        Raises:
            MemoryError: the system does not let so much memory be locked.
        """
        self._layout = _layout_of(entries)
        offsets = list(accumulate((_room_for(tensor) for *_, tensor in entries), initial=0))
        self._block = torch.empty(offsets[-1], dtype=torch.uint8)
        self._page_locked = page_locked
        if page_locked:
            _lock_pages(self._block)
        self._views = [
            _view(self._block, offset, tensor)
            for offset, (*_, tensor) in zip(offsets, entries, strict=False)
        ]

    def fits(self, entries: Sequence[Entry]) -> bool:
        """Whether it was made for these."""
        return self._layout == _layout_of(entries)

    def fill(self, entries: Sequence[Entry]) -> dict[str, dict[str, torch.Tensor]]:
        """Copy tensors; from a GPU the copies may still be under way. {file: {name: tensor}}."""
        copies: dict[str, dict[str, torch.Tensor]] = {}
        for (file, name, tensor), view in zip(entries, self._views, strict=True):
            copies.setdefault(file, {})[name] = view.copy_(full_tensor(tensor), non_blocking=True)
        return copies

    def close(self) -> None:
        """Unlock the pages."""
        if self._page_locked:
            torch.cuda.cudart().cudaHostUnregister(self._block.data_ptr())  # type: ignore[no-untyped-call]
            self._page_locked = False


def _layout_of(entries: Sequence[Entry]) -> list[tuple[str, str, torch.Size, torch.dtype]]:
    return [(file, name, tensor.shape, tensor.dtype) for file, name, tensor in entries]


def _room_for(tensor: torch.Tensor) -> int:
    """Bytes, rounded up so that every tensor begins at a whole cache line."""
    return -(tensor.numel() * tensor.element_size() // -CACHE_LINE) * CACHE_LINE


def _view(block: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    """The part of a block from `offset` on, as a tensor of this shape and type."""
    num_bytes = like.numel() * like.element_size()
    return block[offset : offset + num_bytes].view(like.dtype).view(like.shape)


def _lock_pages(block: torch.Tensor) -> None:
    """Page-lock existing memory, so that a GPU reads and writes it without a detour."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    status = int(runtime.cudaHostRegister(block.data_ptr(), block.nbytes, 0))
    if status != 0:
        raise MemoryError(
            f"{block.nbytes / 1e9:.1f} GB of host memory for a checkpoint's copy cannot be locked "
            f"(CUDA error {status}): give the job more memory, or raise `ulimit -l`"
        )


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
