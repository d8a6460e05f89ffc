"""A student that is dealt out over processes learns what a whole one does, from the same files."""

import pandas as pd
import processes
import pytest
import trainings
from trainings import assert_same_training, log_of

import tiny
from distillery.config.jobs import TrainingJob, read_job
from distillery.files import read_json, write_json
from distillery.student.build import build_student
from training_phases import phases

CONFIG = "config/training.json"
LORA = {"init": "lora", "lora": {"rank": 2, "targets": ["to_q", "to_v"]}}
SHORT = {"phases": phases(stored=32)}
"""Four updates: on a CPU one with dealt-out weights takes ten times as long as another."""
SAVED_ONCE = {"save_every_samples": 32}
"""At the end, for a checkpoint of dealt-out weights takes as long as several updates."""


def train(*arguments, **settings):
    return trainings.train(*arguments, **SHORT | settings)


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    """The same training by one process."""
    folder = tmp_path_factory.mktemp("alone")
    assert train(data, folder, 1) == [0]
    return folder


def test_dealt_out_weights_learn_as_whole_ones(data, alone, tmp_path):
    """3 processes have 3, 3 and 2 samples of a batch of 8."""
    settings = {"micro_batch_size": 2, "gradient_checkpointing": True}
    assert train(data, tmp_path, 3, parallel="fsdp", **SAVED_ONCE, **settings) == [0] * 3
    assert "parallel: fsdp" in log_of(tmp_path)
    assert_same_training(tmp_path, alone)
    config = "student/trained/config.json"
    assert read_json(tmp_path / config) == read_json(alone / config)


def test_what_is_held_out_is_measured_by_all_processes(data, tmp_path):
    """Of eight segments one process of three has fewer than the others; with dealt-out weights none
    can measure alone."""
    settings = {"held_out_prompts": 1} | SAVED_ONCE
    assert train(data, tmp_path / "one", 1, **settings) == [0]
    losses = pd.read_parquet(tmp_path / "one/student/loss.parquet")
    assert losses["held_out_loss"].notna().any()
    assert train(data, tmp_path / "three", 3, parallel="fsdp", **settings) == [0] * 3
    assert_same_training(tmp_path / "three", tmp_path / "one")


def test_one_sample_at_once_needs_equal_shares(data, tmp_path):
    settings = {"parallel": "fsdp", "micro_batch_size": 1}
    assert train(data, tmp_path, 3, **settings) == [1, 1, 1]
    assert "a multiple of 3; use 6 or 9" in log_of(tmp_path)


def test_bfloat16_dealt_out_is_bfloat16_whole(data, tmp_path):
    """Gathered in bfloat16, summed in float32: what autocast computes from whole weights."""
    for name, parallel in (("whole", "ddp"), ("parts", "fsdp")):
        settings = {"dtype": "bfloat16", "parallel": parallel} | SAVED_ONCE
        assert train(data, tmp_path / name, 2, **settings) == [0, 0]
    # bfloat16 keeps 8 bits.
    assert_same_training(
        tmp_path / "parts", tmp_path / "whole", rtol=0.0, atol=1e-2, losses_rtol=2**-7
    )


@pytest.mark.parametrize(("first", "then"), [((2, "ddp"), (3, "fsdp")), ((2, "fsdp"), (1, "auto"))])
def test_a_training_resumes_however_the_weights_are_dealt_out(data, alone, tmp_path, first, then):
    num_processes, parallel = first
    # A save waits for the one before: of three, two are written, however slow the disk is.
    settings = {"parallel": parallel, "save_every_samples": 8}
    killed = train(data, tmp_path, num_processes, {0: "kill:4"}, **settings)
    assert killed[0] == -9
    assert list((tmp_path / "student/checkpoints").glob("*/samples-*"))
    num_processes, parallel = then
    assert (
        train(data, tmp_path, num_processes, parallel=parallel, **SAVED_ONCE) == [0] * num_processes
    )
    assert "resumes from" in log_of(tmp_path)
    assert_same_training(tmp_path, alone)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_out_of_memory_in_one_process_makes_the_next_attempt_smaller(
    data, alone, tmp_path, parallel
):
    faults = {1: "room:2"}
    status = train(data, tmp_path, 2, faults, parallel=parallel)
    assert status[1] == 1
    assert processes.HUNG not in status
    # The retry meets the same limit, and with half as many samples does not reach it.
    assert train(data, tmp_path, 2, faults, parallel=parallel) == [0, 0]
    assert "micro-batches of 2: an earlier attempt ran out of memory" in log_of(tmp_path)
    assert_same_training(tmp_path, alone)


def test_gradients_stay_in_the_buckets_of_ddp(data, tmp_path):
    """Beside them they would take as much memory again, in the midst of an update."""
    settings = {"parallel": "ddp", "micro_batch_size": 1}
    assert train(data, tmp_path, 2, {0: "terminate:3", 1: "hold"}, **settings) == [75, 75]
    assert train(data, tmp_path, 2, {0: "hold", 1: "hold"}, **settings) == [0, 0]
    assert "resumes from" in log_of(tmp_path)


def test_sizes_are_estimated_together_and_leave_no_trace(data, alone, tmp_path):
    """The process with the least room decides; no weight, gradient or moment is touched."""
    faults = {0: "estimate:4", 1: "estimate:3"}
    assert train(data, tmp_path, 2, faults, parallel="fsdp", **SAVED_ONCE) == [0, 0]
    assert log_of(tmp_path).count("estimated: 2") == 2
    assert_same_training(tmp_path, alone)


@pytest.mark.parametrize("student", [LORA, {"init": "time_embeddings"}], ids=["lora", "time"])
def test_frozen_weights_are_dealt_out_too(data, tmp_path, student):
    """Of a student of which little learns: only this has gradients, moments and averages."""
    source = tmp_path / "data"
    source.mkdir()
    for name in ("teacher", "targets", "embeddings", "prompts"):
        (source / name).symlink_to(data / name)
    write_job_of(student, source)
    build_student(read_job(source / CONFIG, TrainingJob), source / "student/initial")
    for name, num_processes, parallel in (("whole", 1, "auto"), ("parts", 2, "fsdp")):
        write_job_of(student, tmp_path / name, parallel=parallel, dtype="bfloat16", **SHORT)
        arguments = tiny.train_arguments(source, tmp_path / name)
        assert processes.run(num_processes, arguments) == [0] * num_processes
    assert_same_training(
        tmp_path / "parts", tmp_path / "whole", rtol=0.0, atol=1e-2, losses_rtol=2**-7
    )


def write_job_of(student, folder, **settings):
    tiny.write_training_job(folder, **settings)
    job = read_json(folder / CONFIG)
    job["student"] |= student
    write_json(folder / CONFIG, job)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_compiled_student_that_computes_again_is_dealt_out_too(data, alone, tmp_path, parallel):
    settings = {"compile": "always", "gradient_checkpointing": True, "parallel": parallel}
    settings |= SAVED_ONCE
    # Graphs, hooks and the second forward pass must get along; kernels would take a minute.
    faults = {0: "no-kernels", 1: "no-kernels"}
    assert train(data, tmp_path, 2, faults, limit_s=120, **settings) == [0, 0]
    assert_same_training(tmp_path, alone)
