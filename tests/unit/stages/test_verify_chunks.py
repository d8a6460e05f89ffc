"""Which chunks must be there: those of the merged manifest, or of the shards where none is."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from distillery.planning.verify_files import find_chunks
from distillery.store.shards import Manifest


@pytest.fixture
def targets(data: Path, tmp_path: Path) -> Path:
    shutil.copytree(data / "targets", tmp_path / "targets")
    return tmp_path / "targets"


def damaged(root: Path) -> list[Path]:
    return [item.path for item in find_chunks(root) if item.find_problem() is not None]


def test_a_shard_of_an_earlier_configuration_needs_no_chunks(targets: Path) -> None:
    manifest = Manifest.read(targets / "manifest.json")
    chunks = [replace(it, file=f"earlier/{Path(it.file).name}") for it in manifest.chunks]
    replace(manifest, chunks=tuple(chunks)).write(targets / "shard-0-of-1.json")
    assert damaged(targets) == []


@pytest.mark.parametrize("name", ["manifest.json", "shard-0-of-1.json"])
def test_a_chunk_that_is_missing_is_damage_before_the_merge_too(targets: Path, name: str) -> None:
    (targets / "manifest.json").rename(targets / name)
    chunk = targets / Manifest.read(targets / name).chunks[-1].file
    chunk.unlink()
    assert damaged(targets) == [chunk]
