"""A table carries a checksum of all its bytes; one without a checksum is read as it is."""

from pathlib import Path

import pandas as pd
import pytest

from distillery.store.footers import recipe_in
from distillery.store.tables import find_problem, read_table, write_table

TABLE = pd.DataFrame(
    {
        "prompt_id": ["p0", "p1", "p2"],
        "prompt": ["a red dog", "distillery-sha256\x18\x40" + "0" * 64, "Grüße"],
        "loss": [0.5, float("nan"), 1e-7],
        "words": [["a"], [], ["b", "c"]],
    },
    index=[7, 8, 9],
)


def test_a_table_comes_back_as_it_was(tmp_path: Path) -> None:
    for name in ("one.parquet", "other.parquet"):
        write_table(TABLE, tmp_path / name)
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "other.parquet").read_bytes()
    plain = tmp_path / "plain.parquet"
    TABLE.to_parquet(plain, index=False)
    for found in (read_table(tmp_path / "one.parquet"), pd.read_parquet(tmp_path / "one.parquet")):
        assert (found.dtypes == pd.read_parquet(plain).dtypes).all()
        assert found.to_json() == pd.read_parquet(plain).to_json()


def test_a_table_of_another_program_is_read_as_it_is(tmp_path: Path) -> None:
    plain = tmp_path / "plain.parquet"
    TABLE.drop(columns="prompt").to_parquet(plain, index=False)
    assert read_table(plain).to_json() == pd.read_parquet(plain).to_json()
    assert find_problem(plain) == "it carries no hash of its bytes"


def test_a_table_carries_the_hash_of_its_recipe(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_table(TABLE, path)
    assert recipe_in(path) is None
    write_table(TABLE, path, "ab" * 32)
    assert recipe_in(path) == "ab" * 32
    assert find_problem(path) is None
    assert len(read_table(path)) == len(TABLE)
    path.write_bytes(path.read_bytes().replace(b"ab" * 32, b"cd" * 32))
    assert find_problem(path) is not None


def test_an_empty_table_has_a_seal_too(tmp_path: Path) -> None:
    write_table(pd.DataFrame(), tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet").empty


def test_every_byte_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_table(TABLE, path)
    content = path.read_bytes()
    assert find_problem(path) is None
    missed = []
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        missed += [place] if find_problem(path) is None else []
    assert missed == []


@pytest.mark.parametrize("place", [200, -200, -6])
def test_a_damaged_table_is_told_in_one_line_with_its_cure(tmp_path: Path, place: int) -> None:
    path = tmp_path / "a.parquet"
    write_table(TABLE, path)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.parquet is damaged \(.*\): run `rm -r {path}` and"):
        read_table(path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\0" * 50 + b"PAR1"])
def test_what_is_no_table_is_told_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.parquet is damaged \([^\n]*\): run `rm -r {path}`"):
        read_table(path)
