"""How long a process may take for what it does, and which processes end."""

import faulthandler
import subprocess
import time

import pytest

import forks
from distillery.training import health as module
from distillery.training.health import SLOWER, START_LIMIT_S, Watchdog

LIMIT_S = 45.0


def warm():
    """A watchdog after the first update."""
    watchdog = Watchdog(0, LIMIT_S)
    watchdog.updated()
    return watchdog


def limit_of(watchdog, name, **options):
    """What a phase is given."""
    watchdog.heartbeat(name, **options)
    return watchdog.phase.limit_s


def test_the_setting_counts_from_the_first_update_on():
    watchdog = Watchdog(0, LIMIT_S)
    assert limit_of(watchdog, "micro-batch 1 of 1") == START_LIMIT_S
    watchdog.updated()
    assert limit_of(watchdog, "micro-batch 1 of 1") == LIMIT_S


def test_who_waits_has_as_long_as_the_longest_of_the_same_update():
    """Another rank may still draw its images, or check its disk, when this one is done."""
    watchdog = warm()
    assert limit_of(watchdog, "gradients of all ranks", waits=True) == LIMIT_S
    watchdog.updated()
    watchdog.heartbeat("previews", limit_s=600.0)
    assert limit_of(watchdog, "micro-batch 1 of 1") == LIMIT_S, "its own work"
    assert limit_of(watchdog, "gradients of all ranks", waits=True) == 600.0
    watchdog.updated()
    assert limit_of(watchdog, "gradients of all ranks", waits=True) == LIMIT_S


def test_a_setting_above_a_phases_own_limit_counts():
    """Else the advice to raise it would not help where checkpoints are written slowly."""
    watchdog = Watchdog(0, 7200.0)
    watchdog.updated()
    assert limit_of(watchdog, "a checkpoint's last bytes", limit_s=START_LIMIT_S) == 7200.0
    assert limit_of(watchdog, "gradients of all ranks", waits=True) == 7200.0


def test_a_phase_that_takes_long_each_time_is_no_hang(monkeypatch):
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    watchdog = warm()
    for took_s, expected in ((100.0, LIMIT_S), (2.0, SLOWER * 100.0), (2.0, LIMIT_S)):
        watchdog.updated()
        assert limit_of(watchdog, "micro-batch 1 of 1") == expected
        now_s += took_s


def test_nothing_is_armed_while_nobody_watches(monkeypatch):
    """Nor after it. It would end a process that nobody looks after: a preview, a test."""
    watchdog = warm()
    with watchdog.watching():
        pass
    armed = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *at, **_: armed.append(at))
    watchdog.heartbeat("previews", limit_s=600.0)
    watchdog.heartbeat("micro-batch 1 of 1")
    assert armed == []


@pytest.mark.parametrize(
    ("late_s", "in_collective", "ends"),
    [
        (-0.5, False, None),
        (0.5, False, "hangs in its own work"),
        (0.5, True, None),
        (0.2 * LIMIT_S - 0.5, True, None),
        (0.2 * LIMIT_S + 0.5, True, "waiting for another rank inside a collective"),
    ],
)
def test_who_is_inside_a_collective_lets_the_one_to_blame_go_first(
    monkeypatch, late_s, in_collective, ends
):
    """A fifth of the limit, from the first moment that it is late."""
    now_s, told = 1000.0, []
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *_, **__: None)
    files = ["torch/distributed/distributed_c10d.py"] if in_collective else ["train.py"]
    monkeypatch.setattr(module, "_stacks", lambda: [files])
    watchdog = warm()
    monkeypatch.setattr(watchdog, "_end", lambda text, **_: told.append(text))
    watchdog.heartbeat("micro-batch 1 of 1")
    now_s += LIMIT_S + late_s
    watchdog._look_at_the_clock()
    assert bool(told) == bool(ends)
    if ends:
        assert ends in told[0]
        assert f"made no progress for {LIMIT_S + late_s:.0f} s in: micro-batch 1 of 1." in told[0]


def test_a_phase_that_ended_meanwhile_ends_nothing(monkeypatch):
    """While its stacks are looked at, the process may have gone on."""
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *_, **__: None)
    watchdog, ended = warm(), []
    monkeypatch.setattr(watchdog, "_end", lambda text, **_: ended.append(text))

    def go_on():
        watchdog.heartbeat("micro-batch 1 of 1")
        return []

    monkeypatch.setattr(module, "_stacks", go_on)
    now_s += 2 * LIMIT_S
    watchdog._look_at_the_clock()
    assert ended == []


PROCESS = """
import ctypes
import sys
import time

from distillery.training import health

health.TICK_S = 0.1
watched = health.Watchdog(0, 1.0)
with watched.watching():
    watched.updated()
    if sys.argv[1] == "hangs":
        ctypes.PyDLL(None).sleep(600)  # as native code that never gives Python's lock back
    end_s = time.monotonic() + 4.0
    while time.monotonic() < end_s:
        watched.heartbeat("micro-batch 1 of 1")
        time.sleep(0.05)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("does", "status"), [("works", 0), ("hangs", 1)])
def test_a_process_that_works_is_let_live_and_one_that_holds_the_lock_is_ended(does, status):
    """By a switch that needs no lock of Python, which the watchdog puts off at each look."""
    done = subprocess.run(
        ["python", "-c", PROCESS, does],
        env=forks.environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert ("Timeout" in done.stderr) == (does == "hangs")
