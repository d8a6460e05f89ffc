"""What people chose blindly: counted, and refused where it is of other images."""

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distillery.report.choices import COLUMNS, read_choices
from distillery.report.roles import Roles

ROLES = Roles("student", "teacher")
SAMPLES: Any = {
    name: SimpleNamespace(digest=f"of {name}", num_frames=1) for name in ("teacher", "student")
}


def write(path: Path, letters: str, *, swap: bool = False, **changes: str) -> Path:
    """A file with a line for each letter: (a), (b) or (n)either."""
    models = ("teacher", "student") if swap else ("student", "teacher")
    line = dict.fromkeys(COLUMNS, "x")
    for side, model in zip("ab", models, strict=True):
        line |= {f"model_{side}": model, f"images_{side}": f"of {model}"}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for it in letters:
            writer.writerow(line | {"chosen": "neither" if it == "n" else it} | changes)
    return path


def test_choices_are_counted_for_the_student_on_whichever_side(tmp_path: Path) -> None:
    files = [write(tmp_path / "1.csv", "aaabn"), write(tmp_path / "2.csv", "bbba", swap=True)]
    choices = read_choices(files, SAMPLES, ROLES)
    assert choices is not None
    (found,) = choices.preferences
    assert (found.model, found.over) == ("student", "teacher")
    assert (found.num_chosen, found.num_decided, found.num_neither) == (6, 8, 1)
    assert choices.sentences == [
        "Of 8 blind pairs the image of student was chosen over that of teacher in 6: "
        "75.0\N{NO-BREAK SPACE}% (40.9\N{NO-BREAK SPACE}% to 92.9\N{NO-BREAK SPACE}%); "
        "1 could not be told apart."
    ]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"images_a": "of another"}, "it is of other images of student than this run's"),
        ({"model_b": "fast"}, "it is of other images of fast than this run's"),
        ({"chosen": "left"}, "line 2 chooses 'left', which is none of a, b and neither"),
    ],
)
def test_a_file_of_other_images_is_refused_whole(
    changes: dict[str, str], why: str, tmp_path: Path
) -> None:
    choices = read_choices([write(tmp_path / "1.csv", "ab", **changes)], SAMPLES, ROLES)
    assert choices is not None
    assert choices.preferences == []
    assert choices.sentences == [f"Not counted: 1.csv, {why}."]


def test_another_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_bytes(b"prompt\n\xff")
    (tmp_path / "2.csv").write_text("prompt\na cat\n")
    choices = read_choices(sorted(tmp_path.iterdir()), SAMPLES, ROLES)
    assert choices is not None
    assert "it cannot be read" in choices.refused[0]
    assert "its columns are not" in choices.refused[1]
    assert read_choices([], SAMPLES, ROLES) is None
