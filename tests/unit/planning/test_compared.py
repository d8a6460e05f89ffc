"""Which two runs the name of a comparison means."""

import os
from pathlib import Path

import pytest

from distillery.planning.compared import compared_files, two_runs
from distillery.run_folder import RunFolder


@pytest.mark.parametrize(
    ("pair", "folders", "names"),
    [
        ("a-vs-b", ["a", "b"], ("a", "b")),
        ("a-vs-b-vs-c", ["a", "b-vs-c"], ("a", "b-vs-c")),
        ("a-vs-b-vs-c", ["a-vs-b", "c"], ("a-vs-b", "c")),
        ("a-vs-vs-b", ["a-vs", "b"], ("a-vs", "b")),
    ],
)
def test_the_folders_tell_where_a_name_ends(
    tmp_path: Path, pair: str, folders: list[str], names: tuple[str, str]
) -> None:
    for name in folders:
        (tmp_path / name).mkdir()
    first, second = two_runs(pair, tmp_path)
    assert (first.path.name, second.path.name) == names


@pytest.mark.parametrize(
    ("pair", "folders", "why"),
    [
        ("a-vs-a", ["a"], "a-vs-a compares a with itself: name two runs"),
        ("a-vs-b", ["a"], r"/b is not there: a comparison needs two runs"),
        ("a-vs-b", [], r"/a and .*/b are not there"),
        (
            "a-vs-b-vs-c",
            ["a", "b-vs-c", "a-vs-b", "c"],
            "may compare a with b-vs-c or a-vs-b with c: link a folder",
        ),
    ],
)
def test_others_are_refused_with_a_reason(
    tmp_path: Path, pair: str, folders: list[str], why: str
) -> None:
    for name in folders:
        (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=why):
        two_runs(pair, tmp_path)


def test_what_is_read_is_known_by_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        path = RunFolder(Path("results") / name).scores
        path.parent.mkdir(parents=True)
        path.touch()
    before = compared_files("a-vs-b")
    assert compared_files("a-vs-b") == before
    assert len(before) == 2
    os.utime(path, ns=(1, 1))
    assert compared_files("a-vs-b") != before
