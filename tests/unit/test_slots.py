"""GPU slots with real processes on pretend devices."""

import fcntl
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from distillery import slots, with_gpus
from distillery.locks import take
from distillery.slots import FIRST_WAIT_S, LONGEST_WAIT_S

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "workflow/distillery/with_gpus.py"
WORK = """
import os, sys, time
begin_s = time.monotonic()
time.sleep(float(sys.argv[3]))
with open(sys.argv[1], "a") as log:
    log.write(f"{sys.argv[2]} {os.environ['CUDA_VISIBLE_DEVICES']} {begin_s} {time.monotonic()}\\n")
"""

LIMIT_S = 40
"""That a job which cannot hang is given, on a machine with other work."""
pytestmark = pytest.mark.timeout(60)


class Bench:
    """A folder of locks, and the processes that a test started in it."""

    def __init__(self, folder: Path) -> None:
        self.locks = folder / "locks"
        self.log = folder / "log.txt"
        self.jobs: list[subprocess.Popen[str]] = []

    def start(
        self, *arguments: object, devices: int = 4, visible: str | None = None, slurm: bool = False
    ) -> "subprocess.Popen[str]":
        """Start with_gpus.py; `visible` is CUDA_VISIBLE_DEVICES."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CUDA_", "SLURM_", "DISTILLERY_"))
        }
        environment = inherited | {
            "PYTHONPATH": str(ROOT / "workflow"),
            "DISTILLERY_SLOTS": str(self.locks),
            "DISTILLERY_PRETEND_GPUS": str(devices),
        }
        if visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        if slurm:
            environment["SLURM_JOB_ID"] = "17"
        job = subprocess.Popen(
            [sys.executable, str(SCRIPT), *map(str, arguments)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.jobs.append(job)
        return job

    def work(
        self, name: str, num_gpus: int, seconds: float, devices: int = 4, visible: str | None = None
    ) -> "subprocess.Popen[str]":
        """Start a job that logs its name, its devices and when it had them."""
        work = [sys.executable, "-I", "-S", "-c", WORK, self.log, name, seconds]
        return self.start("--num-gpus", num_gpus, "--", *work, devices=devices, visible=visible)

    def hold(
        self, num_gpus: int, devices: int, visible: str | None = None
    ) -> "subprocess.Popen[str]":
        """Start a job that holds devices until it is killed, and wait until it has them."""
        command = ["sh", "-c", "echo ready; exec sleep 60"]
        job = self.start("--num-gpus", num_gpus, "--", *command, devices=devices, visible=visible)
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        return job

    def wait_for_queue(self, length: int) -> None:
        """Wait until this many jobs stand in the queue."""
        for _ in range(500):
            if len(self.tickets()) == length:
                return
            time.sleep(0.01)
        raise AssertionError(f"{len(self.tickets())} tickets, expected {length}")

    def tickets(self) -> list[Path]:
        """The tickets in the queue, dead ones too."""
        return list(self.locks.glob("ticket-*"))

    def finish(self, *jobs: "subprocess.Popen[str]") -> None:
        """All jobs end well within the test's time."""
        for job in jobs:
            _, error = job.communicate(timeout=LIMIT_S)
            assert job.returncode == 0, error

    def intervals(self) -> list[tuple[str, str, float, float]]:
        """(name, device, begin, end) of each device of each finished job."""
        rows = [line.split() for line in self.log.read_text().splitlines()]
        return [
            (name, device, float(begin_s), float(end_s))
            for name, devices, begin_s, end_s in rows
            for device in devices.split(",")
        ]

    def begins(self) -> dict[str, float]:
        """When each job got its devices."""
        return {name: begin_s for name, _, begin_s, _ in self.intervals()}

    def assert_never_shared(self) -> None:
        """No device had two jobs at once."""
        last_end_s: dict[str, float] = {}
        for _, device, begin_s, end_s in sorted(self.intervals(), key=lambda row: row[2]):
            assert last_end_s.get(device, 0.0) <= begin_s, device
            last_end_s[device] = end_s


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for job in bench.jobs:
        if job.poll() is None:
            job.kill()
        job.communicate(timeout=LIMIT_S)


def is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def kill(job: "subprocess.Popen[str]") -> None:
    job.kill()
    job.wait(timeout=LIMIT_S)


def test_jobs_never_share_a_device_and_use_all(bench: Bench) -> None:
    bench.finish(*[bench.work(f"job{number}", 1, 0.3, devices=3) for number in range(8)])
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
    assert bench.begins()["next"] - killed_s < 2


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
    first = [bench.work("short", 1, 0.8, devices=2), bench.work("long", 1, 1.6, devices=2)]
    time.sleep(0.3)
    large = bench.work("large", 2, 0.1, devices=2)
    bench.wait_for_queue(1)
    small = [bench.work(f"small{number}", 1, 0.1, devices=2) for number in range(4)]
    bench.finish(*first, large, *small)
    bench.assert_never_shared()
    begins = bench.begins()
    assert all(begins["large"] < begins[f"small{number}"] for number in range(4))


