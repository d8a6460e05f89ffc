"""Run tests against mutants: each in a fork of a process that has imported the libraries.

Forks save the seconds that PyTorch, Diffusers and Transformers take to import. Of our own code
nothing is imported before the fork.
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
KILLED_BY = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """What became of a mutant.

    Attributes:
        killer: the test that failed, or how else it ended; "" if it survived.
        seconds: that it took.
    """

    mutant: Mutant
    killer: str
    seconds: float

    @property
    def is_killed(self) -> bool:
        return bool(self.killer)

    @property
    def line(self) -> str:
        """What became of it, where it is, what it is."""
        mutant = self.mutant
        fate = f"killed by {self.killer}" if self.killer else "SURVIVED"
        where = f"{mutant.module}:{mutant.line}"
        return f"{where}  {mutant.text}  {fate}  ({self.seconds:.0f} s)"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def run_all(mutants: list[Mutant], coverage: Coverage, folder: Path, jobs: int) -> Iterator[Result]:
    """Run the tests of each mutant, so many mutants at a time; yields as they end."""
    for library in LIBRARIES:
        __import__(library)
    waiting = list(reversed(mutants))
    free = [_copy_tree(folder / f"tree-{number}") for number in range(jobs)]
    running: dict[int, _Try] = {}
    while waiting or running:
        while waiting and free:
            attempt = _Try(waiting.pop(), free.pop(), coverage)
            running[attempt.pid] = attempt
        for pid, attempt in list(running.items()):
            result = attempt.look()
            if result is not None:
                del running[pid]
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
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


class _Try:
    """One mutant's tests, under way in a process of their own."""

    def __init__(self, mutant: Mutant, tree: Path, coverage: Coverage) -> None:
        self.tree = tree
        self._mutant = mutant
        self._begin_s = time.monotonic()
        self._output = tree.with_suffix(".log")
        self._path = tree / "workflow" / "distillery" / mutant.module
        self._source = self._path.read_bytes()
        self._path.write_bytes(mutant.apply(self._source))
        tests = coverage.tests_of(mutant)
        self._limit_s = LEAST_S + SLOWER * sum(coverage.seconds[test] for test in tests)
        self.pid = os.fork()
        if self.pid == 0:
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
        seconds = time.monotonic() - self._begin_s
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0 and seconds < self._limit_s:
            return None
        _kill_group(self.pid)
        if pid == 0:
            os.waitpid(self.pid, 0)
        self._path.write_bytes(self._source)
        killer = "a time-out" if pid == 0 else self._killer(os.waitstatus_to_exitcode(status))
        return Result(self._mutant, killer, seconds)

    def _killer(self, code: int) -> str:
        """The test that failed; "" if none did, and none at all is a survivor too."""
        if code in {0, 5}:
            return ""
        found = KILLED_BY.search(self._output.read_text(errors="replace"))
        return found.group(1) if found else f"the end of the process, {code}"


def _kill_group(pid: int) -> None:
    """The process and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
