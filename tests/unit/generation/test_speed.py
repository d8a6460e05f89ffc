"""Which networks of a pipeline are compiled, and how; nothing is, in these tests."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distillery.generation import speed
from distillery.generation.speed import LONG_SUMS, Workload, compile_networks, maybe_compile
from distillery.telemetry import Reporter

AMOUNT = Workload(num_samples=8, steps=4, batch_size=2)


class Network(torch.nn.Module):
    """Notes how it is compiled: whole, or by its blocks."""

    def __init__(self, *layers: torch.nn.Module, blocks: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)
        self._repeated_blocks = blocks
        self.compiled: list[tuple[str, dict[str, Any]]] = []

    def compile(self, **options: Any) -> None:
        self.compiled.append(("whole", options))

    def compile_repeated_blocks(self, **options: Any) -> None:
        self.compiled.append(("blocks", options))


def family(compiles_by_block: bool = True) -> Any:
    return SimpleNamespace(denoisers=("unet", "unet_2"), compiles_by_block=compiles_by_block)


@pytest.mark.parametrize(
    ("device", "choice", "offloaded", "is_compiled"),
    [
        ("cuda", "always", False, True),
        ("cuda", "never", False, False),
        ("cuda", "auto", False, False),  # a small network, and few calls
        ("cuda", "always", True, False),
        ("cpu", "always", False, False),
    ],
)
def test_networks_are_compiled_on_gpus_where_that_pays(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
    device: str,
    choice: Any,
    offloaded: bool,
    is_compiled: bool,
) -> None:
    pipeline: Any = SimpleNamespace(unet=Network())
    if offloaded:
        pipeline.unet._hf_hook = object()
    compiled: list[Any] = []
    monkeypatch.setattr(speed, "compile_networks", lambda *given: compiled.append(given))
    kind, reporter = family(), Reporter(tmp_path, "stage", "job", "cpu")
    maybe_compile(pipeline, kind, torch.device(device), choice, AMOUNT, reporter)
    assert compiled == ([(pipeline, kind)] if is_compiled else [])


@pytest.mark.parametrize(
    ("compiles_by_block", "blocks", "how"),
    [(True, ("Block",), "blocks"), (True, (), "whole"), (False, ("Block",), "whole")],
)
def test_denoisers_are_compiled_by_their_blocks_or_whole(
    compiles_by_block: bool, blocks: tuple[str, ...], how: str
) -> None:
    """For one size alone: batches are fixed, and code for all sizes is slower."""
    networks = [Network(blocks=blocks), Network(blocks=blocks)]
    pipeline: Any = SimpleNamespace(unet=networks[0], unet_2=networks[1], vae=None)
    compile_networks(pipeline, family(compiles_by_block))
    assert [network.compiled for network in networks] == [[(how, {"dynamic": False})]] * 2


@pytest.mark.parametrize(
    ("layer", "options"),
    [(torch.nn.GroupNorm(1, 2), LONG_SUMS), (torch.nn.Linear(1, 1), None)],
)
def test_a_decoder_with_long_sums_is_compiled_for_them(
    layer: torch.nn.Module, options: dict[str, bool] | None
) -> None:
    decoder = Network(layer)
    compile_networks(SimpleNamespace(vae=SimpleNamespace(decoder=decoder)), family())
    assert decoder.compiled == [("whole", {"dynamic": False, "options": options})]


def test_calls_are_counted_in_whole_batches() -> None:
    assert Workload(num_samples=9, steps=4, batch_size=2).num_calls == 5 * 4
