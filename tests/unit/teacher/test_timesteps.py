"""The timestep of a network in lower precision: by its name or by its place, one rule."""

from collections.abc import Callable

import pytest
import torch

from distillery.families import FAMILIES, Family, family_named
from distillery.teacher.rounding import cast_timestep, keep_states_in_float32

Call = Callable[[torch.nn.Module, torch.Tensor, torch.Tensor], object]
CALLS: dict[str, Call] = {
    "named": lambda network, state, timestep: network(state, timestep=timestep),
    "by place": lambda network, state, timestep: network(state, timestep),
    "behind others": lambda network, state, timestep: network(noisy=state, timestep=timestep),
}
TIMESTEP = 0.83212890625
"""Of a network that takes it between 0 and 1; bfloat16 has 0.8320 and 0.8281 near it."""


class Network(torch.nn.Module):
    """Keeps what it was called with."""

    def forward(self, noisy: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        self.noisy, self.timestep = noisy, timestep
        return noisy


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_network_gets_the_timestep_of_the_stock_call(family: Family, call: Call) -> None:
    network, timestep = Network(), torch.full((2,), TIMESTEP)
    keep_states_in_float32(network, torch.bfloat16, family)
    assert call(network, torch.zeros(2, 3), timestep).dtype == torch.float32  # type: ignore[attr-defined]
    assert network.noisy.dtype == torch.bfloat16
    expected = family.stock_timestep(timestep, torch.bfloat16)
    assert network.timestep.dtype == expected.dtype
    assert network.timestep.equal(expected)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_times_of_each_token_are_not_rounded(call: Call) -> None:
    """bfloat16 has 952 and 956 near it."""
    network, times = Network(), torch.full((2, 5), 954.0)
    keep_states_in_float32(network, torch.bfloat16, family_named("wan"))
    call(network, torch.zeros(2, 3), times)
    assert network.timestep.equal(times)
    assert network.noisy.dtype == torch.bfloat16


def test_families_that_round_are_among_them() -> None:
    rounded = family_named("flux").stock_timestep(torch.tensor([TIMESTEP]), torch.bfloat16)
    assert rounded.dtype == torch.bfloat16


def test_a_wrapped_network_and_one_without_a_timestep() -> None:
    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = Network()

        def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
            return self.module(*args, **kwargs)  # type: ignore[no-any-return]

    state, timestep = torch.zeros(1), torch.full((1,), TIMESTEP)
    flux = family_named("flux")
    args, _ = cast_timestep(Wrapped(), (state, timestep), {}, torch.bfloat16, flux)
    assert args[1].dtype == torch.bfloat16
    args, _ = cast_timestep(torch.nn.ReLU(), (state,), {}, torch.bfloat16, flux)
    assert args == (state,)
