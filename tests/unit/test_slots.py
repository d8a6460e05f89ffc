"""GPU slots with real processes on pretend devices."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from distillery import slots
from distillery.slots import FIRST_WAIT_S, LONGEST_WAIT_S
from slot_bench import LIMIT_S, Bench, is_locked

pytestmark = pytest.mark.timeout(60)


def kill(job: "subprocess.Popen[str]") -> None:
    job.kill()
    job.wait(timeout=LIMIT_S)


def test_jobs_never_share_a_device_and_use_all(bench: Bench) -> None:
    holder = bench.hold(3, devices=3)
    jobs = [bench.work(f"job{number}", 1, 0.3, devices=3) for number in range(8)]
    bench.wait_for_queue(8)
    kill(holder)
    bench.finish(*jobs)
    bench.assert_never_shared()
    assert len(bench.begins()) == 8
    assert {device for _, device, _, _ in bench.intervals()} == {
        "GPU-pretend-0",
        "GPU-pretend-1",
        "GPU-pretend-2",
    }


def test_a_killed_job_frees_its_device_at_once(bench: Bench) -> None:
    holder = bench.hold(1, devices=1)
    job = bench.work("next", 1, 0.0, devices=1)
    bench.wait_for_queue(1)
    killed_s = time.monotonic()
    kill(holder)
    bench.finish(job)
    assert bench.begins()["next"] - killed_s < 10  # the holder would have had it for 60 s


def test_a_killed_waiter_blocks_nobody(bench: Bench) -> None:
    holder = bench.hold(1, devices=1)
    waiter = bench.work("killed", 1, 0.0, devices=1)
    bench.wait_for_queue(1)
    kill(waiter)
    job = bench.work("next", 1, 0.0, devices=1)
    bench.wait_for_queue(1)  # "next" has removed the dead ticket
    kill(holder)
    bench.finish(job)
    assert list(bench.begins()) == ["next"]
    assert bench.tickets() == []


def test_a_large_job_is_not_overtaken_by_later_small_ones(bench: Bench) -> None:
    holders = [bench.hold(1, devices=2) for _ in range(2)]
    large = bench.work("large", 2, 0.1, devices=2)
    bench.wait_for_queue(1)
    small = [bench.work(f"small{number}", 1, 0.1, devices=2) for number in range(4)]
    bench.wait_for_queue(5)
    kill(holders[0])
    time.sleep(2 * LONGEST_WAIT_S)  # in which a small one would take the free device
    kill(holders[1])
    bench.finish(large, *small)
    bench.assert_never_shared()
    begins = bench.begins()
    assert all(begins["large"] < begins[f"small{number}"] for number in range(4))


def test_three_of_four_devices_for_six_jobs_do_not_deadlock(bench: Bench) -> None:
    bench.finish(*[bench.work(f"job{number}", 3, 0.1) for number in range(6)])
    bench.assert_never_shared()
    assert len(bench.intervals()) == 6 * 3


def test_rings_of_devices_do_not_deadlock(bench: Bench) -> None:
    rings = ("0,1", "1,2", "2,0")
    jobs = [
        bench.work(f"{ring}-{turn}", 2, 0.05, visible=ring) for turn in range(3) for ring in rings
    ]
    bench.finish(*jobs)
    bench.assert_never_shared()


def test_a_waiting_job_keeps_nothing(bench: Bench) -> None:
    bench.hold(1, devices=2, visible="1,0")
    bench.work("waits", 2, 0.0, devices=2)
    bench.wait_for_queue(1)
    locked = []
    for _ in range(20):
        time.sleep(0.01)
        locked.append(is_locked(bench.locks / "GPU-pretend-0"))
    assert not all(locked)  # the job's own tries lock it for microseconds


def test_jobs_on_other_devices_do_not_wait_for_the_queue(bench: Bench) -> None:
    bench.hold(1, devices=2, visible="0")
    bench.work("waits", 1, 0.0, devices=2, visible="GPU-pretend-0")
    bench.wait_for_queue(1)
    bench.finish(bench.work("passes", 1, 0.0, devices=2, visible="1"))
    assert list(bench.begins()) == ["passes"]


def test_a_child_that_inherits_the_lock_keeps_the_device(bench: Bench) -> None:
    shell = ["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!; wait"]
    parent = bench.start("--num-gpus", 1, "--", *shell, devices=1)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    kill(parent)
    assert is_locked(bench.locks / "GPU-pretend-0")
    os.kill(child, signal.SIGKILL)
    bench.finish(bench.work("next", 1, 0.0, devices=1))


def test_a_deleted_lock_file_is_no_lock(bench: Bench) -> None:
    bench.locks.mkdir()
    path = bench.locks / "GPU-pretend-0"
    path.touch()
    opened = os.open(path, os.O_RDWR)
    assert slots._is_still(path, opened)
    path.unlink()
    assert not slots._is_still(path, opened)
    path.touch()
    assert not slots._is_still(path, opened)
    os.close(opened)


def test_a_long_wait_says_who_holds_what(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = bench.hold(1, devices=2)
    monkeypatch.setenv("DISTILLERY_PRETEND_GPUS", "2")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(slots, "TELL_AFTER_S", 0.1)
    lines: list[str] = []
    with pytest.raises(TimeoutError, match=r"too few GPUs free in 0\.7 s, 2 needed"):
        slots.acquire(2, bench.locks, 0.7, lines.append)
    assert len(lines) == 1
    assert f"0 (GPU-pretend-0) is held by pid {holder.pid}: " in lines[0]
    assert "exec sleep 60" in lines[0]
    assert "1 (GPU-pretend-1) is free; 1 in the queue" in lines[0]
    assert bench.tickets() == []


class Clock:
    """A clock that sleeping alone moves on, in the place of the module `time`."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def monotonic_ns(self) -> int:
        return int(self.now_s * 1e9)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0, "it would never end"
        self.now_s += seconds
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Of one device; whatever is drawn by lot is the most it can be."""
    clock = Clock()
    monkeypatch.setenv("DISTILLERY_PRETEND_GPUS", "1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(slots, "time", clock)
    monkeypatch.setattr(slots.random, "uniform", lambda _least, most: most)
    return clock


@pytest.mark.parametrize(("timeout_s", "share"), [(None, 1.0), (60.0, 0.5)])
def test_between_two_tries_the_sleep_doubles(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clock: Clock,
    timeout_s: float | None,
    share: float,
) -> None:
    """Up to the longest, and `share` of it by lot: half to all."""
    if share < 1:
        monkeypatch.setattr(slots.random, "uniform", lambda least, _most: least)
    held, sleep = slots.acquire(1, tmp_path, 0), clock.sleep

    def sleep_and_end(seconds: float) -> None:
        sleep(seconds)
        if len(clock.slept) == 6:
            held.release()

    monkeypatch.setattr(clock, "sleep", sleep_and_end)
    slots.acquire(1, tmp_path, timeout_s).release()
    doubled = [FIRST_WAIT_S * 2**number for number in range(6)]
    assert clock.slept == pytest.approx([share * min(it, LONGEST_WAIT_S) for it in doubled])
    assert doubled[-1] > LONGEST_WAIT_S


def test_the_wait_ends_at_its_timeout(tmp_path: Path, clock: Clock) -> None:
    held = slots.acquire(1, tmp_path, 0)
    timeout_s = 2.5 * FIRST_WAIT_S
    with pytest.raises(TimeoutError):
        slots.acquire(1, tmp_path, timeout_s)
    held.release()
    assert clock.now_s == timeout_s
    assert clock.slept == pytest.approx([FIRST_WAIT_S, 1.5 * FIRST_WAIT_S])


def test_released_devices_can_be_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTILLERY_PRETEND_GPUS", "1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    first = slots.acquire(1, tmp_path, 0)
    with pytest.raises(TimeoutError):
        slots.acquire(1, tmp_path, 0)
    first.release()
    slots.acquire(1, tmp_path, 0).release()


def test_the_default_folder_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISTILLERY_SLOTS", raising=False)
    folder = slots.default_folder()
    assert folder.stat().st_uid == os.getuid()
    assert folder.stat().st_mode & 0o777 == 0o700
