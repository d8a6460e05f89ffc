"""Several gloo processes equal one; a killed one leaves no trace; where one fails, all stop."""

import json
import time
from itertools import chain
from pathlib import Path

import processes
import pytest
from trainings import (
    assert_same_training,
    forked_torchrun,
    log_of,
    outputs,
    saved,
    torchrun,
    train,
    wait_until,
)

import tiny
from distillery.telemetry import read_events


@pytest.fixture(scope="module")
def recorded(data, tmp_path_factory):
    """Trainings of 1, 2 and 3 processes, with the items that each rank learned from.

    3 processes share a batch of 8 as 3, 3 and 2; with micro-batches of 2 they accumulate 2 and 1.
    """
    found = {}
    for num_processes in (1, 2, 3):
        found[num_processes] = folder = tmp_path_factory.mktemp("recorded")
        faults = dict.fromkeys(range(num_processes), f"record:{folder}")
        size = {"micro_batch_size": 2} if num_processes == 3 else {}
        assert train(data, folder, num_processes, faults, **size) == [0] * num_processes
    return found


def test_many_processes_equal_one(recorded):
    assert_same_training(recorded[3], recorded[1])


def items_of_updates(folder, num_processes):
    """The items that all ranks together learned from, update by update."""
    paths = [folder / f"items-{rank}.jsonl" for rank in range(num_processes)]
    of_ranks = [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]
    return [list(chain(*shares)) for shares in zip(*of_ranks, strict=True)]


def test_every_number_of_processes_learns_from_the_same_items_in_the_same_order(recorded):
    """D1, D6: as the loop really reads them, not as the order promises; each reports its own."""
    seen = [items_of_updates(folder, number) for number, folder in recorded.items()]
    assert [len(items) for items in seen[0]] == [8] * 8
    assert sorted(chain(*seen[0][:6])) == list(range(48)), "an epoch, each item once"
    assert seen[1:] == [seen[0]] * 2
    work = [event for event in read_events(recorded[2] / "telemetry") if event.kind == "work"]
    assert {event.job for event in work} == {"training", "training-rank-1"}
    assert sum(event.num_items for event in work) == 64


# Before the first checkpoint, while the second is written, and between two of several processes.
@pytest.mark.parametrize(
    ("num_processes", "faults"),
    [(1, {0: "kill:1"}), (1, {0: "kill-in-save:2"}), (2, {1: "kill:6"})],
)
def test_a_killed_training_ends_as_an_undisturbed_one(
    data, undisturbed, tmp_path, num_processes, faults
):
    status = train(data, tmp_path, num_processes, faults)
    assert -9 in status
    assert processes.HUNG not in status
    assert not (tmp_path / "student/trained").exists()
    assert train(data, tmp_path, num_processes) == [0] * num_processes
    assert outputs(tmp_path) == outputs(undisturbed(num_processes))


def test_interrupted_on_two_resumes_with_one_and_then_with_four(data, alone, tmp_path):
    assert train(data, tmp_path, 2, {1: "kill:4"}) == [1, -9]
    assert saved(tmp_path) == ["samples-000000000016"]
    assert train(data, tmp_path, 1, {0: "terminate:3"}) == [75]
    assert saved(tmp_path)[-1] == "samples-000000000040"
    assert train(data, tmp_path, 4) == [0] * 4
    assert_same_training(tmp_path, alone)


@pytest.mark.slow
def test_torchrun_slurm_and_plain_variables_resume_where_another_stopped(
    data, undisturbed, tmp_path
):
    """D11: one training, started by three launchers, ends as an undisturbed one."""
    done = torchrun(data, tmp_path, 2, "1=terminate:3")
    assert done.returncode == 1
    assert "a checkpoint is saved: start again to resume" in done.stderr
    assert saved(tmp_path)[-1] == "samples-000000000024"
    assert train(data, tmp_path, 2, {1: "terminate:2"}, launcher="slurm") == [75, 75]
    assert saved(tmp_path)[-1] == "samples-000000000040"
    assert train(data, tmp_path, 2, launcher="bare") == [0, 0]
    assert outputs(tmp_path) == outputs(undisturbed(2))


