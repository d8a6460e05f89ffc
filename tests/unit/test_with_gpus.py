"""The command that takes GPUs: what its program gets, its exit status, what it refuses."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from distillery import slots, with_gpus
from distillery.locks import take
from slot_bench import LIMIT_S, SCRIPT, Bench, is_locked

pytestmark = pytest.mark.timeout(60)


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
    ("arguments", "status", "message"),
    [
        ((5, "--", "true"), 125, "num_gpus is 5, 4 can be used: 0 (GPU-pretend-0)"),
        ((1, "true"), 2, "unrecognized arguments: true"),
        ((1, "--", "no-such-command"), 127, "there is no command 'no-such-command'"),
    ],
)
def test_mistakes_are_explained(
    bench: Bench, arguments: tuple[object, ...], status: int, message: str
) -> None:
    """One of each function that refuses; those below are called in this process."""
    job = bench.start("--num-gpus", *arguments)
    _, error = job.communicate(timeout=LIMIT_S)
    assert job.returncode == status
    assert message in error
    assert "Traceback" not in error


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
    became: Became, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, visible, why in (
        ("3", "0,1", "num_gpus is 3, 2 can be used"),
        ("-1", "0,1", "num_gpus is -1"),
        ("1", "7", "names '7', which is no GPU"),
        ("1", "", "0 can be used: none"),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert with_gpus.main(["--num-gpus", number, "--", "train"]) == with_gpus.NO_GPUS == 125
        assert why in capsys.readouterr().err
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
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
