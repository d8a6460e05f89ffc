"""The finishing phase on several processes: the same weights, and the same bytes after a kill."""

import pytest
from trainings import assert_same_training, log_of, train

from training_phases import phases

FINISH = {"phases": phases(stored=32, rollouts={"samples": 32, "perceptual_weight": 0.1})}


@pytest.fixture(scope="module")
def alone(data, teacher, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    (folder / "teacher").symlink_to(teacher)
    assert train(data, folder, 1, **FINISH) == [0]
    return folder


SHARDED = {
    "parallel": "fsdp", "gradient_checkpointing": True, "micro_batch_size": 2,
    "save_every_samples": 64,
}  # fmt: skip


# 3 processes share a batch of 8 as 3, 3 and 2.
@pytest.mark.parametrize(("num_processes", "changes"), [(3, {}), (2, SHARDED)])
def test_rollouts_of_many_processes_equal_those_of_one(
    data, teacher, alone, tmp_path, num_processes, changes
):
    (tmp_path / "teacher").symlink_to(teacher)
    assert train(data, tmp_path, num_processes, **FINISH, **changes) == [0] * num_processes
    assert_same_training(tmp_path, alone)


def test_a_training_of_two_resumes_as_one_in_the_phase(data, teacher, alone, tmp_path):
    """Killed in the phase with two processes, resumed with one: the same order of trajectories."""
    (tmp_path / "teacher").symlink_to(teacher)
    assert train(data, tmp_path, 2, {0: "kill:7"}, **FINISH) != [0, 0]
    assert not (tmp_path / "student/trained").exists()
    assert train(data, tmp_path, 1, **FINISH) == [0]
    assert "resumes from" in log_of(tmp_path)
    assert_same_training(tmp_path, alone)
