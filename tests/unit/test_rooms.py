"""Imports go one way: a room of the library imports only those above it in docs/design.md."""

import ast
import re
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
    r"(report|evaluation|terminal|planning|import_config|pipeline|stages"
    r"|training\.(target_teacher|ways\.(online|matching|rounds|rollouts|adversarial)))\b"
)


def file_of(module: str) -> Path | None:
    """Of a module of the library; None of another name, such as a function's."""
    path = ROOT / module.replace(".", "/")
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def imported_at_once(path: Path) -> Iterator[str]:
    """The modules that a file imports when it is imported, and the packages that hold them."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("distillery"):
            _, _, module = str(node.module).partition(".")
            for alias in node.names:
                parts = [*filter(None, module.split(".")), alias.name]
                yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def test_the_essential_path_imports_nothing_that_a_run_may_do_without() -> None:
    """As the files say it: a process that imports all of them takes seconds."""
    reached, waiting = set[str](), [*ESSENTIAL, "training.ways", "training"]
    while waiting:
        module = waiting.pop()
        path = file_of(module)
        if path is not None and module not in reached:
            reached.add(module)
            waiting += imported_at_once(path)
    assert reached >= {*ESSENTIAL, "training.update", "teacher.folder", "families.wan", "noise"}
    assert [module for module in reached if APART.match(module)] == []
