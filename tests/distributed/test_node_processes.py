"""Trainings over several nodes: the same weights, and what the nodes must have in common.

All nodes are this machine; processes of different ones do not see each other end, as on a cluster.
"""

import shutil
import signal
import socket
import time

import processes
import pytest
from trainings import assert_same_training, log_of, saved, train

import tiny
from distillery.files import read_json
from training_phases import phases

TWO_BY_TWO = ("n1", "n1", "n2", "n2")
THREE = ("n1", "n2", "n3")
SHORT = {"phases": phases(stored=32), "save_every_samples": 32}


@pytest.fixture(scope="module")
def short(data, tmp_path_factory):
    """A training of four updates by one process."""
    folder = tmp_path_factory.mktemp("short")
    assert train(data, folder, 1, **SHORT) == [0]
    return folder


@pytest.mark.parametrize("nodes", [THREE, ("n2", "n1", "n2", "n1")])
def test_nodes_learn_what_one_process_does(data, short, tmp_path, nodes):
    """With fsdp each node has the whole student, dealt out over its processes."""
    faults = {0: f"mesh:{nodes.count(nodes[0])}"}
    settings = {"launcher": nodes, "parallel": "fsdp", **SHORT}
    status = train(data, tmp_path, len(nodes), faults, **settings)
    assert status == [0] * len(nodes), log_of(tmp_path)[-2000:]
    assert f"{len(set(nodes))} nodes" in log_of(tmp_path)
    assert_same_training(tmp_path, short)
    config = "student/trained/config.json"
    assert read_json(tmp_path / config) == read_json(short / config)


def test_a_node_that_dies_ends_the_others_and_another_number_of_nodes_resumes(
    data, alone, tmp_path
):
    """Two nodes, then one, then three, all with ddp."""
    status = train(data, tmp_path, 4, {2: "kill:3", 3: "kill:3"}, launcher=TWO_BY_TWO)
    assert 0 not in status
    assert processes.HUNG not in status
    before = saved(tmp_path)
    assert train(data, tmp_path, 2, {0: "terminate:2"}, launcher="slurm") == [75, 75]
    assert len(saved(tmp_path)) > len(before)
    assert train(data, tmp_path, 3, launcher=THREE) == [0, 0, 0]
    assert log_of(tmp_path).count("resumes from") >= 2
    assert_same_training(tmp_path, alone)


def test_a_node_that_is_silent_ends_the_others_in_time(data, tmp_path):
    """As after a power failure: no connection is closed, nobody says anything."""
    begin_s = time.monotonic()
    limits = {"hang_timeout_s": 3, "timeout_s": 600}
    status = train(data, tmp_path, 2, {1: "freeze:3"}, launcher=("n1", "n2"), **limits)
    assert status[0] == 1
    assert time.monotonic() - begin_s < 20
    assert "was waiting for another rank" in log_of(tmp_path)


def test_nodes_of_unequal_numbers_are_refused(data, tmp_path):
    assert train(data, tmp_path, 3, launcher=("n1", "n1", "n2")) == [1, 1, 1]
    assert "unequal numbers of processes (n1 2, n2 1): ask for the same" in log_of(tmp_path)


def test_another_version_on_a_node_is_refused(data, tmp_path):
    assert train(data, tmp_path, 2, {1: "version:0.0.1"}, launcher=("n1", "n2")) == [1, 1]
    assert "rank 1 on n2 runs distillery 0.0.1, rank 0 on n1 runs" in log_of(tmp_path)


def test_a_node_that_does_not_see_the_folder_is_named(data, tmp_path, monkeypatch):
    """It has files of the same names, or none."""
    for folder in ("shared", "other"):
        tiny.write_training_job(tmp_path / folder / "run")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "shared")
    arguments = tiny.train_arguments(data, tmp_path / "shared/run")
    absolute, log = str(tmp_path / "shared/run"), tmp_path / "log"
    arguments = [word.replace(absolute, "run") for word in arguments]
    arguments[-1] = str(log)
    faults = {0: f"folder:{tmp_path / 'shared'}", 1: f"folder:{tmp_path / 'other'}"}
    assert processes.run(2, arguments, faults, ("n1", "n2")) == [1, 1]
    told = log.read_text()
    assert f"rank 1 on n2, in {tmp_path / 'other'}, does not see run of rank 0 on n1" in told
    assert "start all processes of a training in one folder" in told
    assert not list((tmp_path / "shared/run").glob(".seen-by-all*"))
    shutil.rmtree(tmp_path / "other")
    status = processes.run(
        2, arguments, faults | {1: f"folder:{tmp_path / 'empty'}"}, ("n1", "n2"), 8
    )
    assert status[1] == 1
    assert "training.json is not there for rank 1 on n2" in log.read_text()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 1e-4}, "rank 1 has training.learning_rate 0.0001, rank 0 has"),
        ({"micro_batch_size": 1}, "rank 1 has training.micro_batch_size 1, rank 0 has"),
    ],
)
def test_processes_of_different_trainings_are_refused(data, tmp_path, settings, message):
    """Else they would learn together what neither is to learn."""
    tiny.write_training_job(tmp_path)
    tiny.write_training_job(tmp_path / "other", **settings)
    other = tmp_path / "other/config"
    faults = {1: f"config:{other}"}
    assert processes.run(2, tiny.train_arguments(data, tmp_path), faults) == [1, 1]
    assert message in log_of(tmp_path)


def test_a_wait_for_the_others_ends_by_a_signal(data, tmp_path):
    """PyTorch waits where no handler of Python's runs."""
    tiny.write_training_job(tmp_path)
    port = processes._free_port()
    with processes.started(0, 2, port, tiny.train_arguments(data, tmp_path)) as waiting:
        processes.wait_for_a_listener(port, limit_s=60)
        time.sleep(0.5)
        waiting.terminate()
        waiting.join(10)
    assert waiting.exitcode == -signal.SIGTERM


def test_a_port_in_use_is_named(data, tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(processes, "_free_port", lambda: port)
        begin_s = time.monotonic()
        status = train(data, tmp_path, 2, launcher=("n1", "n2"), limit_s=15)
    assert status[0] == 1
    assert time.monotonic() - begin_s < 30
    assert f"port {port} of 127.0.0.1 is in use by another process" in log_of(tmp_path)
