"""Samples in tars: the same files as in folders, the same bytes however the work was divided."""

import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from distillery.generation.sample_folder import SampleFolder
from distillery.generation.sample_tars import SampleTars
from distillery.noise import all_samples
from distillery.store.tars import samples_in
from tiny import LATENT_SHAPE, tiny_prompts

NUM_PROMPTS, PER_TAR, UNIT = 11, 4, 2
UNITS = [range(first, min(first + UNIT, NUM_PROMPTS)) for first in range(0, NUM_PROMPTS, UNIT)]
TABLE = tiny_prompts(NUM_PROMPTS)
SAMPLES = all_samples(TABLE["prompt_id"], 1)


def a_store(root: Path, recipe: str = "a" * 64) -> SampleTars:
    return SampleTars(root, TABLE, SAMPLES, 1, recipe, images_per_tar=PER_TAR, seed=1)


def drawn(row: int) -> tuple[np.ndarray, torch.Tensor]:
    pixels = np.random.default_rng(row).integers(0, 256, (8, 8, 3), np.uint8)
    return pixels * (row != 3), torch.full(LATENT_SHAPE, float(row))


def make(
    store: SampleTars, shards: int = 1, order: Callable = list, most: int = 100
) -> Iterator[int]:
    """Draw what is missing, row by row; killed before one more than so many."""
    for shard in range(shards):
        for number, units in store.parts(UNITS, (shard, shards)):
            store.begin(number, units)
            for row in order([row for unit in units for row in unit]):
                if not store.is_done(row):
                    if not most:
                        return
                    most -= 1
                    store.keep(store.save(row, *drawn(row)))
                    yield row
            store.finish()


def contents(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir()}


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    """What a job that was never stopped leaves."""
    assert list(make(a_store(tmp_path / "whole"))) == list(range(NUM_PROMPTS))
    found = contents(tmp_path / "whole")
    assert sorted(found) == [f"images-0000{number}.tar" for number in range(3)]
    return found


@pytest.mark.parametrize("shards", [2, 3, 5])
def test_bytes_do_not_depend_on_the_number_of_jobs(
    tmp_path: Path, whole: dict[str, bytes], shards: int
) -> None:
    assert sorted(make(a_store(tmp_path / "more"), shards)) == list(range(NUM_PROMPTS))
    assert contents(tmp_path / "more") == whole


@pytest.mark.parametrize("most", range(1, NUM_PROMPTS))
def test_nothing_is_drawn_twice_where_a_job_was_killed(
    tmp_path: Path, whole: dict[str, bytes], most: int
) -> None:
    root, made = tmp_path / "killed", list[int]()
    while len(made) < NUM_PROMPTS:
        made += make(a_store(root), most=most)
        for growing in root.glob("*.part"):  # a write that was torn off
            with growing.open("ab") as file:
                file.write(whole["images-00000.tar"][: 700 * most])
    list(make(a_store(root)))
    assert sorted(made) == list(range(NUM_PROMPTS)), "none is lost, and none is drawn twice"
    assert contents(root) == whole


def test_samples_that_came_in_another_order_are_put_in_order(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    """As where some could not be made, and a later job made them."""
    store = a_store(tmp_path / "mixed")
    assert len(list(make(store, order=lambda rows: rows[::-1]))) == NUM_PROMPTS
    assert contents(tmp_path / "mixed") == whole
    number, units = store.parts(UNITS, (0, 1))[0]
    store.begin(number, units)
    store.finish()
    record = store.record(1)
    begin, size = record["file_begin"], record["file_bytes"]
    assert whole["images-00000.tar"][begin : begin + size].startswith(b"\x89PNG")


@pytest.mark.parametrize("place", [0, 300, 600, 1500, 2048, 3000, -1600, -1])
def test_only_what_is_damaged_is_drawn_again(
    tmp_path: Path, whole: dict[str, bytes], place: int
) -> None:
    """Headers, images, latents, JSON, the end; padding is nobody's."""
    tar = tmp_path / "whole" / "images-00001.tar"
    content = bytearray(tar.read_bytes())
    content[place] ^= 1
    tar.write_bytes(content)
    assert len(list(make(a_store(tmp_path / "whole")))) <= 1
    assert tar.read_bytes() == whole[tar.name]


def test_a_tar_of_another_recipe_is_made_again(tmp_path: Path, whole: dict[str, bytes]) -> None:
    assert len(list(make(a_store(tmp_path / "whole", "b" * 64)))) == NUM_PROMPTS
    assert contents(tmp_path / "whole").keys() == whole.keys()
    assert contents(tmp_path / "whole") != whole


def test_files_are_taken_over_and_extracted_files_are_the_folder(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    folder = SampleFolder(tmp_path / "files", TABLE, SAMPLES, 1, "a" * 64)
    for row in range(NUM_PROMPTS):
        folder.save(row, *drawn(row))
    before = {path.relative_to(folder.root): path.read_bytes() for path in folder.root.glob("*/*")}
    assert list(make(a_store(folder.root))) == []
    assert {name: (folder.root / name).read_bytes() for name in whole} == whole
    for path in folder.root.glob("p*"):
        shutil.rmtree(path)
    for tar in whole:
        with tarfile.open(folder.root / tar) as opened:
            opened.extractall(folder.root, filter="data")
    assert all(map(folder.is_done, range(NUM_PROMPTS)))
    assert (
        before.items()
        <= {
            path.relative_to(folder.root): path.read_bytes() for path in folder.root.glob("*/*")
        }.items()
    )


def test_each_sample_has_its_image_its_latents_and_json(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    with tarfile.open(fileobj=io.BytesIO(whole["images-00000.tar"])) as opened:
        members = opened.getmembers()
        assert [it.name for it in members[:3]] == [
            "p000/0.png",
            "p000/0.safetensors",
            "p000/0.json",
        ]
        assert {(it.mtime, it.uid, it.uname, it.mode) for it in members} == {(0, 0, "", 0o644)}
        about = json.load(opened.extractfile(members[-1]))
    assert about["prompt"] == TABLE["prompt"][3]
    assert about["is_black"]
    (first, *_) = samples_in(tmp_path / "whole" / "images-00000.tar")
    assert first.name == "p000/0"


def test_webdataset_reads_them(tmp_path: Path, whole: dict[str, bytes]) -> None:
    webdataset = pytest.importorskip("webdataset")
    tars = [str(tmp_path / "whole" / name) for name in sorted(whole)]
    rows = list(webdataset.WebDataset(tars, shardshuffle=False, empty_check=False).decode("pil"))
    assert [row["__key__"] for row in rows] == list(map(str, SAMPLES))
    assert [row["json"]["prompt"] for row in rows] == TABLE["prompt"].tolist()
    assert all(np.array_equal(np.asarray(rows[row]["png"]), drawn(row)[0]) for row in range(3))


def test_datasets_reads_them(tmp_path: Path, whole: dict[str, bytes]) -> None:
    datasets = pytest.importorskip("datasets")
    tars = [str(tmp_path / "whole" / name) for name in sorted(whole)]
    found = datasets.load_dataset(
        "webdataset", data_files=tars, split="train", cache_dir=str(tmp_path / "cache")
    )
    assert [row["prompt"] for row in found["json"]] == TABLE["prompt"].tolist()
    assert np.array_equal(np.asarray(found[0]["png"]), drawn(0)[0])
