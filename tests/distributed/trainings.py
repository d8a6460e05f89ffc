"""Tiny trainings of several processes, and what they leave behind."""

import time

import pandas as pd
import processes
import torch

import tiny
from distillery.files import read_json, write_json
from distillery.student.on_disk import load_student


def train(data, output, num_processes, faults=None, launcher="bare", limit_s=60, **settings):
    """Train in processes that find each other by variables; their exit codes, by rank."""
    tiny.write_training_job(output, **settings)
    arguments = tiny.train_arguments(data, output)
    return processes.run(num_processes, arguments, faults, launcher, limit_s)


def train_configured(ready, output, num_processes, faults=None, **settings):
    """As `train`, with the configuration of a run that is ready to train; see `copy_of_config`."""
    copy_of_config(ready, output, **settings)
    return processes.run(num_processes, tiny.train_arguments(ready, output), faults)


def copy_of_config(ready, output, **settings):
    """The frozen configuration of a run's training, with other settings of the machine."""
    write_json(output / "config/training.json", read_json(ready / "config/training.json"))
    runtime = read_json(ready / "config/runtime.json")
    runtime["training"] |= settings
    write_json(output / "config/runtime.json", runtime)


def torchrun(data, output, num_processes, fault="", limit_s=100, **settings):
    """A real torchrun that has finished."""
    tiny.write_training_job(output, **settings)
    return processes.torchrun(num_processes, tiny.train_arguments(data, output), fault, limit_s)


def forked_torchrun(data, output, num_processes, fault, limit_s=100, **settings):
    """The exit status of one that is a fork, and what was written to stderr."""
    tiny.write_training_job(output, **settings)
    arguments, stderr = tiny.train_arguments(data, output), output / "stderr"
    with processes.torchrun_started(num_processes, arguments, stderr, fault) as launcher:
        launcher.join(limit_s)
    return launcher.exitcode, stderr.read_text()


def outputs(folder):
    """The bytes of all that a training is asked for."""
    trained = sorted(path for path in (folder / "student/trained").rglob("*") if path.is_file())
    files = [*trained, folder / "student/loss.parquet"]
    return {path.relative_to(folder): path.read_bytes() for path in files}


def saved(folder):
    """The names of its checkpoints, in their order."""
    return sorted(path.name for path in (folder / "student/checkpoints").glob("*/samples-*"))


def log_of(folder):
    return (folder / "logs/training.log").read_text()


def wait_until(condition, limit_s):
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "waited too long"
        time.sleep(0.05)


def assert_same_training(ours, theirs, rtol=1e-5, atol=1e-5, losses_rtol=1e-4):
    """Weights, losses and gradient norms equal within the rounding of sums in another order."""
    left, right = (
        load_student(folder / "student/trained", torch.float32).state_dict()
        for folder in (ours, theirs)
    )
    assert left.keys() == right.keys()
    for name in right:
        torch.testing.assert_close(left[name], right[name], rtol=rtol, atol=atol)
    pd.testing.assert_frame_equal(
        pd.read_parquet(ours / "student/loss.parquet"),
        pd.read_parquet(theirs / "student/loss.parquet"),
        rtol=losses_rtol,
    )
