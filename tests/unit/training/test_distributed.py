"""Where a process stands, by the variables of three launchers."""

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from distillery.locks import LAUNCHER
from distillery.training import distributed
from distillery.training.distributed import RankInfo, detect_rank, first_node
from distillery.training.health import SIGNALS, StopRequest

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_JOB_ID": "41234",
}
TIMEOUT_S = 4


def test_without_a_launcher_there_is_one_process_and_no_group():
    assert detect_rank({}) == RankInfo()
    assert detect_rank({}).is_main


def test_torchrun_and_plain_variables():
    assert detect_rank(TORCHRUN) == RankInfo(3, 4, 1)
    by_hand = {name: value for name, value in TORCHRUN.items() if name != "LOCAL_RANK"}
    assert detect_rank(by_hand) == RankInfo(3, 4, 3)


def test_srun_tasks_meet_at_the_first_node():
    assert detect_rank(SLURM) == RankInfo(5, 8, 1, ("gpu07", 21234))
    assert detect_rank(SLURM | {"MASTER_ADDR": "h", "MASTER_PORT": "1"}).address == ("h", 1)


def test_torchrun_inside_srun_is_torchrun():
    assert detect_rank(SLURM | TORCHRUN) == RankInfo(3, 4, 1)


def test_a_batch_script_without_srun_is_one_process():
    in_batch_script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "gpu[1-4]"}
    assert detect_rank(in_batch_script) == RankInfo()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "x"}, "RANK is 'x' in the environment: it must be a number"),
        ({"RANK": "4"}, "RANK is 4 and WORLD_SIZE is 4: ranks go from 0 to WORLD_SIZE - 1"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK is '-1'"),
    ],
)
def test_variables_that_cannot_be_are_named(variables, message):
    with pytest.raises(ValueError, match=message):
        detect_rank(TORCHRUN | variables)


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"])
def test_a_missing_variable_is_explained(missing):
    environ = {name: value for name, value in TORCHRUN.items() if name != missing}
    with pytest.raises(ValueError, match=f"no {missing}: every process needs RANK"):
        detect_rank(environ)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu1", "gpu1"), ("a,b", "a"), ("gpu[03-05,09],big1", "gpu03"), ("n[7]-x", "n7-x"), ("", "")],
)
def test_the_first_of_a_node_list(nodes, first):
    assert first_node(nodes) == first


def test_a_host_that_cannot_be_found_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")  # no scontrol
    name = "no-such-host.invalid"
    assert distributed.find_host(name) == name
    with pytest.raises(ValueError, match=f"the host of rank 0, {name}, cannot be found from"):
        distributed.start(RankInfo(1, 2, 0, (name, 29500)), torch.device("cpu"), TIMEOUT_S)


def test_the_address_of_a_node_whose_name_does_not_resolve_is_slurms(monkeypatch, tmp_path):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\necho "NodeName=$3 NodeAddr=127.0.0.9 NodeHostName=x"\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert distributed.find_host("no-such-host.invalid") == "127.0.0.9"
    assert distributed.find_host("localhost") == "localhost"


def test_a_wait_for_rank_0_is_told(monkeypatch, capfd):
    """Only if it is long; what joins the group is in its place, since it counts groups."""
    monkeypatch.setattr(distributed, "LATE_S", 0.2)
    for takes_s, is_told in ((0.0, False), (0.5, True)):
        monkeypatch.setattr(dist, "init_process_group", lambda *_, s=takes_s, **__: time.sleep(s))
        distributed.start(RankInfo(1, 2, 1, ("127.0.0.1", 29500)), torch.device("cpu"), 1)
        told = capfd.readouterr().err
        assert ("rank 1 has waited 0 s for rank 0 at 127.0.0.1, port 29500" in told) == is_told


def test_each_process_gets_its_gpu():
    assert distributed._gpu_of(RankInfo(5, 8, 1), num_gpus=4) == 1
    assert distributed._gpu_of(RankInfo(5, 8, 3), num_gpus=1) == 0
    with pytest.raises(ValueError, match="start at most 2 processes there"):
        distributed._gpu_of(RankInfo(2, 3, 2), num_gpus=2)


def stand_by(pipe, address, timeout_s):
    """Join the group and nothing else, until the pipe closes."""
    pipe.send("here")
    distributed.start(RankInfo(1, 2, 1, address), torch.device("cpu"), timeout_s)
    with contextlib.suppress(EOFError):
        pipe.recv()
    os._exit(0)


@pytest.fixture
def idle_process():
    """The address where a process waits that will join a group of two, and no collective."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    context = multiprocessing.get_context("fork")  # one that is spawned imports all again
    ours, theirs = context.Pipe()
    other = context.Process(target=stand_by, args=(theirs, address, TIMEOUT_S), daemon=True)
    other.start()
    theirs.close()
    ours.recv()
    yield address
    ours.close()
    other.join(9)
    other.kill()
    distributed.stop()


def test_a_collective_that_another_does_not_join_ends_after_the_setting(idle_process):
    distributed.start(RankInfo(0, 2, 0, idle_process), torch.device("cpu"), TIMEOUT_S)
    begin_s = time.monotonic()
    work = dist.all_reduce(torch.ones(1), async_op=True)
    while not work.is_completed() and time.monotonic() < begin_s + 5 * TIMEOUT_S:
        time.sleep(0.05)
    assert work.is_completed(), "it waits on"
    assert time.monotonic() - begin_s > 0.9 * TIMEOUT_S
    with pytest.raises(RuntimeError, match=r"[Tt]imed out"):
        work.wait()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_asks_to_stop_and_the_old_handlers_come_back(number):
    before = signal.getsignal(number)
    stop = StopRequest()
    with stop.listening():
        assert not stop.asked
        os.kill(os.getpid(), number)
        assert stop.asked
        os.kill(os.getpid(), number)  # at once again, as torchrun and a terminal do: no harm
    assert signal.getsignal(number) is before


@pytest.fixture
def no_patience(monkeypatch):
    """Whatever comes second comes late."""
    monkeypatch.setattr("distillery.training.health.AGAIN_S", -1.0)


def test_a_person_who_asks_again_later_is_not_made_to_wait(no_patience):
    stop = StopRequest()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
@pytest.mark.parametrize("first", SIGNALS)
def test_launchers_may_ask_again_as_often_as_they_like(no_patience, first, number):
    """SLURM sends SIGTERM again at the limit, torchrun when another process has left."""
    stop = StopRequest()
    with stop.listening():
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
    assert stop.signal == first


def test_the_first_ctrl_c_after_a_signal_of_a_launcher_ends_nothing(no_patience):
    stop = StopRequest()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert stop.asked


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = StopRequest()
        with stop.listening():
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.asked
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_worker_whose_torchrun_was_killed_while_it_imported_ends(monkeypatch):
    """The kernel tells of a parent's end only if it is asked before."""
    monkeypatch.setattr(distributed.ctypes, "CDLL", lambda _: SimpleNamespace(prctl=print))
    launcher = subprocess.Popen(["sleep", "60"])
    environ = {"TORCHELASTIC_RUN_ID": "x", LAUNCHER: str(launcher.pid)}
    distributed.die_with_launcher(environ)
    launcher.kill()
    os.waitid(os.P_PID, launcher.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    with pytest.raises(SystemExit, match="torchrun has ended"):
        distributed.die_with_launcher(environ)
    launcher.wait()
    with pytest.raises(SystemExit, match="torchrun has ended"):
        distributed.die_with_launcher(environ)
    distributed.die_with_launcher({LAUNCHER: str(launcher.pid)})  # no torchrun's
