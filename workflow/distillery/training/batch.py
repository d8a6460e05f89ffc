"""What one forward pass takes, cut and joined by samples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from distillery.families.protocol import Conditioning
from distillery.stage import balanced_range


@dataclass(frozen=True)
class Batch:
    """What one forward pass takes, b segments; or what one rollout takes, b trajectories.

    Attributes:
        items: b numbers of the stream, for messages.
        segment: (b,) int64, the student's step, of a flow map the number of the task; for a
            rollout the number of tasks.
        noisy: (b, *latent) float32, the state before the (first) step.
        timestep: (b,), as the student's scheduler gives it for that step.
        target: (b, *latent) float32, what the network should output, or where a rollout should end.
        weight: (b,) float32, of the loss in the gradient; 1 for a rollout.
        conditioning: padded as the stock pipeline pads.
        is_rollout: whether the student takes all its steps.
        is_online: whether `noisy` is the noise yet and `target` nothing, see `online`.
        direction: (b, *latent) float32, where not to go from the end of the last step, see
            `matching`; None without distribution matching.
        until: (b,), the timestep at which the step ends; None but for flow maps.
    """

    items: list[int]
    segment: torch.Tensor
    noisy: torch.Tensor
    timestep: torch.Tensor
    target: torch.Tensor
    weight: torch.Tensor
    conditioning: Conditioning
    is_rollout: bool = False
    is_online: bool = False
    direction: torch.Tensor | None = None
    until: torch.Tensor | None = None

    def pin_memory(self) -> "Batch":
        """A copy in page-locked memory; the data loader calls it on CUDA."""
        return self._with_tensors(torch.Tensor.pin_memory)

    def to(self, device: torch.device) -> "Batch":
        """A copy on the device; from page-locked memory it does not wait."""
        return self._with_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def _with_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Batch":
        """A copy with all tensors changed."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        changed: dict[str, Any] = {
            name: change(value) for name, value in values.items() if torch.is_tensor(value)
        }
        conditioning = {name: change(value) for name, value in self.conditioning.items()}
        return replace(self, conditioning=conditioning, **changed)


def split(batch: Batch, num_parts: int) -> list[Batch]:
    """A batch in micro-batches of sizes that differ by one at most; views, not copies."""
    num_items = len(batch.items)
    ranges = [balanced_range(num_items, part, num_parts) for part in range(num_parts)]
    return [rows(batch, slice(part.start, part.stop)) for part in ranges]


def rows(batch: Batch, wanted: slice | list[int]) -> Batch:
    """Some samples of a batch; all that it holds is by sample, or the same for all."""
    parts = {part.name: _cut(getattr(batch, part.name), wanted) for part in fields(batch)}
    return replace(batch, **parts)


def _cut(value: Any, wanted: slice | list[int]) -> Any:
    if isinstance(value, Mapping):
        return {name: _cut(inner, wanted) for name, inner in value.items()}
    if isinstance(value, list):
        return value[wanted] if isinstance(wanted, slice) else [value[row] for row in wanted]
    return value[wanted] if isinstance(value, torch.Tensor) else value


def at_knots(values: Sequence[float], knots: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A grid's values at knots (b,), shaped to multiply states (b, *latent), beside them."""
    return torch.tensor(values)[knots].view(-1, *[1] * (like.ndim - 1)).to(like.device)