def test_small_and_large_jobs_together_finish(bench: Bench) -> None:
    jobs = [bench.work(f"job{number}", 1 + number % 2, 0.15, devices=2) for number in range(10)]
    bench.finish(*jobs)
    bench.assert_never_shared()


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


def test_the_command_gets_the_devices(bench: Bench) -> None:
    job = bench.start("--num-gpus", 2, "--", "env", visible="3,GPU-pretend-1")
    output, _ = job.communicate(timeout=LIMIT_S)
    assert "CUDA_VISIBLE_DEVICES=GPU-pretend-3,GPU-pretend-1\n" in output
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID\n" in output


def test_no_gpus_hides_all_without_asking_the_driver(bench: Bench) -> None:
    job = bench.start("--num-gpus", 0, "--", "env", visible="no such GPU")
    output, _ = job.communicate(timeout=LIMIT_S)
    assert "CUDA_VISIBLE_DEVICES=\n" in output
    assert not bench.locks.exists()


def test_slurm_devices_pass_through(bench: Bench) -> None:
    output, _ = bench.start("--num-gpus", 2, "--", "env", visible="0,1", slurm=True).communicate(
        timeout=LIMIT_S
    )
    assert "CUDA_VISIBLE_DEVICES=0,1\n" in output
    assert "CUDA_DEVICE_ORDER" not in output
    assert not bench.locks.exists()


def test_a_part_of_the_slurm_devices_is_locked(bench: Bench) -> None:
    output, _ = bench.start("--num-gpus", 1, "--", "env", visible="1,2", slurm=True).communicate(
        timeout=LIMIT_S
    )
    assert "CUDA_VISIBLE_DEVICES=GPU-pretend-1\n" in output
    assert bench.locks.exists()


def test_without_slurm_all_visible_devices_are_locked_too(bench: Bench) -> None:
    bench.hold(2, devices=2)
    job = bench.start("--num-gpus", 2, "--timeout-s", 0.1, "--", "true", devices=2)
    _, error = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 125
    assert "too few GPUs free in 0.1 s, 2 needed" in error


def test_slots_inside_a_slot(bench: Bench) -> None:
    inner = [sys.executable, SCRIPT, "--num-gpus", 1, "--timeout-s", 5, "--", "env"]
    job = bench.start("--num-gpus", 1, "--", *inner, devices=1)
    output, error = job.communicate(timeout=LIMIT_S)
    assert "CUDA_VISIBLE_DEVICES=GPU-pretend-0\n" in output, error


def test_exit_status_and_signals_are_the_commands(bench: Bench) -> None:
    failing = bench.start("--num-gpus", 1, "--", "sh", "-c", "exit 7")
    assert failing.wait(timeout=LIMIT_S) == 7
    sleeping = bench.hold(1, devices=4)
    sleeping.terminate()
    assert sleeping.wait(timeout=LIMIT_S) == -signal.SIGTERM


def test_a_signal_ends_the_wait(bench: Bench) -> None:
    bench.hold(1, devices=1)
    waiter = bench.work("waits", 1, 0.0, devices=1)
    bench.wait_for_queue(1)
    waiter.send_signal(signal.SIGINT)
    _, error = waiter.communicate(timeout=LIMIT_S)
    assert waiter.returncode == -signal.SIGINT
    assert error == ""


@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
def test_the_command_ignores_no_signals(bench: Bench) -> None:
    ask = ("grep", "SigIgn", "/proc/self/status")
    output, _ = bench.start("--num-gpus", 1, "--", *ask).communicate(timeout=LIMIT_S)
    # What the tests were started with (a job in the background ignores Ctrl-C) is passed on.
    inherited = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
    assert output == inherited


@pytest.mark.parametrize(
    ("arguments", "visible", "status", "message"),
    [
        ((5, "--", "true"), None, 125, "num_gpus is 5, 4 can be used: 0 (GPU-pretend-0)"),
        ((-1, "--", "true"), None, 125, "num_gpus is -1"),
        ((1, "--", "true"), "7", 125, "names '7', which is no GPU"),
        ((1, "--", "true"), "", 125, "0 can be used: none"),
        ((1, "true"), None, 2, "unrecognized arguments: true"),
        ((1, "--"), None, 2, "write it behind --"),
        ((1, "--", "no-such-command"), None, 127, "there is no command 'no-such-command'"),
        ((1, "--", "/"), None, 126, "'/' cannot be run: Permission denied"),
    ],
)
def test_mistakes_are_explained(
    bench: Bench,
    arguments: tuple[object, ...],
    visible: str | None,
    status: int,
    message: str,
) -> None:
    job = bench.start("--num-gpus", *arguments, visible=visible)
    _, error = job.communicate(timeout=LIMIT_S)
    assert job.returncode == status
    assert message in error
    assert "Traceback" not in error


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