def test_a_rank_whose_weights_differ_is_found_before_a_checkpoint_is_written(data, tmp_path):
    assert train(data, tmp_path, 3, {1: "perturb:3"}) == [1, 1, 1]
    assert saved(tmp_path) == ["samples-000000000016"]
    assert "weights of rank 1 are not those of rank 0" in log_of(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", "RuntimeError: this rank was broken on purpose"),
        ("kill", "Signal 9 (SIGKILL) received by PID"),
        ("hang", "rank 1 made no progress for"),
    ],
)
def test_one_rank_fails_and_torchrun_ends_all_soon(data, tmp_path, fault, message):
    """D17: the fault's own message is shown, and nobody waits for anybody."""
    begin_s = time.monotonic()
    limits = {"hang_timeout_s": 3, "timeout_s": 600}
    status, said = forked_torchrun(data, tmp_path, 2, f"1={fault}:3", **limits)
    assert status == 1
    assert message in said
    assert time.monotonic() - begin_s < 60
    assert saved(tmp_path) == ["samples-000000000016"]


@pytest.mark.slow
def test_the_processes_of_a_killed_torchrun_end_with_it(data, tmp_path):
    """They would hold their GPUs, and write checkpoints beside those of the next attempt."""
    tiny.write_training_job(tmp_path, hang_timeout_s=0)
    arguments = tiny.train_arguments(data, tmp_path)
    with processes.torchrun_started(2, arguments, tmp_path / "stderr", "1=hang:3") as launcher:
        wait_until(lambda: saved(tmp_path), limit_s=60)
        events = read_events(tmp_path / "telemetry")
        ranks = [Path(f"/proc/{event.facts['pid']}") for event in events if event.kind == "start"]
        assert len(ranks) == 2
        assert all(rank.exists() for rank in ranks)
        launcher.kill()
        wait_until(lambda: not any(rank.exists() for rank in ranks), limit_s=10)


def test_one_rank_fails_and_the_others_end_without_a_launcher(data, tmp_path):
    """One fault after another in one folder: each next attempt resumes."""
    fail_at(3, "hang", data, tmp_path)
    log = log_of(tmp_path)
    report = log[log.index("rank 1 made no progress") :]
    assert "It hangs in its own work" in report
    assert "raise training.hang_timeout_s" in report
    assert 'processes.py", line' in report, "the stack of the culprit"
    before = log[: log.index("rank 1 made no progress")]
    assert "Traceback" not in before
    assert "made no progress" not in before
    for fault in ("raise", "hang-with-lock", "kill"):
        before = log_of(tmp_path)
        fail_at(2, fault, data, tmp_path)
        assert "resumes from" in log_of(tmp_path).removeprefix(before)
    assert train(data, tmp_path, 2) == [0, 0]


def fail_at(update, fault, data, folder):
    """Train with a fault of rank 1 in an update, counted from where the training resumes."""
    begin_s = time.monotonic()
    faults = {1: f"{fault}:{update}"}
    status = train(data, folder, 3, faults, hang_timeout_s=3, timeout_s=600)
    assert status == [1, -9 if fault == "kill" else 1, 1], fault
    assert time.monotonic() - begin_s < 60, fault


def test_ranks_that_wait_for_a_frozen_one_end_too_and_say_that_they_waited(data, tmp_path):
    """As on a GPU, where a collective does not notice that the other side is gone."""
    begin_s = time.monotonic()
    status = train(data, tmp_path, 2, {1: "freeze:3"}, limit_s=20, hang_timeout_s=3, timeout_s=600)
    assert status == [1, processes.HUNG]
    assert time.monotonic() - begin_s < 30
    log = log_of(tmp_path)
    assert "rank 0 made no progress" in log
    assert "It was waiting for another rank inside a collective" in log


def test_a_rank_that_waits_on_a_gpu_for_one_that_is_gone_ends_at_once(data, tmp_path):
    begin_s = time.monotonic()
    assert train(data, tmp_path, 2, {0: "wait:3", 1: "kill:3"}) == [1, -9]
    assert time.monotonic() - begin_s < 20
    log = log_of(tmp_path)
    assert "rank 0 waits in: gradients of all ranks, for rank 1" in log


def test_a_missing_master_address_is_explained(data, tmp_path, monkeypatch, capfd):
    tiny.write_training_job(tmp_path)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert processes.script.main(tiny.train_arguments(data, tmp_path)) == 1
    assert "no MASTER_ADDR, MASTER_PORT" in capfd.readouterr().err
