"""Which mutants are found in a source, and which are picked."""

import ast
import json
from pathlib import Path

import pytest

from mutation import equivalent
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
    '⟦raise ValueError(f"by is {by + 2}") → pass⟧',
    'return [self.size ⟦* → /⟧ each for each in table["row"] if each in known]',
    'return [self.size * each for each in table[⟦"row" → "row_x"⟧] if each in known]',
    'return [self.size * each for each in table["row"] if each ⟦in → not in⟧ known]',
}
PACKAGE = Path(__file__).parents[2] / "workflow/distillery"


def test_what_a_test_should_hold_is_changed_and_nothing_else() -> None:
    found = find(SOURCE.encode(), "part.py")
    assert {mutant.text for mutant in found} == TEXTS
    assert {mutant.function for mutant in found} == {"Part.grow", ""}
    assert found[3].line == 15


def test_a_mutant_of_ours_is_other_python() -> None:
    for path in (PACKAGE / "slots.py", PACKAGE / "training/watchdog.py"):
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
    ]
    names = ("test", "seconds", "passed", "setup", "call")
    lines = (json.dumps(dict(zip(names, record, strict=True))) for record in records)
    notes.write_text("".join(f"{line}\n" for line in lines))
    (mutant, *_) = mutants("m.py", range(1))
    expected = ["a.py::quick", "b.py::later", "a.py::slow", "b.py::first"]
    assert Coverage(notes).tests_of(mutant) == expected


def test_each_listed_mutant_has_a_reason(tmp_path: Path) -> None:
    assert all(equivalent.read().values())
    path = tmp_path / "list.txt"
    path.write_text("a.py work\n    left ⟦< → <=⟧ right\n")
    with pytest.raises(ValueError, match=r"a\.py work: say in a third line"):
        equivalent.read(path)
