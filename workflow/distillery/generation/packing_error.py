"""How much packed weights change a pass of a network, measured on the first batch of a run."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from distillery.families.protocol import Denoiser

Call = tuple[Any, Any, Any]
"""A network's arguments, its named ones, and what it gave."""


@contextmanager
def first_calls(denoisers: Mapping[str, Denoiser]) -> Iterator[dict[str, Call]]:
    """The first call of each network in the block, by component."""
    calls: dict[str, Call] = {}

    def watch(name: str, denoiser: Denoiser) -> Any:
        def keep(_module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if name not in calls:
                calls[name] = tree_map(_copied, (args, kwargs, output))

        return denoiser.register_forward_hook(keep, with_kwargs=True)

    with ExitStack() as stack:
        for name, denoiser in denoisers.items():
            stack.callback(watch(name, denoiser).remove)
        yield calls


def _copied(value: Any) -> Any:
    """What a solver changes in place later must not change here."""
    return value.clone() if isinstance(value, torch.Tensor) else value


@torch.no_grad()
def packing_errors(
    calls: Mapping[str, Call], load_unpacked: Callable[[str], Denoiser], device: torch.device
) -> dict[str, float]:
    """The root mean square of what packing changes in each network's output, as a share of the
    output's.

    Args:
        calls: of the packed networks, see `first_calls`.
        load_unpacked: a network before it was packed, by component, on the CPU.
        device: on which the call was. It holds one layer of the unpacked network at a time.
    """
    errors = {}
    for name, (args, kwargs, output) in calls.items():
        network = load_unpacked(name)
        if device.type != "cpu":
            from accelerate import cpu_offload

            cpu_offload(network, device)
        exact, packed = _numbers(network(*args, **kwargs)), _numbers(output)
        errors[name] = float((packed - exact).norm() / exact.norm())
    return errors


def _numbers(output: Any) -> torch.Tensor:
    """All of a network's output, in float32."""
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    return torch.cat([tensor.float().flatten() for tensor in tensors])
