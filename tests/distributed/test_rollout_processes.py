"""The finishing phase on several processes: the same weights, and the same bytes after a kill."""

import pandas as pd
import processes
import pytest
import torch
from safetensors.torch import load_file

import tiny

WEIGHTS = "student/trained/diffusion_pytorch_model.safetensors"
FINISH = {"rollout_samples": 32, "perceptual_weight": 0.1}


def train(data, output, num_processes, faults=None, **changes):
    tiny.write_training_job(output, **(FINISH | changes))
    return processes.run(num_processes, tiny.train_arguments(data, output), faults)


@pytest.fixture(scope="module")
def alone(data, teacher, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    (folder / "teacher").symlink_to(teacher)
    assert train(data, folder, 1) == [0]
    return folder


SHARDED = {"parallel": "fsdp", "gradient_checkpointing": True, "micro_batch_size": 2}


# 3 processes share a batch of 8 as 3, 3 and 2.
@pytest.mark.parametrize(("num_processes", "changes"), [(2, {}), (3, {}), (2, SHARDED)])
def test_rollouts_of_many_processes_equal_those_of_one(
    data, teacher, alone, tmp_path, num_processes, changes
):
    (tmp_path / "teacher").symlink_to(teacher)
    assert train(data, tmp_path, num_processes, **changes) == [0] * num_processes
    ours, theirs = load_file(tmp_path / WEIGHTS), load_file(alone / WEIGHTS)
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-5)
    pd.testing.assert_frame_equal(
        *(pd.read_parquet(it / "student/loss.parquet") for it in (tmp_path, alone)), rtol=1e-4
    )


def test_a_training_of_two_goes_on_as_one_in_the_phase(data, teacher, alone, tmp_path):
    """Killed in the phase with two processes, gone on with one: the same order of trajectories."""
    (tmp_path / "teacher").symlink_to(teacher)
    assert train(data, tmp_path, 2, {0: "kill:7"}) != [0, 0]
    assert not (tmp_path / WEIGHTS).exists()
    assert train(data, tmp_path, 1) == [0]
    assert "goes on from" in (tmp_path / "logs/train.log").read_text()
    ours, theirs = load_file(tmp_path / WEIGHTS), load_file(alone / WEIGHTS)
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-5)
