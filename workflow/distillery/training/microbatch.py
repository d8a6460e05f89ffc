"""How many samples a process takes at once: as many as fit, and fewer after running out of memory.

Whatever the size, an update learns from the same samples with the same weights: only the order of
sums changes.
"""

from pathlib import Path
from typing import Any

import torch

from distillery.files import read_json, write_json
from distillery.training.batch import Batch, split
from distillery.training.run import Run
from distillery.training.update import LocalUpdate, Losses, accumulate_gradients

NOTES = {False: "micro_batch.json", True: "micro_batch_of_rollouts.json"}
"""Beside the checkpoints: the size that did not run out of memory, for the next attempt. Rollouts,
which take several times the activations, have another."""
ADVICE = (
    "A single sample does not fit: set training.gradient_checkpointing: true, training.parallel: "
    "fsdp on several GPUs, or a smaller student"
)


class MicroBatches:
    """Cuts each process's part of a global batch into micro-batches of equal sizes.

    Attributes:
        size: samples at once, of the process with the largest part.
        for_rollouts: whether they are rollouts.
        checkpointing: whether they need gradient checkpointing.
    """

    def __init__(self, run: Run, sharded: bool, for_rollouts: bool, checkpointing: bool) -> None:
        """Begin with `training.micro_batch_size`, auto meaning all of its part, or the noted size.

        Args:
            sharded: whether all processes must take equally many micro-batches.
        """
        self.for_rollouts = for_rollouts
        self.checkpointing = checkpointing
        self._run = run
        self._sharded = sharded
        chosen = run.training.micro_batch_size
        self.size = run.batches.largest_local_batch if chosen == "auto" else chosen
        noted = self._noted()
        if noted is not None and noted < self.size:
            self.size = noted
            if run.ranks.is_main:
                run.reporter.info(f"micro-batches of {noted}: an earlier attempt ran out of memory")
        self._check()

    def cut(self, batch: Batch) -> list[Batch]:
        """The micro-batches of one update."""
        return split(batch, min(self._num_parts, len(batch.items)))

    def halve(self) -> None:
        """Take half as many samples at once.

        Raises ValueError where sharded processes could then not take equally many micro-batches.
        """
        assert self.size > 1, "a single sample has no half"
        self.size = half_of(self.size)
        self._check()

    def lower(self, error: torch.OutOfMemoryError) -> None:
        """After running out of memory in an update: halve, so that it can be repeated.

        Of several processes the others are already waiting for this one's gradients. So the half is
        noted for the next attempt, and the error ends this one.

        Raises:
            torch.OutOfMemoryError: `error`, where there are several processes, or for one sample.
        """
        if self.size == 1:
            raise torch.OutOfMemoryError(f"{error}. {ADVICE}") from error
        self.halve()
        if self._run.ranks.world_size > 1:
            write_json(self._note_path, {"size": self.size, **self._circumstances})
            raise torch.OutOfMemoryError(
                f"{error}. The next attempt takes {self.size} samples at once and resumes from the "
                "last checkpoint; the global batch stays"
            ) from error
        self._run.reporter.warning(
            f"out of memory: repeats the update with micro-batches of {self.size}, the global "
            "batch stays"
        )

    def _noted(self) -> int | None:
        """What an earlier attempt noted; a hint, so a damaged note is ignored with a warning."""
        try:
            return _read_note(self._note_path, self._circumstances)
        except (OSError, ValueError):
            if self._run.ranks.is_main:
                self._run.reporter.warning(
                    f"{self._note_path} is damaged and ignored: it notes how many samples an "
                    "earlier attempt had room for, micro-batches begin without it"
                )
            return None

    @property
    def _num_parts(self) -> int:
        """Micro-batches of an update."""
        return -(-self._run.batches.largest_local_batch // self.size)

    @property
    def _note_path(self) -> Path:
        return self._run.checkpoints / NOTES[self.for_rollouts]

    @property
    def _circumstances(self) -> dict[str, Any]:
        """On a larger GPU, or with the weights dealt out otherwise, a noted size says nothing."""
        device = self._run.device
        memory = torch.cuda.get_device_properties(device).total_memory if is_cuda(device) else 0
        return {
            "gpu_bytes": memory,
            "num_processes": self._run.ranks.world_size,
            "sharded": self._sharded,
        }

    def _check(self) -> None:
        """Sharded processes compute together: each must have as many micro-batches as the rest."""
        total, processes = self._run.training.global_batch_size, self._run.ranks.world_size
        if self._sharded and total // processes < self._num_parts:
            raise ValueError(
                f"training.global_batch_size is {total} for {processes} processes that share the "
                "weights (training.parallel: fsdp) and take one sample at once: it must then be a "
                f"multiple of {processes}; use {total // processes * processes} or "
                f"{-(-total // processes) * processes}"
            )


def half_of(size: int) -> int:
    """The next smaller size that is tried."""
    return -(-size // 2)


def halves_of(size: int) -> list[int]:
    """A size and all that halving it leads to, down to 1."""
    return [size, *halves_of(half_of(size))] if size > 1 else [1]


def is_cuda(device: torch.device) -> bool:
    """Whether a device has memory of its own that can be used up."""
    return device.type == "cuda"


def _read_note(path: Path, circumstances: dict[str, Any]) -> int | None:
    """The size that an earlier attempt noted under the same circumstances.

    Raises OSError or ValueError if that cannot be read, or is no size.
    """
    if not path.is_file():
        return None
    note = read_json(path)
    size = note.pop("size", None)
    if type(size) is not int or size < 1:
        raise ValueError(f"{path} has size {size!r}: it must be a whole number from 1 on")
    return size if note == circumstances else None


def accumulate_what_fits(
    model: torch.nn.Module,
    batch: Batch,
    micro_batches: MicroBatches,
    losses: Losses,
    run: Run,
) -> LocalUpdate:
    """`accumulate_gradients`, repeated with smaller micro-batches where memory does not suffice.

    Args:
        batch: this process's part of the global batch.

    Raises:
        torch.OutOfMemoryError: see `MicroBatches.lower`.
    """
    while True:
        try:
            return accumulate_gradients(model, micro_batches.cut(batch), losses, run)
        except torch.OutOfMemoryError as error:
            # Nothing of the error may outlive this line: its frames hold the tensors.
            micro_batches.lower(error)
        model.zero_grad(set_to_none=True)
        if run.device.type == "cuda":
            torch.cuda.empty_cache()
