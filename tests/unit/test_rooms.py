"""Imports go one way: a room of the library imports only those above it in docs/design.md."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import distillery
from checkout import REPOSITORY

ROOT = Path(distillery.__file__).parent
ROWS = re.findall(r"^\| (`[^|]*) \| [^|]+ \|$", (REPOSITORY / "docs/design.md").read_text(), re.M)
FLOORS = {
    room: number for number, row in enumerate(ROWS) for room in re.findall(r"`([^`]+)`", row)
}  # fmt: skip
FILES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT / "stages")


def room_of(path: Path) -> str:
    """The folder, or the file beside the folders."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(path: Path) -> Iterator[str]:
    """The rooms that a file imports, also those inside of functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("distillery"):
            _, _, rest = str(node.module).partition(".")
            names = [rest] if rest else [alias.name for alias in node.names]
            yield from (name.partition(".")[0] for name in names)


@pytest.mark.parametrize("room", sorted({room_of(path) for path in FILES} - {"__init__"}))
def test_a_room_imports_only_those_above_it(room: str) -> None:
    assert room in FLOORS, "name it in docs/design.md, where things are"
    climbs = {
        (str(path.relative_to(ROOT)), other)
        for path in FILES
        if room_of(path) == room
        for other in imported(path)
        if other not in (room, "__version__") and FLOORS[other] >= FLOORS[room]
    }
    assert climbs == set()


def test_the_table_names_no_room_that_is_gone() -> None:
    assert FLOORS.keys() == {room_of(path) for path in FILES} - {"__init__"} | {"stages"}


ESSENTIAL = (
    "generation.embeddings", "generation.targets", "student.build", "training.loop",
    "training.ways.stored", "student.export", "generation.samples", "measures.score",
)  # fmt: skip
"""What a run does from prompts to scores, with a student that learns from stored targets."""
APART = re.compile(
    r"distillery\.(report|evaluation|terminal|planning|import_config|pipeline|stages"
    r"|training\.(target_teacher|ways\.(online|matching|rounds|rollouts|adversarial)))\b"
)


def test_the_essential_path_imports_nothing_that_a_run_may_do_without() -> None:
    names = ", ".join(f"distillery.{name}" for name in ESSENTIAL)
    code = f"import sys, {names}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [name for name in done.stdout.split() if APART.match(name)] == []
