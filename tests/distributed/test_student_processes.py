"""A student of low-rank additions learns the same on two processes, and resumes where it was."""

import pytest
import torch
from safetensors.torch import load_file
from trainings import outputs, train

import tiny
from distillery.config.jobs import TrainingJob, read_job
from distillery.files import read_json, write_json
from distillery.student.build import build_student
from distillery.student.lora import LORA_FILE


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A tiny run whose student is trained by its additions alone."""
    folder = tmp_path_factory.mktemp("lora")
    tiny.make_tiny_wan(folder / "teacher")
    tiny.make_tiny_store(folder)
    tiny.write_training_job(folder)
    path = folder / "config" / "training.json"
    student = {"steps": 4, "init": "lora", "lora": {"rank": 4}}
    write_json(path, read_json(path) | {"student": student})
    build_student(read_job(path, TrainingJob), folder / "student" / "initial")
    return folder


def additions(folder):
    return load_file(folder / "student/trained" / LORA_FILE)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_equal_one(data, alone, tmp_path, parallel):
    assert train(data, tmp_path, 2, parallel=parallel) == [0, 0]
    ours, theirs = additions(tmp_path), additions(alone)
    before = load_file(data / "student/initial" / LORA_FILE)
    assert ours.keys() == theirs.keys() == before.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=1e-5)
        assert not torch.allclose(value, before[name], rtol=0, atol=1e-4), name


def test_a_killed_training_resumes(data, undisturbed, tmp_path):
    assert train(data, tmp_path, 2, {0: "kill:6"}) != [0, 0]
    assert train(data, tmp_path, 2) == [0, 0]
    assert outputs(tmp_path) == outputs(undisturbed(2))
