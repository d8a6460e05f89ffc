"""Work lists are balanced, and a merge believes nothing that it has not seen."""

from pathlib import Path

import pytest
import torch

from distillery.files import hash_json, read_sealed, write_sealed
from distillery.stage import balanced_range
from distillery.store.chunks import (
    ChunkIdentity,
    DamagedChunkError,
    StaleChunkError,
    chunk_folder,
    chunk_path,
    write_chunk,
)
from distillery.store.shards import Manifest, describe_chunk, merge_shards

RECIPE = {"kind": "test", "steps": 4}


@pytest.mark.parametrize("num_items", [0, 1, 2, 5, 9, 65])
@pytest.mark.parametrize("num_parts", [1, 4, 64])
def test_parts_cover_everything_once_and_differ_by_at_most_one(
    num_items: int, num_parts: int
) -> None:
    parts = [balanced_range(num_items, part, num_parts) for part in range(num_parts)]
    assert [item for part in parts for item in part] == list(range(num_items))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_five_on_four() -> None:
    assert [len(balanced_range(5, part, 4)) for part in range(4)] == [2, 1, 1, 1]


@pytest.mark.parametrize("part", [-1, 4])
def test_a_part_that_does_not_exist_is_refused(part: int) -> None:
    with pytest.raises(ValueError, match="from 0 to 3"):
        balanced_range(5, part, 4)


def write_shards(root: Path, num_chunks: int, num_shards: int, **recipe: object) -> list[Path]:
    """Chunks of two samples each, and the shards that list them."""
    whole = {**RECIPE, **recipe}
    folder = chunk_folder(root, hash_json(whole))
    paths = []
    for part in range(num_shards):
        records = []
        for index in balanced_range(num_chunks, part, num_shards):
            identity = ChunkIdentity(hash_json(whole), f"members {index}")
            write_chunk(
                chunk_path(folder, index), {"x": torch.full((2,), float(index))}, identity, {}
            )
            records.append(describe_chunk(folder, index, root, identity.members, 2))
        paths.append(root / f"shard-{part}-of-{num_shards}.json")
        Manifest(whole, hash_json(whole), tuple(records), num_chunks).write(paths[-1])
    return paths


def test_shards_merge_to_one_manifest_whatever_their_number_and_order(tmp_path: Path) -> None:
    contents = set()
    for num_shards in (1, 3, 8):
        shards = write_shards(tmp_path, 5, num_shards)
        merge_shards(reversed(shards), tmp_path).write(tmp_path / "manifest.json")
        contents.add((tmp_path / "manifest.json").read_bytes())
    assert len(contents) == 1
    manifest = Manifest.open(tmp_path / "manifest.json")
    assert [chunk.index for chunk in manifest.chunks] == list(range(5))
    assert manifest.num_samples == 10
    assert manifest.recipe == RECIPE
    assert not Path(manifest.chunks[0].file).is_absolute()


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_a_shard_left_out_is_seen_even_if_it_is_the_last(tmp_path: Path, left_out: int) -> None:
    shards = write_shards(tmp_path, 5, 3)
    missing = {0: r"\[0, 1\]", 1: r"\[2, 3\]", 2: r"\[4\]"}[left_out]
    del shards[left_out]
    with pytest.raises(ValueError, match=f"missing: {missing}"):
        merge_shards(shards, tmp_path)


def test_a_chunk_in_two_shards_is_seen(tmp_path: Path) -> None:
    shards = [*write_shards(tmp_path, 5, 2), *write_shards(tmp_path, 5, 5)[:1]]
    with pytest.raises(ValueError, match=r"twice: \[0\]"):
        merge_shards(shards, tmp_path)


def test_shards_of_two_prompt_tables_are_refused(tmp_path: Path) -> None:
    old, new = write_shards(tmp_path / "old", 4, 2), write_shards(tmp_path / "new", 5, 2)
    shards = [old[0], new[1]]
    with pytest.raises(ValueError, match="sets of 4 and 5 chunks"):
        merge_shards(shards, tmp_path)


