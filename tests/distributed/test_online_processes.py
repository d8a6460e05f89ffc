"""Online targets on several processes: each rank's own, wherever the teacher is."""

import time
from contextlib import suppress
from pathlib import Path

import processes
import pytest
from trainings import assert_same_training, copy_of_config, log_of, saved, wait_until

import tiny
from distillery.files import read_json, write_json
from runs import make_run
from training_phases import phases

TRAINING = {
    "phases": phases(stored=16, online=48), "global_batch_size": 8, "learning_rate": 1e-3,
    "tf32": False, "log_every_samples": 8, "save_every_samples": 16, "timeout_s": 60,
}  # fmt: skip
MATCHING = {"weight": 0.5, "learning_rate": 1e-3, "updates": 2}


@pytest.fixture(scope="module")
def ready(tmp_path_factory, teacher):
    """A run whose prompts have different lengths, ready to train."""
    return make_ready(tmp_path_factory.mktemp("online"), teacher, TRAINING)


def make_ready(folder, teacher, training):
    run = make_run(
        folder,
        teacher,
        targets={"steps": 8, "num_segments": 4},
        student={"steps": 4},
        training=training,
    )
    return run.ready_to_train().folder


def train(ready, output, num_processes, faults=None, launcher="bare", **settings):
    copy_of_config(ready, output, **settings)
    arguments = tiny.train_arguments(ready, output)
    return processes.run(num_processes, arguments, faults, launcher, limit_s=120)


@pytest.fixture(scope="module")
def alone(ready, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    assert train(ready, folder, 1) == [0], log_of(folder)[-2000:]
    return folder


OF_ONE = {"teacher_residence": "one_rank", "teacher_rank": 1}


# 3 processes share a batch of 8 as 3, 3 and 2.
@pytest.mark.parametrize(
    ("num_processes", "settings"),
    [
        (2, {"teacher_residence": "cpu"}),
        (3, {"teacher_residence": "shared"}),
        (3, OF_ONE),
    ],
)
def test_many_processes_learn_what_one_does(ready, alone, tmp_path, num_processes, settings):
    assert train(ready, tmp_path, num_processes, **settings) == [0] * num_processes, log_of(
        tmp_path
    )[-2000:]
    assert_same_training(tmp_path, alone, rtol=1e-4, atol=2e-5)


def test_a_teacher_that_fails_ends_all_ranks(ready, tmp_path):
    """Those that wait for its answer end soon too, and the next try goes on."""
    begin_s = time.monotonic()
    status = train(ready, tmp_path, 3, {1: "teacher:3"}, **OF_ONE)
    assert time.monotonic() - begin_s < 40
    assert 0 not in status
    assert processes.HUNG not in status
    assert "this rank was broken on purpose" in log_of(tmp_path)
    assert train(ready, tmp_path, 1) == [0]


OWN = {"teacher_residence": "own_gpus"}


def test_a_teachers_process_that_dies_ends_all_ranks(ready, alone, tmp_path):
    assert train(ready, tmp_path, 2, {0: "kill-teacher:5"}, **OWN) == [1, 1]
    assert "the teacher's process has ended" in log_of(tmp_path)
    assert train(ready, tmp_path, 3) == [0, 0, 0]
    assert_same_training(tmp_path, alone, rtol=1e-4, atol=2e-5)


def test_a_teachers_process_that_cannot_load_says_why(ready, tmp_path):
    """Here on a CPU, where it cannot have two GPUs."""
    copy_of_config(ready, tmp_path, **OWN)
    runtime = tmp_path / "config/runtime.json"
    settings = read_json(runtime)
    settings["teacher"]["num_gpus"] = 2
    write_json(runtime, settings)
    status = processes.run(2, tiny.train_arguments(ready, tmp_path))
    assert status[0] == 1
    assert 0 not in status
    assert "the teacher's process has ended with status 1" in log_of(tmp_path)


def test_a_teachers_process_ends_with_a_killed_rank(ready, tmp_path):
    before = teachers()
    assert train(ready, tmp_path, 2, {0: "kill-spawner:7"}, **OWN)[0] == -9
    wait_until(lambda: teachers() <= before, limit_s=10)


def teachers():
    """Processes that were spawned, whoever did it."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if "multiprocessing.spawn" in (process / "cmdline").read_text():
                found.add(process.name)
    return found


def test_a_finish_resumes_with_another_number_of_processes(ready, alone, tmp_path):
    """Killed in the online phase with two processes, whose one teacher dies with them."""
    settings = {"teacher_residence": "one_rank"}
    assert 0 not in train(ready, tmp_path, 2, {0: "kill:7"}, **settings)
    assert saved(tmp_path)
    assert train(ready, tmp_path, 1) == [0]
    assert "resumes from" in log_of(tmp_path)
    assert_same_training(tmp_path, alone, rtol=1e-4, atol=2e-5)


@pytest.fixture(scope="module")
def matched(tmp_path_factory, teacher):
    """The same with distribution matching, and what one process learns from it."""
    online = {"samples": 48, "distribution_matching": MATCHING}
    matching = {"phases": phases(stored=16, online=online)}
    ready = make_ready(tmp_path_factory.mktemp("matched"), teacher, TRAINING | matching)
    alone = tmp_path_factory.mktemp("matched-alone")
    assert train(ready, alone, 1) == [0], log_of(alone)[-2000:]
    return ready, alone


@pytest.mark.parametrize(("num_processes", "settings"), [(2, {}), (4, OF_ONE)])
def test_matching_does_not_depend_on_the_processes(matched, tmp_path, num_processes, settings):
    """Of four ranks with two samples each some have none that ends on an image."""
    ready, alone = matched
    status = train(ready, tmp_path, num_processes, **settings)
    assert status == [0] * num_processes, log_of(tmp_path)[-2000:]
    assert_same_training(tmp_path, alone, rtol=1e-3, atol=1e-4)


def test_each_node_has_a_teachers_process_of_its_own(matched, tmp_path):
    """Which answers both of its questions: where to go from a state, and what is seen in it."""
    ready, alone = matched
    faults = {0: "count-teachers:1", 1: "count-teachers:0", 2: "count-teachers:1"}
    nodes = ("n1", "n1", "n2", "n2")
    assert train(ready, tmp_path, 4, faults, launcher=nodes, **OWN) == [0] * 4
    assert_same_training(tmp_path, alone, rtol=1e-3, atol=1e-4)


def test_matching_resumes_with_another_number_of_processes(matched, tmp_path):
    ready, alone = matched
    assert 0 not in train(ready, tmp_path, 2, {0: "kill:7"}, **OF_ONE)
    assert saved(tmp_path)
    assert train(ready, tmp_path, 1) == [0]
    assert_same_training(tmp_path, alone, rtol=1e-3, atol=1e-4)
