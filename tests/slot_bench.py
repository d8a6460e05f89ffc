"""A folder of GPU slots on pretend devices, and the processes that a test starts in it."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
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
        for _ in range(100 * LIMIT_S):
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


def is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
