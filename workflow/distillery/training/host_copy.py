"""Room in host memory for a copy of the state, taken once and used for every checkpoint."""

from collections.abc import Iterator, Sequence

import torch

from distillery.training.parallel import full_tensor

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

        Args:
            entries: as they will be saved.
            device: where they are.
        """
        self.problem: str | None = None
        self._locked: list[torch.Tensor] = []
        self._views: list[torch.Tensor] = []
        if device.type == "cuda":
            torch.cuda.set_device(device)  # of this thread
        for part in _parts(entries):
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


def _parts(entries: Sequence[Entry]) -> Iterator[list[torch.Tensor]]:
    """The tensors in their order, as many at a time as fill a block."""
    part: list[torch.Tensor] = []
    room = 0
    for *_, tensor in entries:
        if part and room + _room_for(tensor) > BLOCK_BYTES:
            yield part
            part, room = [], 0
        part.append(tensor)
        room += _room_for(tensor)
    if part:
        yield part


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
