"""Save while the training continues: a quick copy to host memory, and a thread that writes it.

The training stops for the copy alone; the memory for it is taken beside the first updates. One
checkpoint is written at a time: the next save waits for it, so host memory holds one copy, in the
same pages for the whole training. Before each save the ranks compare their weights.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
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
from distillery.training.health import PATIENCE_S, START_LIMIT_S
from distillery.training.parallel import full_tensor, in_blocks, is_sharded
from distillery.training.run import Run
from distillery.training.state import TrainingState

BLOCK = 1 << 22
"""Elements summed at once: 32 MB of weights at most, and as much for the products."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
"""By element size; eight bytes count as two integers, for 2^63 would weigh the same anywhere."""
_MULTIPLIERS = (-0x61C8864680B583EB, -0x40A7B892E31B1A47)
"""Odd 64-bit constants of SplitMix64 (Steele, Lea and Flood 2014), as signed integers."""


@torch.no_grad()
def fingerprint(tensors: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    """One int64 of shape () for all bits of some tensors, computed where they are.

    Elements are taken as integers b_j and summed as b_0 w_0 + b_1 w_1 + ... modulo 2^64, with odd
    pseudo-random weights; so are the blocks' sums. An odd weight has an inverse, so one element
    that differs is always found; several are missed with a probability of 2^-32 at most. Sums of
    integers do not depend on their order, so every device gives the same.

    Args:
        tensors: of any shape, contiguous; each is its own block or blocks.
    """
    blocks = [block for tensor in tensors for block in torch.split(_bits(tensor), BLOCK)]
    if not blocks:
        return torch.zeros((), dtype=torch.int64, device=device)
    weights = _odd_weights(max(map(len, blocks)), device)
    sums = [(block * weights[: len(block)]).sum() for block in blocks]
    # Other weights than inside the blocks: else place j of block k would weigh as k of j.
    return (torch.stack(sums) * _odd_weights(len(sums), device, first=BLOCK + 1)).sum()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements as integers, shape (integers,)."""
    return tensor.detach().contiguous().view(-1).view(_BITS[tensor.element_size()])


def _odd_weights(count: int, device: torch.device, first: int = 1) -> torch.Tensor:
    """Odd int64, shape (count,), made by mixing the bits of `first`, `first` + 1, ..."""
    mixed = torch.arange(first, first + count, dtype=torch.int64, device=device)
    for multiplier in _MULTIPLIERS:
        mixed = mixed * multiplier
        mixed ^= mixed >> 31
    return mixed | 1


Entry = tuple[str, str, torch.Tensor]
"""(file, name, tensor) of what is saved."""
BLOCK_BYTES = 1 << 30
"""Taken and page-locked at once, more only for a larger tensor: meanwhile CUDA takes no work from
other threads."""
CACHE_LINE = 64
"""Bytes; every tensor of the copy begins at one."""


class HostCopy:
    """Blocks of host memory with room for the whole state.

    For a GPU they are page-locked: copies run at the bus's full speed. PyTorch's own allocator for
    such memory rounds each tensor up to a power of two.

    Attributes:
        problem: why the memory is not page-locked though it should be; copies are then slow.
    """

    def __init__(self, entries: Sequence[Entry], device: torch.device) -> None:
        """Take room for tensors of these names, shapes and types.

        The system gives out pages when they are first written: for tens of GB that takes seconds.
        """
        self.problem: str | None = None
        self._locked: list[torch.Tensor] = []
        self._views: list[torch.Tensor] = []
        if device.type == "cuda":
            torch.cuda.set_device(device)  # of this thread
        for part in in_blocks((tensor for *_, tensor in entries), _room_for, BLOCK_BYTES):
            block = torch.empty(sum(map(_room_for, part)), dtype=torch.uint8).zero_()
            if device.type == "cuda" and self.problem is None:
                self._lock(block)
            self._views += _views(block, part)

    def fill(self, entries: Sequence[Entry]) -> dict[str, dict[str, torch.Tensor]]:
        """Copy tensors; from a GPU the copies may still be under way. {file: {name: tensor}}."""
        copies: dict[str, dict[str, torch.Tensor]] = {}
        for (file, name, tensor), view in zip(entries, self._views, strict=True):
            copies.setdefault(file, {})[name] = view.copy_(full_tensor(tensor), non_blocking=True)
        return copies

    def close(self) -> None:
        """Unlock the pages."""
        for block in self._locked:
            torch.cuda.cudart().cudaHostUnregister(block.data_ptr())  # type: ignore[no-untyped-call]
        self._locked.clear()

    def _lock(self, block: torch.Tensor) -> None:
        """Page-lock a block, so that a GPU writes to it without a detour."""
        if status := lock_pages(block):
            self.problem = (
                f"host memory for a checkpoint's copy cannot be page-locked (CUDA error {status}): "
                "the training stands still longer when it saves; raise `ulimit -l`"
            )
        else:
            self._locked.append(block)


def lock_pages(block: torch.Tensor) -> int:
    """Page-lock existing memory; returns CUDA's error code, 0 for none."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    return int(runtime.cudaHostRegister(block.data_ptr(), block.nbytes, 0))


def _room_for(tensor: torch.Tensor) -> int:
    """Bytes, rounded up so that every tensor begins at a whole cache line."""
    return -(tensor.numel() * tensor.element_size() // -CACHE_LINE) * CACHE_LINE


def _views(block: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The parts of a block, one behind the other, as tensors like these."""
    offset = 0
    for tensor in tensors:
        num_bytes = tensor.numel() * tensor.element_size()
        yield block[offset : offset + num_bytes].view(tensor.dtype).view(tensor.shape)
        offset += _room_for(tensor)


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
            self._run.watchdog.heartbeat("a checkpoint's last bytes after an error")
            futures.wait([self._writing], PATIENCE_S)
        self._thread.shutdown(wait=False)

    def prepare(self, state: TrainingState) -> None:
        """Take memory for copies of a state in the background; to be called after each update, when
        all that is saved exists.

        Raises RuntimeError if there is not enough memory.
        """
        if self._host is None and self._run.ranks.is_main:
            self._host = self._thread.submit(self._take, list(checkpoint.tensors_of(state)))
        elif self._host is not None and self._host.done():
            self._host.result()

    def wait(self) -> None:
        """Wait until the checkpoint under way is on disk; what went wrong there is raised here."""
        if self._writing is not None:
            # Other ranks meet this one in the next collective, and have as long.
            self._run.watchdog.heartbeat("a checkpoint's last bytes", limit_s=START_LIMIT_S)
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
        self._run.watchdog.heartbeat("weights of all ranks", waits=True, limit_s=START_LIMIT_S)
        check_equal_weights(state, self._run.device)
        self._run.watchdog.heartbeat("copy of the state", joint=is_sharded(state.denoiser))
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
        """Wait for the checkpoint under way; whether it could not be written, as `_write` logged.

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
        self._run.watchdog.heartbeat("host memory for the copy", limit_s=START_LIMIT_S)
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
                f"no checkpoint after {snapshot.samples_seen} samples: {error}; fix this before "
                "the next save: the training ends if two saves in a row fail, or the last one"
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
    copied = state.companion.trainable if state.companion is not None else {}
    learning = [*state.trainable.values(), *copied.values()]
    whole = [value for value in learning if not isinstance(value, DTensor)]
    differing = distributed.differing_ranks(fingerprint(whole, device))
    if differing:
        raise RuntimeError(
            f"after {state.samples_seen} samples the weights of rank "
            f"{', '.join(map(str, differing))} are not those of rank 0: no checkpoint was written, "
            "start again to resume from the last"
        )
