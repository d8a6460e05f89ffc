"""Run tests against mutants: each in a fork of a process that has imported the libraries.

Forks save the seconds that PyTorch, Diffusers and Transformers take to import. Of our own code
nothing is imported before the fork. A test that fails meets the unchanged tree next: one that fails
there too says nothing about a mutant.
"""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mutation.covering import Coverage
from mutation.find import Mutant

ROOT = Path(__file__).parents[2]
LIBRARIES = (
    "torch", "torch.distributed.tensor", "diffusers", "transformers", "pandas", "pyarrow.parquet",
    "peft", "safetensors.torch", "PIL.Image", "pydantic", "accelerate", "pytest", "tensorboardX",
    "diffusers.pipelines.wan.pipeline_wan", "diffusers.loaders",
    "diffusers.pipelines.stable_diffusion_xl.pipeline_stable_diffusion_xl",
)  # fmt: skip
LEAST_S, SLOWER = 240.0, 8.0
"""A mutant's tests may take so long, and so many times what they took; longer is a hang."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """What became of a mutant.

    Attributes:
        killer: the test that failed, or how else it ended; "" if it survived.
        seconds: that it took.
        broken: tests that failed, and fail without the mutant too.
    """

    mutant: Mutant
    killer: str
    seconds: float
    broken: tuple[str, ...] = ()

    @property
    def is_killed(self) -> bool:
        return bool(self.killer)

    @property
    def line(self) -> str:
        """What became of it, where it is, what it is; then the tests that do not count."""
        mutant = self.mutant
        fate = f"killed by {self.killer}" if self.killer else "SURVIVED"
        where = f"{mutant.module}:{mutant.line}"
        lines = [f"{where}  {mutant.text}  {fate}  ({self.seconds:.0f} s)"]
        return "\n".join(lines + [f"  fails without it too: {test}" for test in self.broken])


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def run_all(mutants: list[Mutant], coverage: Coverage, folder: Path, jobs: int) -> Iterator[Result]:
    """Run the tests of each mutant, so many mutants at a time; yields as they end."""
    for library in LIBRARIES:
        __import__(library)
    waiting = list(reversed(mutants))
    is_sound: dict[str, bool] = {}
    free = [_copy_tree(folder / f"tree-{number}") for number in range(jobs)]
    running: list[_Try] = []
    while waiting or running:
        while waiting and free:
            attempt = _Try(waiting.pop(), free.pop(), coverage, is_sound)
            running.append(attempt)
        for attempt in list(running):
            result = attempt.look()
            if result is not None:
                running.remove(attempt)
                free.append(attempt.tree)
                yield result
        time.sleep(0.05)


def _copy_tree(tree: Path) -> Path:
    """What git knows or would take, as it is now."""
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    return tree


class _Try:
    """One mutant's tests, under way in a process of their own.

    Attributes:
        tree: the copy that it changes.
    """

    def __init__(
        self, mutant: Mutant, tree: Path, coverage: Coverage, is_sound: dict[str, bool]
    ) -> None:
        """Begin; `is_sound` says of tests whether they pass on the unchanged tree, once known."""
        self.tree = tree
        self._mutant = mutant
        self._begin_s = time.monotonic()
        self._output = tree.with_suffix(".log")
        self._path = tree / "workflow" / "distillery" / mutant.module
        self._source = self._path.read_bytes()
        self._seconds = coverage.seconds
        self._is_sound = is_sound
        self._tests = coverage.tests_of(mutant)
        self._broken: list[str] = []
        self._suspect = ""
        self._meet_mutant()

    def _meet_mutant(self) -> None:
        """Run the mutant's tests, without those that fail anyway."""
        self._path.write_bytes(self._mutant.apply(self._source))
        self._suspect = ""
        self._start([test for test in self._tests if self._is_sound.get(test, True)])

    def _meet_original(self, suspect: str) -> None:
        """Run one test that failed on the unchanged tree; all, where it is a file or an end."""
        self._suspect = suspect
        self._start([suspect] if suspect in self._running else self._running)

    def _start(self, tests: list[str]) -> None:
        self._running = tests
        self._limit_s = LEAST_S + SLOWER * sum(self._seconds[test] for test in tests)
        self._started_s = time.monotonic()
        self._pid = os.fork()
        if self._pid == 0:
            self._be_pytest(tests)

    def _be_pytest(self, tests: list[str]) -> None:
        """The rest of the forked process's life."""
        status = 1
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.chdir(self.tree)
            with self._output.open("w") as output, Path(os.devnull).open() as nothing:
                os.dup2(nothing.fileno(), 0)
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            os.environ["PYTHONPATH"] = str(self.tree / "workflow")
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # a stale file would hide the next mutant
            sys.dont_write_bytecode = True
            ours = {str(room) for room in (ROOT, ROOT / "tests", ROOT / "workflow")}
            sys.path[:] = [entry for entry in sys.path if entry not in ours]
            import pytest

            base = self.tree.with_suffix(".tmp")
            options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=line", f"--basetemp={base}"]
            status = int(pytest.main([*options, *tests])) if tests else 5
        finally:
            sys.stdout.flush()
            os._exit(status)

    def look(self) -> Result | None:
        """What became of it, once that is known."""
        failed = self._look_at_process()
        if failed is None:
            return None
        if self._suspect:
            self._is_sound[self._suspect] = not failed
            failed = self._suspect
        elif failed and (failed not in self._running or failed not in self._is_sound):
            self._meet_original(failed)
            return None
        if not self._is_sound.get(failed, True):
            self._broken.append(failed)
            if failed in self._seconds:
                self._meet_mutant()
                return None
            failed = ""  # none of its tests can be run here
        seconds = time.monotonic() - self._begin_s
        return Result(self._mutant, failed, seconds, tuple(self._broken))

    def _look_at_process(self) -> str | None:
        """The test that failed, or how else it ended; "" if none failed, None while it runs.

        The tree is as it was then.
        """
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid == 0 and time.monotonic() - self._started_s < self._limit_s:
            return None
        _kill_group(self._pid)
        if pid == 0:
            os.waitpid(self._pid, 0)
        self._path.write_bytes(self._source)
        return "a time-out" if pid == 0 else self._failed(os.waitstatus_to_exitcode(status))

    def _failed(self, code: int) -> str:
        """The test that failed; "" if none did, and none at all is no failure either."""
        if code in {0, 5}:
            return ""
        found = FAILED.search(self._output.read_text(errors="replace"))
        if found is None:
            return f"the end of the process, {code}"
        # A test's name may hold what parts it from its message.
        named = [test for test in self._running if f"{found[1]} - ".startswith(f"{test} - ")]
        return max(named, key=len, default=found[1].partition(" - ")[0])


def _kill_group(pid: int) -> None:
    """The process and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
