"""Several gloo processes equal one; a killed one leaves no trace; where one fails, all stop."""

import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import processes
import pytest
import torch
from safetensors.torch import load_file

import tiny
from distillery.telemetry import read_events

WEIGHTS = "student/trained/diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    assert train(data, folder, 1) == [0]
    return folder


def train(data, output, num_processes, faults=None, **settings):
    tiny.write_training_job(output, **settings)
    return processes.run(num_processes, tiny.train_arguments(data, output), faults)


def outputs(folder):
    files = [*sorted((folder / "student/trained").iterdir()), folder / "student/loss.parquet"]
    return {path.name: path.read_bytes() for path in files}


def saved(folder):
    return sorted(path.name for path in (folder / "student/checkpoints").glob("*/samples-*"))


def assert_same_training(ours, theirs):
    """Weights and losses equal within the rounding of sums in another order."""
    left, right = load_file(ours / WEIGHTS), load_file(theirs / WEIGHTS)
    for name in right:
        torch.testing.assert_close(left[name], right[name], rtol=1e-5, atol=1e-5)
    pd.testing.assert_frame_equal(
        pd.read_parquet(ours / "student/loss.parquet"),
        pd.read_parquet(theirs / "student/loss.parquet"),
        rtol=1e-4,
    )


# 3 processes share a batch of 8 as 3, 3 and 2; with micro-batches of 2 they accumulate 2, 2 and 1.
@pytest.mark.parametrize(
    ("num_processes", "micro_batch_size"), [(2, None), (2, 1), (3, None), (3, 2)]
)
def test_many_processes_equal_one(data, alone, tmp_path, num_processes, micro_batch_size):
    status = train(data, tmp_path, num_processes, micro_batch_size=micro_batch_size)
    assert status == [0] * num_processes
    assert_same_training(tmp_path, alone)


def test_every_rank_reports_its_own_work(data, tmp_path):
    assert train(data, tmp_path, 2) == [0, 0]
    work = [event for event in read_events(tmp_path / "telemetry") if event.kind == "work"]
    assert {event.job for event in work} == {"train", "train-rank-1"}
    assert sum(event.num_items for event in work) == 64


@pytest.mark.parametrize(
    ("num_processes", "faults"),
    [
        (1, {0: "kill:1"}),
        (1, {0: "kill:4"}),
        (1, {0: "kill:8"}),
        (1, {0: "kill-in-save:2"}),
        (3, {0: "kill:6"}),
        (3, {2: "kill:6"}),
    ],
)
def test_a_killed_training_ends_as_an_undisturbed_one(data, tmp_path, num_processes, faults):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train(data, whole, num_processes) == [0] * num_processes
    status = train(data, parts, num_processes, faults)
    assert -9 in status
    assert processes.HUNG not in status
    assert not (parts / "student/trained").exists()
    assert train(data, parts, num_processes) == [0] * num_processes
    assert outputs(parts) == outputs(whole)


def test_a_training_goes_on_with_another_number_of_processes(data, alone, tmp_path):
    assert train(data, tmp_path, 3, {1: "kill:6"}) != [0, 0, 0]
    assert saved(tmp_path) == ["samples-000000000016", "samples-000000000032"]
    assert train(data, tmp_path, 2) == [0, 0]
    assert_same_training(tmp_path, alone)


def test_a_signal_to_one_rank_stops_all_at_the_same_update(data, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train(data, whole, 2) == [0, 0]
    assert train(data, parts, 2, {1: "terminate:3"}) == [75, 75]
    assert saved(parts) == ["samples-000000000016", "samples-000000000024"]
    assert train(data, parts, 2) == [0, 0]
    assert outputs(parts) == outputs(whole)


def test_a_rank_whose_weights_differ_is_found_before_a_checkpoint_is_written(data, tmp_path):
    assert train(data, tmp_path, 3, {1: "perturb:3"}) == [1, 1, 1]
    assert saved(tmp_path) == ["samples-000000000016"]
    assert "weights of rank 1 are not those of rank 0" in (tmp_path / "logs/train.log").read_text()


def test_one_rank_fails_and_torchrun_ends_all_soon(data, tmp_path):
    """D17: the fault's own message is shown, and nobody waits for anybody."""
    tiny.write_training_job(tmp_path, timeout_s=600)
    program = Path(processes.__file__)
    begin_s = time.monotonic()
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            program, "1=raise:2", *tiny.train_arguments(data, tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "RuntimeError: this rank was broken on purpose" in done.stderr
    assert time.monotonic() - begin_s < 60


def test_a_missing_master_address_is_explained(data, tmp_path, monkeypatch, capfd):
    tiny.write_training_job(tmp_path)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert processes.script.main(tiny.train_arguments(data, tmp_path)) == 1
    assert "no MASTER_ADDR, MASTER_PORT" in capfd.readouterr().err
