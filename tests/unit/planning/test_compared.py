"""Which two runs the name of a comparison means."""

import os
from pathlib import Path

import pytest

from distillery.planning.compared import compared_files, two_runs
from distillery.run_folder import RunFolder


def make_run(results: Path, name: str) -> Path:
    """The least that a comparison can read: scores."""
    path = RunFolder(results / name).scores
    path.parent.mkdir(parents=True)
    path.touch()
    return path


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
        make_run(tmp_path, name)
    first, second = two_runs(pair, tmp_path)
    assert (first.path.name, second.path.name) == names


@pytest.mark.parametrize(
    ("pair", "folders", "why"),
    [
        ("a-vs-a", ["a"], "a-vs-a compares a with itself: name two runs"),
        ("a-vs-b", ["a"], r"/b is not there: a comparison needs two runs"),
        ("a-vs-b", [], r"/a and .*/b are not there: .* has none$"),
        (
            "dmeo-vs-mini",
            ["demo", "mini"],
            r"/dmeo is not there, did you mean demo: a comparison needs .* has demo, mini$",
        ),
        ("x-vs-a-vs-bb", ["x", "a-vs-b"], r"/a-vs-bb is not there, did you mean a-vs-b: "),
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
        make_run(tmp_path, name)
    with pytest.raises(ValueError, match=why):
        two_runs(pair, tmp_path)


def test_what_is_read_is_known_by_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = [make_run(Path("results"), name) for name in ("a", "b")][-1]
    before = compared_files("a-vs-b")
    assert compared_files("a-vs-b") == before
    assert len(before) == 2
    os.utime(path, ns=(1, 1))
    assert compared_files("a-vs-b") != before
    before = compared_files("a-vs-b")
    report = RunFolder(Path("results/a")).report
    report.parent.mkdir()
    report.touch()
    assert compared_files("a-vs-b") != before, "the page links to it from now on"


def test_a_folder_without_results_is_refused_and_not_named(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    (tmp_path / "half" / "logs").mkdir(parents=True)
    why = r"half holds no results of a run, neither .* make the run first, .* run: half$"
    with pytest.raises(ValueError, match=why):
        two_runs("a-vs-half", tmp_path)
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match=r"(?s)half holds no results.*other holds no results"):
        two_runs("half-vs-other", tmp_path)
    with pytest.raises(ValueError, match=r"has a$"):
        two_runs("a-vs-hal", tmp_path)