# ---- the command's functions, in this process --------------------------------------------------


@dataclass
class Became:
    """What this process would have become."""

    program: str = ""
    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    fails: OSError | None = None

    def execvp(self, program: str, command: list[str]) -> None:
        if self.fails is not None:
            raise self.fails
        self.program, self.command, self.environment = program, command, dict(os.environ)


@pytest.fixture
def became(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Became]:
    """Instead of another program; devices, variables and signals are as before afterwards."""
    found, taken = Became(), []
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setenv("DISTILLERY_PRETEND_GPUS", "2")
    monkeypatch.setenv("DISTILLERY_SLOTS", str(tmp_path / "locks"))
    monkeypatch.setattr(with_gpus.os, "execvp", found.execvp)

    def acquire(*args: Any, **options: Any) -> slots.Slots:
        taken.append(slots.acquire(*args, **options))
        return taken[-1]

    monkeypatch.setattr(with_gpus, "acquire", acquire)
    before = {it: signal.getsignal(it) for it in (signal.SIGPIPE, signal.SIGXFSZ)}
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)
    for devices in taken:
        devices.release()


def test_it_becomes_the_command_on_the_devices(became: Became) -> None:
    with_gpus.main(["--num-gpus", "2", "--", "train", "--", "--num-gpus", "7"])
    assert became.program == "train"
    assert became.command == ["train", "--", "--num-gpus", "7"]
    assert became.environment["CUDA_VISIBLE_DEVICES"] == "GPU-pretend-0,GPU-pretend-1"
    assert became.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert signal.getsignal(number) is signal.SIG_DFL, "Python ignores it"


def test_the_command_inherits_the_lock_of_its_job(
    became: Became, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So whoever waits for the job waits for the command too."""
    lock, taken = tmp_path / "job", list[int]()
    monkeypatch.setattr(with_gpus, "take", lambda path: taken.append(take(path)) or taken[0])
    with_gpus.main(["--num-gpus", "0", "--alone", str(lock), "--", "train"])
    assert is_locked(lock)
    assert os.get_inheritable(taken[0])
    os.close(taken[0])
    assert not is_locked(lock)
    assert became.environment["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("job", "visible", "num_gpus", "expected"),
    [
        ("17", "0,1", 2, True),
        ("17", "1", 1, True),
        ("17", "0,1", 1, False),
        ("17", "0", 2, False),
        ("17", "", 0, False),
        ("17", None, 1, False),
        (None, "0,1", 2, False),
    ],
)
def test_slurms_devices_are_the_jobs_if_they_are_as_many(
    became: Became,
    monkeypatch: pytest.MonkeyPatch,
    job: str | None,
    visible: str | None,
    num_gpus: int,
    expected: bool,
) -> None:
    for name, value in (("SLURM_JOB_ID", job), ("CUDA_VISIBLE_DEVICES", visible)):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert with_gpus.handed_out(num_gpus) == expected


@pytest.mark.parametrize(
    ("fails", "status", "message"),
    [
        (FileNotFoundError(2, "No such file or directory"), 127, "there is no command 'train'"),
        (PermissionError(13, "Permission denied"), 126, "'train' cannot be run: Permission denied"),
    ],
)
def test_a_command_that_cannot_be_run_has_the_shells_status(
    became: Became, capsys: pytest.CaptureFixture[str], fails: OSError, status: int, message: str
) -> None:
    became.fails = fails
    assert with_gpus.run(["train", "--fast"]) == status
    assert message in capsys.readouterr().err


def test_without_devices_no_command_is_run(
    became: Became, capsys: pytest.CaptureFixture[str]
) -> None:
    assert with_gpus.main(["--num-gpus", "3", "--", "train"]) == with_gpus.NO_GPUS == 125
    assert "num_gpus is 3, 2 can be used" in capsys.readouterr().err
    held = slots.acquire(2, slots.default_folder(), 0)
    assert with_gpus.main(["--num-gpus", "1", "--timeout-s", "0", "--", "train"]) == 125
    held.release()
    assert became.program == ""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--", "train"], "the following arguments are required: --num-gpus"),
        (["--num-gpus", "1", "train"], "unrecognized arguments: train"),
        (["--num-gpus", "1", "--"], "there is no command: write it behind --"),
        (["--num-gpus", "1"], "[--timeout-s S] [--alone FILE] -- command"),
    ],
)
def test_a_line_without_devices_or_command_is_refused(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        with_gpus.parse(argv)
    assert refused.value.code == 2
    assert message in capsys.readouterr().err


def test_starting_costs_little(bench: Bench) -> None:
    costs_s = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        bench.finish(bench.start("--num-gpus", 1, "--", "true"))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert 0 < min(costs_s) < 0.25  # of a core, whatever else runs; 0.05 s, with pandas 0.4 s
