"""A run whose samples lie in tars: what reads samples sees what it sees in a run of files."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from distillery.config.run import Config
from distillery.measures.manifests import read_samples
from distillery.planning.overlooked import on_tars
from distillery.planning.verify import tell
from distillery.report import gallery
from distillery.store.lacking import lacking_images
from distillery.store.tables import read_table
from runs import Run, fresh

TARS = ["images-00000.tar", "images-00001.tar"]


def in_tars(config: Config, **changes: object) -> Config:
    changes = {"store": "shards", "images_per_shard": 3, **changes}
    return config.model_copy(update={"samples": config.samples.model_copy(update=changes)})


@pytest.fixture(scope="module")
def of_tars(finished: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Five images in batches of two, of which two are in each tar."""
    run = fresh(finished, tmp_path_factory.mktemp("tars"))
    run = replace(run, config=in_tars(run.config))
    run.all_samples(2)
    return run


@pytest.fixture
def run(of_tars: Run, tmp_path: Path) -> Run:
    import shutil

    shutil.copytree(of_tars.folder, tmp_path / "results")
    return replace(of_tars, folder=tmp_path / "results")


def test_its_images_and_latents_are_those_of_files(finished: Run, of_tars: Run) -> None:
    """By the same hashes: scores depend on nothing else."""
    samples = [read_samples("teacher", it.files.samples("teacher")) for it in (finished, of_tars)]
    files, tars = samples
    assert sorted(path.name for path in tars.folder.glob("images-*")) == TARS
    assert not list(tars.folder.glob("*/"))
    assert tars.digest == files.digest
    for row in range(len(files.table)):
        assert np.array_equal(files.read_pixels(row), tars.read_pixels(row))
        assert np.array_equal(files.read_latents(row), tars.read_latents(row))
    assert list(tars.table["style"]) == list(files.table["style"])


def test_damage_in_a_tar_is_told_and_mended_without_the_rest(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tell(run.files), capsys.readouterr().out
    manifest = run.files.samples("teacher")
    row = read_table(manifest).iloc[2]
    tar = manifest.with_name(row["file"].partition("/")[0])
    before = tar.read_bytes()
    content = bytearray(before)
    content[row["file_begin"] + 100] ^= 1
    tar.write_bytes(content)
    capsys.readouterr()
    assert not tell(run.files)
    told, *_, remove, _ = capsys.readouterr().out.splitlines()
    lost = r"2 of 8 files in it are not what its table lists, such as p002/0\.png"
    assert re.match(rf"{tar}: {lost}", told), "both of a sample are made again"
    assert str(manifest) in remove
    assert "shard-0-of-2.parquet" in remove
    assert str(tar) not in remove, "the other samples stay"
    with pytest.raises(ValueError, match=r"p002/0\.png of 'teacher' is not what .*manifest"):
        read_samples("teacher", manifest).read_pixels(2)
    run.all_samples(2)
    assert tar.read_bytes() == before
    assert tell(run.files)


def test_a_tar_that_is_gone_is_missed(run: Run) -> None:
    folder = run.files.samples("teacher").parent
    (folder / TARS[1]).unlink()
    lacking = lacking_images(folder)
    assert lacking.files == (folder / TARS[1],)
    assert {path.name for path in lacking.manifests} == {"manifest.parquet", "shard-1-of-2.parquet"}


def test_another_store_is_refused_with_the_command_that_keeps_the_images(run: Run) -> None:
    assert not list(on_tars(run.config, run.files))
    for changes in ({"store": "files"}, {"images_per_shard": 5}):
        (note,) = on_tars(in_tars(run.config, **changes), run.files)
        assert 'do tar -xf "$tar" -C "$(dirname "$tar")" && rm "$tar"; done' in str(note)


def test_the_gallery_has_copies_of_the_best_and_the_worst(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, output = run.files.samples("teacher"), run.folder / "gallery"
    table = read_table(manifest)
    scores = table[["prompt_id", "index", "model"]].assign(clip_score=[0.3, 0.9, 0.5, 0.1, 0.4])
    monkeypatch.setattr(gallery, "MOST_OF_TARS", 4)
    samples = read_samples("teacher", manifest)
    assert gallery.choose([samples], scores) == [0, 1, 2, 3], "2 and 0 of the others"
    gallery.make_gallery([manifest], None, output)
    page = (output / "index.html").read_text()
    shown = re.findall(r'<img loading="lazy" src="([^"]+)"', page)
    assert shown == [f"images/teacher/p00{row}/0.png" for row in range(4)]
    assert (output / shown[2]).read_bytes() == samples.read_bytes(2)
    assert "1 more are not shown" in page
