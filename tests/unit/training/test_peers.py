"""Processes that are gone are seen by their rank at once, and a wait for them ends."""

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from distillery.training import health as peers_module
from distillery.training.distributed import RankInfo
from distillery.training.health import Peers, Watchdog
from distillery.training.nodes import meet

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux alone")


@pytest.fixture
def sleepers():
    started = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    yield started
    for process in started:
        process.kill()
        process.wait()


def end(process):
    """Until it is a zombie: nobody has asked for its status yet, as under a busy launcher."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_who_is_gone(sleepers):
    peers = Peers({1: sleepers[0].pid, 3: sleepers[1].pid})
    assert peers.gone() == []
    end(sleepers[1])
    assert peers.gone() == [3]
    end(sleepers[0])
    assert peers.gone() == [1, 3]
    peers.close()
    assert peers.gone() == []


def test_one_that_ended_before_it_could_be_watched_is_gone():
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert Peers({2: ended.pid}).gone() == [2]


def test_a_process_alone_has_no_peers():
    assert meet(RankInfo(), Path())[1].gone() == []


def test_where_the_system_lets_nobody_look_there_are_no_peers(monkeypatch):
    """Some sandboxes refuse the call: there a hang is ended by its time-out alone."""

    def refuse(_pid):
        raise PermissionError(1, "Operation not permitted")

    assert peers_module.host_id()
    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert peers_module.host_id() == ""


def watched(action, **phase):
    """The exit status of a forked process that loses rank 1 and then does `action`."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 99
    try:
        watchdog = Watchdog(rank=0, limit_s=0)
        with watchdog.watching():
            watchdog.heartbeat("gradients of all ranks", **phase)
            process = subprocess.Popen(["sleep", "60"])
            watchdog.peers = Peers({1: process.pid})
            process.kill()
            action(watchdog)
        status = 0
    finally:
        os._exit(status)


@pytest.mark.parametrize("phase", ["waits", "joint"])
def test_who_needs_the_gone_ends_soon_and_says_whom(capfd, phase):
    begin_s = time.monotonic()
    assert watched(lambda _: time.sleep(30), **{phase: True}) == 1
    assert time.monotonic() - begin_s < 5
    said = capfd.readouterr().err
    assert "rank 0 waits in: gradients of all ranks, for rank 1, whose process has ended" in said


def test_who_does_not_wait_for_the_gone_goes_on():
    """Ranks leave as they are done; rank 0 still writes the student."""
    assert watched(lambda _: time.sleep(2), waits=False) == 0


def test_who_has_just_got_what_it_waited_for_goes_on():
    def get_on(watchdog):
        for number in range(20):
            time.sleep(0.1)
            watchdog.heartbeat(f"gradients of all ranks, {number}", waits=True)

    assert watched(get_on, waits=True) == 0


def test_a_checkpoint_under_way_is_finished_first(tmp_path):
    def save(watchdog):
        def write():
            time.sleep(3)
            (tmp_path / "checkpoint").touch()

        watchdog.finishing = ThreadPoolExecutor(1).submit(write)
        time.sleep(30)

    assert watched(save, waits=True) == 1
    assert (tmp_path / "checkpoint").is_file()
