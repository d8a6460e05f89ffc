"""Batches shrink where they do not fit, grow where that pays, and nothing is lost or done twice."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from distillery.generation.batching import Batcher
from distillery.generation.speed import MIN_PARAMETERS, Workload, compile_pays_off
from distillery.store.trajectories import TrajectoryStore
from distillery.telemetry import Reporter
from runs import CPU, make_run

LIMIT = 3


@pytest.fixture
def reporter(tmp_path: Path) -> Reporter:
    return Reporter(tmp_path, "stage", "job", "cpu")


class Device:
    """Work that fits up to `LIMIT` samples, as a GPU that runs out of memory."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.sizes: list[int] = []

    def run(self, rows: Sequence[int], size: int) -> list[int]:
        self.sizes.append(size)
        if size > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return [10 * row for row in rows]


def test_out_of_memory_halves_and_goes_on(
    reporter: Reporter, caplog: pytest.LogCaptureFixture
) -> None:
    device, batcher = Device(), Batcher(8, 8, CPU, reporter)
    with caplog.at_level(logging.WARNING):
        done = list(batcher.map(range(11), device.run))
    assert [row for rows, _ in done for row in rows] == list(range(11))
    assert [value for _, values in done for value in values] == [10 * row for row in range(11)]
    assert device.sizes == [8, 4, 2, 2, 2, 2, 2, 2]
    assert "continues with batches of 2" in caplog.text
    assert list(batcher.map(range(2), device.run))
    assert device.sizes[-1] == 2, "it does not try the large size again"


def test_a_single_sample_that_does_not_fit_says_what_to_do(reporter: Reporter) -> None:
    batcher = Batcher(2, 2, CPU, reporter)
    with pytest.raises(ValueError, match=r"single sample on cpu: set teacher\.offload: model"):
        list(batcher.map(range(2), Device(0).run))


def test_a_fixed_size_is_never_probed(reporter: Reporter) -> None:
    batcher = Batcher(4, 8, CPU, reporter)
    batcher.settle(lambda _size: pytest.fail("probed"))
    assert batcher.size == 4


@pytest.mark.parametrize(
    ("seconds", "size"),
    [
        ({1: 1.0, 2: 1.1, 4: 1.5, 8: 3.0}, 4),  # a batch of 8 is no faster a sample
        ({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0}, 8),  # the largest allowed
        ({1: 1.0, 2: 2.0}, 1),
        ({1: 1.0, 2: 1.0, 4: None}, 2),  # out of memory
    ],
)
def test_auto_doubles_while_it_pays(
    reporter: Reporter, monkeypatch: pytest.MonkeyPatch, seconds: dict[int, Any], size: int
) -> None:
    batcher = Batcher("auto", 8, torch.device("cuda", 0), reporter)
    rates = {count: count / took if took else 0.0 for count, took in seconds.items()}
    monkeypatch.setattr(batcher, "_rate", lambda _probe, count: rates[count])
    batcher.settle(lambda _size: None)
    assert batcher.size == size


def test_auto_is_settled_once(reporter: Reporter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk asks; a second choice would change the batches in the middle of a run."""
    batcher, probed = Batcher("auto", 8, torch.device("cuda", 0), reporter), []
    monkeypatch.setattr(batcher, "_rate", lambda _probe, size: probed.append(size) or size)
    batcher.settle(lambda _size: None)
    batcher.settle(lambda _size: None)
    assert probed == [1, 2, 4, 8]


def test_auto_makes_the_same_trajectories_on_a_cpu(teacher: Path, tmp_path: Path) -> None:
    """Within rounding: other batches round differently."""
    fixed = make_run(tmp_path / "fixed", teacher, targets={"batch_size": 2})
    auto = make_run(tmp_path / "auto", teacher, targets={"batch_size": "auto"})
    for run in (fixed, auto):
        run.encode("train")
        run.all_targets()
    stores = [TrajectoryStore(run.folder / "targets/manifest.json") for run in (fixed, auto)]
    for sample in range(stores[0].num_samples):
        ours, theirs = (store.states(sample, 0, 2)[1] for store in stores)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("choice", "num_parameters", "num_samples", "compiled"),
    [
        ("always", 10, 1, True),
        ("never", 10**10, 10**6, False),
        ("auto", 10**10, 8 * 400, True),
        ("auto", 10**10, 8 * 399, False),
        ("auto", MIN_PARAMETERS, 10**6, True),
        ("auto", MIN_PARAMETERS - 1, 10**6, False),
    ],
)
def test_large_networks_are_compiled_for_long_runs(
    choice: Any, num_parameters: int, num_samples: int, compiled: bool
) -> None:
    assert compile_pays_off(choice, num_parameters, Workload(num_samples, 20, 8)) == compiled
