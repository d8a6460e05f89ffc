"""Signals to a training of several processes: it leaves when its checkpoint is on disk."""

import os
import re
import signal
import time
from pathlib import Path

import processes
import pytest
from trainings import log_of, saved, train, wait_until

import tiny
from distillery.launcher import launch_with
from distillery.telemetry import read_events
from distillery.training.health import AGAIN_S
from training_phases import phases

STOPPED = "stopped by a signal, a checkpoint is saved: start again to resume"
EVERY_SAMPLES = 800


def options_of_rule():
    """What the workflow adds to torchrun's command line for signals."""
    return re.findall(r"--signals-to-handle=\S+", launch_with(0, 1, 2, 1))


def ranks_of(folder):
    """The processes that have begun to report."""
    events = read_events(folder / "telemetry")
    return [Path(f"/proc/{event.facts['pid']}") for event in events if event.kind == "start"]


def samples_of(name):
    return int(name.removeprefix("samples-"))


def test_no_rank_leaves_before_rank_0_has_the_checkpoint_on_disk(data, tmp_path):
    """Stopped at update 3, whose checkpoint, the second, is slow."""
    assert train(data, tmp_path, 2, {0: "slow-save:2", 1: "terminate:3"}) == [75, 75]
    assert saved(tmp_path)[-1] == "samples-000000000024"
    log = log_of(tmp_path)
    assert log.count(STOPPED) == 1
    assert re.search(r"INFO training .* saved .*samples-000000000024[^$]*" + STOPPED, log)
    assert log.splitlines()[-1].endswith(STOPPED)
    assert "training done in" not in log


@pytest.mark.slow
def test_the_signal_of_torchrun_to_the_others_costs_no_checkpoint(data, tmp_path):
    """It sends SIGTERM to all others when one has left with a status that is not 0."""
    tiny.write_training_job(tmp_path)
    arguments = tiny.train_arguments(data, tmp_path)
    stderr, faults = tmp_path / "stderr", "0=slow-save:2,1=terminate:3"
    with processes.torchrun_started(2, arguments, stderr, faults) as launcher:
        wait_until(lambda: len(ranks_of(tmp_path)) == 2, limit_s=60)
        ranks = ranks_of(tmp_path)
        wait_until(lambda: not all(rank.exists() for rank in ranks), limit_s=60)
        assert saved(tmp_path)[-1] == "samples-000000000024", "one left before it was on disk"
        launcher.join(60)
    assert launcher.exitcode == 1
    assert stderr.read_text().count(STOPPED) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGHUP", "SIGINT"])
def test_a_signal_to_torchrun_as_the_workflow_starts_it_saves(data, tmp_path, name):
    """In the middle of a long training, and once more while the checkpoint is written."""
    number = signal.Signals[name]
    tiny.write_training_job(
        tmp_path, phases=phases(stored=800_000), save_every_samples=EVERY_SAMPLES
    )
    arguments = tiny.train_arguments(data, tmp_path)
    stderr, started = tmp_path / "stderr", {"fault": "0=slow-save:2", "options": options_of_rule()}
    with processes.torchrun_started(2, arguments, stderr, **started) as launcher:
        wait_until(lambda: saved(tmp_path), limit_s=100)
        os.kill(launcher.pid, number)
        if number != signal.SIGINT:
            time.sleep(AGAIN_S + 0.5)  # when a second Ctrl-C would insist
            os.kill(launcher.pid, number)
        launcher.join(60)
    assert launcher.exitcode == 1
    assert saved(tmp_path)[0] == f"samples-{EVERY_SAMPLES:012d}"
    newest = samples_of(saved(tmp_path)[-1])
    assert EVERY_SAMPLES < newest < 2 * EVERY_SAMPLES
    assert stderr.read_text().count(STOPPED) == 1
    assert "interrupted" not in stderr.read_text()
