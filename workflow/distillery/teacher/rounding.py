"""What a network's calls round, and what they do not: states, timesteps, a while in float32."""

import inspect
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from distillery.families import Family
from distillery.families.protocol import Denoiser

TIMESTEP = "timestep"
"""The argument of all denoisers."""
LOW_PRECISION = (torch.bfloat16, torch.float16)


def keep_states_in_float32(denoiser: Denoiser, dtype: torch.dtype, family: Family) -> None:
    """Let a network that computes in `dtype` take and return float32, so that no sampler rounds.

    Stock pipelines hold the states in the network's type. With bfloat16 every step then rounds to
    three digits, and guidance multiplies the rounding. Hooks that cast the network's inputs and
    outputs keep states, guidance and scheduler in float32 at no cost. Not cast are timesteps, be
    they one or one of each token, since bfloat16 has no odd number above 256, but where the stock
    call rounds them; and what else is float32 in the stock call, such as tables of positions.
    """
    names = _names_of(denoiser)
    kept = family.in_float32 | {(TIMESTEP,)}

    def enter(
        _module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = cast_timestep(denoiser, args, kwargs, dtype, family)
        given = tuple(
            _cast_states(value, dtype, kept, names[place : place + 1])
            for place, value in enumerate(args)
        )
        return given, _cast_states(kwargs, dtype, kept)

    def leave(_module: torch.nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        return _cast_states(output, torch.float32)

    if dtype != torch.float32:
        denoiser.register_forward_pre_hook(enter, with_kwargs=True)
        denoiser.register_forward_hook(leave)


def cast_timestep(
    denoiser: Denoiser,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dtype: torch.dtype,
    family: Family,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give a network's arguments from a stock call with float32 states the timestep of a call in
    `dtype`, whether the call names it or not."""
    place = _place_of_timestep(denoiser)
    is_named = not 0 <= place < len(args)
    timestep = kwargs.get(TIMESTEP) if is_named else args[place]
    is_float32 = isinstance(timestep, torch.Tensor) and timestep.dtype == torch.float32
    if dtype == torch.float32 or timestep is None or not is_float32:
        return args, kwargs
    as_stock = family.stock_timestep(timestep, dtype)
    if is_named:
        return args, kwargs | {TIMESTEP: as_stock}
    return (*args[:place], as_stock, *args[place + 1 :]), kwargs


def _place_of_timestep(denoiser: Denoiser) -> int:
    """Where a network takes the timestep; -1: nowhere."""
    names = _names_of(denoiser)
    return names.index(TIMESTEP) if TIMESTEP in names else -1


def _names_of(denoiser: Denoiser) -> tuple[str, ...]:
    """Names of the arguments of a network, or of the one in a wrapper's `module`."""
    network = getattr(denoiser, "module", denoiser)
    return tuple(inspect.signature(network.forward).parameters)


def can_be_in_float32(denoiser: Denoiser) -> bool:
    """Whether `in_float32` is possible and of use: weights of lower precision, on one device."""
    is_low = any(parameter.dtype in LOW_PRECISION for parameter in denoiser.parameters())
    return is_low and not hasattr(denoiser, "_hf_hook")


@contextmanager
def in_float32(denoiser: Denoiser) -> Iterator[None]:
    """Let a network compute in float32 for a while; its weights come back bit for bit.

    Takes twice their memory meanwhile.
    """
    tensors = [*denoiser.parameters(), *denoiser.buffers()]
    before = [(tensor, tensor.dtype) for tensor in tensors if tensor.dtype in LOW_PRECISION]
    try:
        for tensor, _ in before:
            tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, dtype in before:
            tensor.data = tensor.data.to(dtype)


def _cast_states(
    value: Any,
    dtype: torch.dtype,
    kept: Collection[tuple[str | int, ...]] = (),
    place: tuple[str | int, ...] = (),
) -> Any:
    """Cast floating tensors of two or more dimensions, in tuples and mappings too, but for those at
    some places."""
    if isinstance(value, torch.Tensor):
        is_state = value.is_floating_point() and value.ndim > 1 and place not in kept
        return value.to(dtype) if is_state else value
    if isinstance(value, tuple):
        items = enumerate(value)
        return tuple(_cast_states(item, dtype, kept, (*place, at)) for at, item in items)
    if isinstance(value, dict):
        return {
            name: _cast_states(item, dtype, kept, (*place, name)) for name, item in value.items()
        }
    return value
