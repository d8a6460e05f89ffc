"""Files are whole or absent, JSON has one form."""

import hashlib
import os
import stat
from pathlib import Path

import pytest

from distillery import files
from distillery.files import (
    atomic_path,
    canonical_json,
    hash_file,
    hash_files,
    hash_json,
    read_json,
    read_sealed,
    write_json,
    write_sealed,
)


def test_a_seal_breaks_with_what_it_seals(tmp_path: Path) -> None:
    path, value = tmp_path / "plan.json", {"b": [1, 2], "a": "x"}
    write_sealed(path, value)
    assert read_sealed(path) == value
    write_sealed(path, read_json(path) | {"a": "y"})
    assert read_sealed(path) == value | {"a": "y"}, "an old seal is replaced"
    for damage in (
        lambda: path.write_text(path.read_text().replace('"y"', '"z"')),
        lambda: write_json(path, value),
    ):
        damage()
        with pytest.raises(ValueError, match=rf"{path} is damaged, or was written by another .*rm"):
            read_sealed(path)


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail_midway() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        fail_midway()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_seen_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        assert not path.exists()
        assert temporary.parent == path.parent
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_what_is_renamed_is_on_the_disk_before_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final, synced = tmp_path / "model", list[tuple[str, bool]]()

    def note(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        synced.append((path.name if path.suffix != ".tmp" else "temporary", final.exists()))

    monkeypatch.setattr(os, "fsync", note)
    with atomic_path(final) as temporary:
        temporary.mkdir()
        (temporary / "weights").touch()
    assert synced == [("temporary", False), ("weights", False), (tmp_path.name, True)]


def test_forgetting_to_write_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "a.txt"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_folder_replaces_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "model"
    for content in ("old", "new"):
        with atomic_path(path) as temporary:
            (temporary / "deep").mkdir(parents=True)
            (temporary / "deep" / content).write_text(content)
    assert [file.name for file in (path / "deep").iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_are_those_of_an_ordinary_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o640


def test_json_has_one_form(tmp_path: Path) -> None:
    one, other = {"b": [1, 2.5], "a": {"d": None, "c": "ü"}}, {"a": {"c": "ü", "d": None}}
    other["b"] = [1, 2.5]  # type: ignore[assignment]
    assert canonical_json(one) == canonical_json(other)
    assert hash_json(one) == hash_json(other) != hash_json({**one, "b": [1, 2]})
    write_json(tmp_path / "one.json", one)
    write_json(tmp_path / "other.json", other)
    assert hash_file(tmp_path / "one.json") == hash_file(tmp_path / "other.json")
    assert read_json(tmp_path / "one.json") == one


def test_no_nan_enters_a_recipe(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        hash_json({"a": float("nan")})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"a": float("inf")})


@pytest.mark.parametrize(("text", "problem"), [("{", "not valid JSON"), ("[1]", "JSON list")])
def test_a_bad_json_file_is_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=rf"a\.json.*{problem}"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("num_bytes", [0, 1, 99, 100, 101, 1000])
def test_a_file_is_hashed_whole_whatever_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_bytes: int
) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 100)
    content = bytes(number % 251 for number in range(num_bytes))
    paths = [tmp_path / name for name in ("one", "other")]
    paths[0].write_bytes(content)
    paths[1].write_bytes(content[::-1])
    expected = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    assert list(map(hash_file, paths)) == expected
    assert hash_files(iter(paths)) == dict(zip(paths, expected, strict=True))
