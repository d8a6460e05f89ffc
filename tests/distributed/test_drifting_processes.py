"""A drifting finish on several processes: what is learned does not depend on their number."""

import pytest
from trainings import assert_same_training, log_of
from trainings import train_configured as train

from runs import make_run
from training_phases import phases

TRAINING = {
    "phases": phases(stored=16, drifting={"samples": 32, "weight": 0.5}),
    "global_batch_size": 8, "learning_rate": 1e-3, "tf32": False,
    "dtype": "float32", "log_every_samples": 8, "save_every_samples": 16, "timeout_s": 60,
}  # fmt: skip


@pytest.fixture(scope="module")
def ready(tmp_path_factory, teacher):
    """A batch has one step of each of four prompts: some ranks draw no image in some updates."""
    run = make_run(
        tmp_path_factory.mktemp("drifting"),
        teacher,
        targets={"steps": 8, "num_segments": 4, "samples_per_prompt": 2},
        student={"steps": 4},
        training=TRAINING,
    )
    return run.ready_to_train().folder


@pytest.fixture(scope="module")
def alone(ready, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    assert train(ready, folder, 1) == [0], log_of(folder)[-2000:]
    return folder


@pytest.mark.parametrize(("num_processes", "parallel"), [(4, "ddp"), (2, "fsdp")])
def test_many_processes_learn_what_one_does(ready, alone, tmp_path, num_processes, parallel):
    status = train(ready, tmp_path, num_processes, parallel=parallel)
    assert status == [0] * num_processes, log_of(tmp_path)[-2000:]
    assert_same_training(tmp_path, alone, rtol=1e-3, atol=1e-4)
    assert "of the drift " in log_of(tmp_path)


def test_ranks_that_would_part_a_prompt_are_refused(ready, tmp_path):
    assert train(ready, tmp_path, 3) == [1] * 3
    assert "use a multiple of 6" in log_of(tmp_path)
