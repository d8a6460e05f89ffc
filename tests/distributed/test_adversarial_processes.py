"""An adversarial finish on several processes: what is learned does not depend on their number."""

import pytest
from trainings import assert_same_training, log_of, saved
from trainings import train_configured as train

from runs import make_run
from training_phases import phases

TRAINING = {
    "phases": phases(stored=8, adversarial={"samples": 24, "weight": 0.5}),
    "global_batch_size": 8, "learning_rate": 1e-3, "tf32": False,
    "dtype": "float32", "log_every_samples": 8, "save_every_samples": 8, "timeout_s": 60,
}  # fmt: skip


@pytest.fixture(scope="module")
def ready(tmp_path_factory, teacher):
    """Of a batch of 8 at 4 steps some of four ranks have no sample that ends on an image."""
    run = make_run(
        tmp_path_factory.mktemp("adversarial"),
        teacher,
        targets={"steps": 8, "num_segments": 4},
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
    settings = {"parallel": parallel, "save_every_samples": 32}
    status = train(ready, tmp_path, num_processes, **settings)
    assert status == [0] * num_processes, log_of(tmp_path)[-2000:]
    assert_same_training(tmp_path, alone, rtol=1e-3, atol=1e-4)


def test_a_killed_finish_resumes_on_one_process(ready, alone, tmp_path):
    assert 0 not in train(ready, tmp_path, 2, {0: "kill:4"})
    assert saved(tmp_path)
    assert train(ready, tmp_path, 1) == [0]
    assert "resumes from" in log_of(tmp_path)
    assert_same_training(tmp_path, alone, rtol=1e-3, atol=1e-4)