def test_shards_of_two_recipes_are_refused(tmp_path: Path) -> None:
    old = write_shards(tmp_path / "old", 4, 2, steps=8)
    new = write_shards(tmp_path / "new", 4, 2)
    with pytest.raises(ValueError, match=r"different recipes.*shard-0-of-2\.json has"):
        merge_shards([old[0], new[1]], tmp_path)


def first_chunk(root: Path) -> Path:
    return chunk_path(chunk_folder(root, hash_json(RECIPE)), 0)


def test_a_damaged_chunk_is_named_with_the_way_to_mend_it(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 5, 2)
    content = first_chunk(tmp_path).read_bytes()
    for damaged in (content[:-1], content[:-1] + b"x", b""):
        first_chunk(tmp_path).write_bytes(damaged)
        with pytest.raises(DamagedChunkError, match=r"run `rm -r .*chunk-000000.*/shard-0-of-2"):
            merge_shards(shards, tmp_path)
    first_chunk(tmp_path).unlink()
    with pytest.raises(DamagedChunkError, match=r"missing: run `rm -r [^ ]*shard-0-of-2.json`"):
        merge_shards(shards, tmp_path)


def test_a_chunk_that_changed_since_is_refused(tmp_path: Path) -> None:
    """Whole, of this recipe and these members, but not the bytes that the shard saw."""
    shards = write_shards(tmp_path, 5, 2)
    identity = ChunkIdentity(hash_json(RECIPE), "members 0")
    write_chunk(first_chunk(tmp_path), {"x": torch.full((2,), 9.0)}, identity, {})
    with pytest.raises(DamagedChunkError, match=r"chunk-000000.*is not what .*shard-0-of-2"):
        merge_shards(shards, tmp_path)


def test_a_chunk_of_other_members_is_refused_with_the_way_to_mend_it(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 5, 2)
    identity = ChunkIdentity(hash_json(RECIPE), "others")
    write_chunk(first_chunk(tmp_path), {"x": torch.zeros(2)}, identity, {})
    with pytest.raises(StaleChunkError, match=r"other prompts.*rm -r .*shard-0-of-2"):
        merge_shards(shards, tmp_path)


def test_opening_a_shard_for_a_manifest_is_refused(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 5, 2)
    with pytest.raises(ValueError, match="lists 3 of 5 chunks"):
        Manifest.open(shards[0])


def test_opening_looks_at_every_chunk(tmp_path: Path) -> None:
    (shard,) = write_shards(tmp_path, 5, 1)
    Manifest.open(shard)
    first_chunk(tmp_path).unlink()
    with pytest.raises(DamagedChunkError, match="missing"):
        Manifest.open(shard)


def test_something_else_is_no_manifest(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"chunks": []}')
    with pytest.raises(ValueError, match=r"a\.json is damaged, or was written by another version"):
        Manifest.read(path)
    write_sealed(path, {"chunks": []})
    with pytest.raises(ValueError, match=rf"a\.json is no manifest.*run `rm -r {path}`"):
        Manifest.read(path)


@pytest.mark.parametrize("name", ["shard-0-of-1.json", "manifest.json"])
@pytest.mark.parametrize(("old", "new"), [('"steps": 4', '"steps": 5'), ("members 1", "members 0")])
def test_a_digit_that_changed_in_a_manifest_is_seen_by_who_opens_it(
    tmp_path: Path, name: str, old: str, new: str
) -> None:
    shards = write_shards(tmp_path, 2, 1)
    merge_shards(shards, tmp_path).write(tmp_path / "manifest.json")
    path = tmp_path / name
    path.write_text(path.read_text().replace(old, new))
    read = Manifest.open if name == "manifest.json" else Manifest.read
    with pytest.raises(ValueError, match=rf"{name} is damaged.*run `rm -r {path}`"):
        read(path)


def test_a_recipe_that_is_not_that_of_its_hash_is_refused(tmp_path: Path) -> None:
    """Also where somebody sealed it so."""
    (shard,) = write_shards(tmp_path, 2, 1)
    raw = read_sealed(shard)
    write_sealed(shard, raw | {"recipe": raw["recipe"] | {"steps": 5}})
    with pytest.raises(ValueError, match=r"recipe whose hash is not its recipe_hash"):
        merge_shards([shard], tmp_path)
