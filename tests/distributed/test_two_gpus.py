"""Two GPUs and NCCL, which never learns that the other side is gone: what gloo cannot show."""

import time

import pytest
from trainings import assert_same_training, log_of, saved, torchrun, train

from distillery.telemetry import read_events

pytestmark = pytest.mark.gpu(2)
CLOSE = {"rtol": 1e-3, "atol": 1e-4}
"""GPUs choose their kernels by the size of a micro-batch."""


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_gpus_learn_what_one_does(data, alone, tmp_path, parallel):
    assert train(data, tmp_path, 2, parallel=parallel) == [0, 0]
    assert f"parallel: {parallel}" in log_of(tmp_path)
    assert_same_training(tmp_path, alone, **CLOSE)


def test_interrupted_on_two_gpus_resumes_with_one(data, alone, tmp_path):
    assert train(data, tmp_path, 2, {1: "terminate:3"}) == [75, 75]
    assert saved(tmp_path) == ["samples-000000000016", "samples-000000000024"]
    assert train(data, tmp_path, 1) == [0]
    assert "resumes from" in log_of(tmp_path)
    assert_same_training(tmp_path, alone, **CLOSE)


@pytest.mark.parametrize("fault", ["raise", "out-of-memory", "kill", "hang", "hang-with-lock"])
def test_a_fault_on_one_gpu_ends_both_within_a_minute(data, tmp_path, fault, capsys):
    """With the limits that users have: those of NCCL are far longer."""
    done = torchrun(data, tmp_path, 2, f"1={fault}:3", limit_s=200, timeout_s=1800)
    seconds = time.time() - last_update_s(tmp_path)
    with capsys.disabled():
        print(f"\n{fault}: {seconds:.1f} s from the last update to the end")  # noqa: T201
    assert done.returncode == 1
    assert seconds < 60
    assert saved(tmp_path) == ["samples-000000000016"]
    assert train(data, tmp_path, 2) == [0, 0]
    assert "resumes from" in log_of(tmp_path)


def last_update_s(folder):
    """When the update before the fault was done."""
    return max(event.end_s for event in read_events(folder / "telemetry") if event.kind == "work")


def test_out_of_memory_on_one_gpu_makes_the_next_attempt_smaller(data, alone, tmp_path):
    """Under torchrun, which ends the other: NCCL would wait for the one that is gone."""
    done = torchrun(data, tmp_path, 2, "1=room:2", micro_batch_size=4)
    assert done.returncode == 1
    done = torchrun(data, tmp_path, 2, "1=room:2", micro_batch_size=4)
    assert done.returncode == 0, done.stderr
    assert "micro-batches of 2: an earlier attempt ran out of memory" in log_of(tmp_path)
    assert_same_training(tmp_path, alone, **CLOSE)
