"""Students of every kind of network learn on two processes what they learn on one."""

import processes
import pytest
import torch
from safetensors.torch import load_file
from trainings import log_of

import tiny
from distillery.config.jobs import TrainingJob
from distillery.files import read_json, write_json
from distillery.student.build import build_student
from families import CASES
from families.made import made_run
from training_phases import phases

TRAINING = {
    "phases": phases(stored=16),
    "save_every_samples": 16,
    "learning_rate": 1e-3,
    "timeout_s": 60,
}
# FLUX asks its network's configuration, Qwen-Image's last block makes what nothing reads, SDXL is
# a UNet; Wan is the network of all other tests, but for its student of any number of steps.
NAMES = ("flux-dev", "qwen-image", "sana", "sdxl", "wan")


@pytest.fixture(scope="module", params=NAMES)
def ready(request, tmp_path_factory):
    """A run of one family that is ready to train."""
    (case,) = [case for case in CASES if case.name == request.param]
    student = {"steps": case.steps} | ({"init": "flow_map"} if case.name == "wan" else {})
    run = made_run(tmp_path_factory, case, student=student, training=TRAINING)
    build_student(run.job("training", TrainingJob), run.folder / "student" / "initial")
    return run.folder


def trained(ready, output, num_processes):
    """The weights, after a training that must succeed."""
    for name in ("training.json", "runtime.json"):
        write_json(output / "config" / name, read_json(ready / "config" / name))
    status = processes.run(num_processes, tiny.train_arguments(ready, output))
    assert status == [0] * num_processes, log_of(output)[-2000:]
    (file,) = (output / "student/trained").glob("*.safetensors")
    return load_file(file)


def test_two_processes_equal_one(ready, tmp_path):
    alone, together = (trained(ready, tmp_path / str(number), number) for number in (1, 2))
    assert alone.keys() == together.keys()
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=1e-4, atol=2e-5, msg=name)
