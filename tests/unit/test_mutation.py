"""Which mutants are found in a source, and which are picked."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mutation import equivalent
from mutation.__main__ import DRAWINGS
from mutation.covering import Coverage
from mutation.find import Mutant, find, pick

SOURCE = '''
"""A module of 1 and 2."""

LIMIT = 5


class Part:
    """Its text has 3."""

    size: int = 4

    def grow(self, by: int = 6, *, is_new: bool = False) -> list[int]:
        """By 7."""
        assert by != 8
        self.size += by
        if not (by < self.size and is_new):
            self.tell(f"{by + 1} too many")
            reporter.info("grows", 9)
            raise ValueError(f"by is {by + 2}")
        self.mate(zip(self.tail, known, strict=True), strict=True)
        return [self.size * each for each in table["row"] if each in known]
'''
TEXTS = {
    "size: int = ⟦4 → 5⟧",
    "def grow(self, by: int = ⟦6 → 7⟧, *, is_new: bool = False) -> list[int]:",
    "def grow(self, by: int = 6, *, is_new: bool = ⟦False → True⟧) -> list[int]:",
    "⟦self.size += by → pass⟧",
    "if ⟦not → ⟧(by < self.size and is_new):",
    "if not (by ⟦< → <=⟧ self.size and is_new):",
    "if not (by < self.size ⟦and → or⟧ is_new):",
    '⟦self.tell(f"{by + 1} too many") → pass⟧',
    "⟦self.mate(zip(self.tail, known, strict=True), strict=True) → pass⟧",
    "self.mate(zip(self.tail, known, strict=True), strict=⟦True → False⟧)",
    '⟦raise ValueError(f"by is {by + 2}") → pass⟧',
    'return [self.size ⟦* → /⟧ each for each in table["row"] if each in known]',
    'return [self.size * each for each in table[⟦"row" → "row_x"⟧] if each in known]',
    'return [self.size * each for each in table["row"] if each ⟦in → not in⟧ known]',
}
HERE = Path(__file__).parents[1]
PACKAGE = HERE.parent / "workflow/distillery"


def test_what_a_test_should_hold_is_changed_and_nothing_else() -> None:
    found = find(SOURCE.encode(), "part.py")
    assert {mutant.text for mutant in found} == TEXTS
    assert {mutant.function for mutant in found} == {"Part.grow", ""}
    assert found[3].line == 15


def test_a_mutant_of_ours_is_other_python() -> None:
    for path in (PACKAGE / "slots.py", PACKAGE / "training/health.py"):
        source = path.read_bytes()
        before = ast.dump(ast.parse(source))
        for mutant in find(source, path.name)[::5]:
            assert ast.dump(ast.parse(mutant.apply(source))) != before, mutant


def mutants(module: str, lines: range) -> list[Mutant]:
    source = "def work(left, right):\n" + "".join(
        f"    left_{line} = left + {line}\n    right_{line} = left < right\n" for line in lines
    )
    return find(source.encode(), module)


def test_rooms_and_kinds_have_their_share_and_an_edit_elsewhere_changes_no_choice() -> None:
    large, small = mutants("large/a.py", range(100)), mutants("small/b.py", range(10))
    picked = pick([*large, *small], 30, seed=1)
    assert len(picked) == 30
    assert sum(mutant.room == "small" for mutant in picked) >= 3
    kinds = [mutant.kind for mutant in picked]
    assert min(map(kinds.count, ("arithmetic", "constant", "comparison"))) >= 8
    assert pick([*reversed(small), *large], 30, seed=1) == picked
    longer = mutants("large/a.py", range(101))
    again = {mutant.text for mutant in pick([*longer, *small], 30, seed=1)}
    assert len(again & {mutant.text for mutant in picked}) >= 27
    assert pick([*large, *small], 30, seed=2) != picked


def test_a_mutant_meets_the_tests_that_run_its_function_the_quickest_first(tmp_path: Path) -> None:
    notes = tmp_path / "notes.jsonl"
    records = [
        ("a.py::slow", 3, True, [], ["m.py:work"]),
        ("a.py::quick", 1, True, [], ["m.py:work"]),
        ("b.py::first", 5, True, ["m.py:work"], []),
        ("b.py::later", 2, True, [], []),
        ("c.py::other", 1, True, [], ["m.py:other"]),
        ("d.py::fails", 1, False, [], ["m.py:work"]),
        ("e.py::renamed", 1, True, [], ["m.py:work"]),
    ]
    names = ("test", "seconds", "passed", "setup", "call")
    lines = (json.dumps(dict(zip(names, record, strict=True))) for record in records)
    notes.write_text("".join(f"{line}\n" for line in lines))
    (mutant, *_) = mutants("m.py", range(1))
    expected = ["a.py::quick", "b.py::later", "a.py::slow", "b.py::first"]
    existing = {test for test, *_ in records} - {"e.py::renamed"}
    assert Coverage(notes, existing).tests_of(mutant) == expected


PART = "def is_below(left, right):\n    return left < right\n"
TESTS = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("name", ["fails - always", "sees - it"])
def test_part(name):
    with Path("met").open("a") as file:
        file.write(f"{name}\\n")
    names = {}
    exec(Path("workflow/distillery/part.py").read_text(), names)
    assert name != "fails - always" and not names["is_below"](1, 1)
"""
RUN = """
from pathlib import Path
from mutation import running
from mutation.covering import Coverage
from mutation.find import find
here = running.ROOT = Path.cwd()
running.LIBRARIES = ("pytest",)
(mutant,) = find((here / "workflow/distillery/part.py").read_bytes(), "part.py")
for result in running.run_all([mutant, mutant], Coverage(here / "notes"), here / "work", jobs=1):
    print(result.line.replace(f"{result.seconds:.0f} s", "1 s"))
"""


def test_a_test_that_fails_without_the_mutant_is_no_killer(tmp_path: Path) -> None:
    """It is tried once without it, and named; the mutant's other tests go on."""
    for name, text in (("workflow/distillery/part.py", PART), ("tests/test_part.py", TESTS)):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    broken, killer = (
        f"tests/test_part.py::test_part[{it}]" for it in ("fails - always", "sees - it")
    )
    note = {"seconds": 1, "passed": True, "setup": [], "call": ["part.py:is_below"]}
    lines = (json.dumps(note | {"test": test}) for test in (broken, killer))
    (tmp_path / "notes").write_text("\n".join(lines))
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    told = subprocess.run(
        [sys.executable, "-c", RUN], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(HERE)},
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    line = f"part.py:2  return left ⟦< → <=⟧ right  killed by {killer}  (1 s)"
    assert told == [line, f"  fails without it too: {broken}", line]
    met = (tmp_path / "work/tree-0/met").read_text().splitlines()
    assert met == ["fails - always"] * 2 + ["sees - it"] * 3


def test_modules_that_are_named_are_there() -> None:
    named = DRAWINGS | {module for module, _, _ in equivalent.read()}
    assert {module for module in named if not (PACKAGE / module).is_file()} == set()


def test_each_listed_mutant_has_a_reason(tmp_path: Path) -> None:
    assert all(equivalent.read().values())
    path = tmp_path / "list.txt"
    path.write_text("a.py work\n    left ⟦< → <=⟧ right\n")
    with pytest.raises(ValueError, match=r"a\.py work: say in a third line"):
        equivalent.read(path)
