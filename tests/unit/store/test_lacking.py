"""Files that manifests list and that are gone: which manifests count, and which name the files."""

from pathlib import Path

import pandas as pd
import pytest

from distillery.files import hash_json
from distillery.store.lacking import Lacking, lacking_chunks, lacking_images
from distillery.store.shards import ChunkRecord, Manifest
from distillery.store.tables import write_table

RECIPE = {"kind": "of a test"}
HASH = hash_json(RECIPE)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Four chunks in two shards, merged."""
    chunks = tuple(
        ChunkRecord(index, f"{HASH[:12]}/chunk-{index:06d}.safetensors", "sha256", "members", 8)
        for index in range(4)
    )
    (tmp_path / HASH[:12]).mkdir()
    for chunk in chunks:
        (tmp_path / chunk.file).write_bytes(b"content")
    for part in range(2):
        shard = chunks[2 * part : 2 * part + 2]
        Manifest(RECIPE, HASH, shard, 4).write(tmp_path / f"shard-{part}-of-2.json")
    Manifest(RECIPE, HASH, chunks).write(tmp_path / "manifest.json")
    return tmp_path


def chunk(store: Path, index: int) -> Path:
    return store / HASH[:12] / f"chunk-{index:06d}.safetensors"


def test_the_manifests_that_list_what_is_gone_are_named(store: Path) -> None:
    assert lacking_chunks(store, HASH) == Lacking(num_listed=4)
    for index in (3, 2):
        chunk(store, index).unlink()
    names = ("manifest.json", "shard-1-of-2.json")
    assert lacking_chunks(store, HASH) == Lacking(
        (chunk(store, 2), chunk(store, 3)), 4, tuple(store / name for name in names)
    )


def test_a_whole_folder_may_be_gone(store: Path) -> None:
    chunk(store, 0).parent.rename(store / "elsewhere")
    assert len(lacking_chunks(store, HASH).files) == 4


def test_before_the_merge_the_shards_count_and_after_it_the_manifest_alone(store: Path) -> None:
    old = ChunkRecord(9, f"{HASH[:12]}/chunk-000009.safetensors", "sha256", "members", 8)
    Manifest(RECIPE, HASH, (old,), 10).write(store / "shard-9-of-10.json")
    assert lacking_chunks(store, HASH).files == ()
    (store / "manifest.json").unlink()
    assert lacking_chunks(store, HASH).files == (chunk(store, 9),)


def test_manifests_of_another_recipe_or_damaged_ones_tell_nothing(store: Path) -> None:
    chunk(store, 0).unlink()
    assert lacking_chunks(store, "another").files == ()
    (store / "manifest.json").write_text("{}")
    assert lacking_chunks(store, HASH).files == ()


def test_images_and_latents_are_looked_for(tmp_path: Path) -> None:
    names = [f"p{number}/0" for number in range(3)]
    table = pd.DataFrame(
        {
            "file": [f"{name}.png" for name in names],
            "latents_file": [f"{name}.safetensors" for name in names],
        }
    )
    for name in [*table["file"], *table["latents_file"]]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"content")
    write_table(table, tmp_path / "manifest.parquet")
    write_table(table[:1], tmp_path / "shard-0-of-2.parquet")
    assert lacking_images(tmp_path) == Lacking(num_listed=6)
    (tmp_path / "p2/0.safetensors").unlink()
    (tmp_path / "p1/0.png").write_bytes(b"")
    gone = (tmp_path / "p1/0.png", tmp_path / "p2/0.safetensors")
    assert lacking_images(tmp_path) == Lacking(gone, 6, (tmp_path / "manifest.parquet",))
