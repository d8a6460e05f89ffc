"""Which tests run a function, the quickest first."""

import importlib.util
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Container
from pathlib import Path

from mutation.find import Mutant

LONGEST_S = 240.0
"""Of the tests that one mutant meets, as long as they took when they were noted."""


def note_coverage(root: Path, folder: Path, tests: list[str], jobs: int) -> Path:
    """Run the tests once with the plugin `trace`; returns its notes, of tests that fail too."""
    notes = folder / "notes.jsonl"
    if (folder / "noted").exists():
        return notes
    parallel = ["-n", str(jobs), "--dist", "worksteal"] if importlib.util.find_spec("xdist") else []
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "mutation.trace", *parallel, *tests],
        cwd=root,
        env=os.environ | {"MUTATION_TRACE": str(notes), "PYTHONPATH": _path(root)},
        check=False,
    )
    (folder / "noted").touch()
    return notes


def collect(root: Path) -> set[str]:
    """The tests that there are."""
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "tests"],
        cwd=root, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return {line for line in listed.splitlines() if "::" in line}


def _path(root: Path) -> str:
    return os.pathsep.join(filter(None, [str(root / "tests"), os.environ.get("PYTHONPATH", "")]))


def read(notes: Path) -> dict[str, dict[str, object]]:
    """The notes by test."""
    records = (json.loads(line) for line in notes.read_text(encoding="utf-8").splitlines())
    return {record["test"]: record for record in records}


class Coverage:
    """What the plugin noted."""

    def __init__(self, notes: Path, existing: Container[str] | None = None) -> None:
        """Read the notes, of `existing` tests; of all if None."""
        # One that fails without any mutant would seem to kill them all, and so would one that was
        # renamed since: pytest then ends at once.
        records = {
            test: note
            for test, note in read(notes).items()
            if note["passed"] and (existing is None or test in existing)
        }
        self.seconds = {test: float(str(record["seconds"])) for test, record in records.items()}
        self._tests: dict[str, set[str]] = defaultdict(set)
        of_file: dict[str, set[str]] = defaultdict(set)
        for test in records:
            of_file[test.partition("::")[0]].add(test)
        for test, record in records.items():
            for function in record["call"]:  # type: ignore[attr-defined]
                self._tests[function].add(test)
            # A fixture runs before the first test that needs it, and all later ones may see it.
            for function in record["setup"]:  # type: ignore[attr-defined]
                self._tests[function] |= of_file[test.partition("::")[0]]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Those of the mutant's function, or of its whole module if it is in none."""
        module = f"{mutant.module}:"
        found = self._tests.get(module + mutant.function, set()) if mutant.function else set()
        if not found:
            functions = [name for name in self._tests if name.startswith(module)]
            found = set().union(*(self._tests[name] for name in functions))
        chosen, total_s = [], 0.0
        for test in sorted(found, key=lambda test: (self.seconds[test], test)):
            total_s += self.seconds[test]
            if total_s > LONGEST_S:
                break
            chosen.append(test)
        return chosen
