"""Which folders are runs to verify, and what is said of files that no manifest lists."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from distillery.config.jobs import freeze
from distillery.images import write_png
from distillery.model_folder import read_metadata
from distillery.planning.first import write_frozen
from distillery.planning.verify import tell
from distillery.report.findings import gather
from distillery.run_folder import RunFolder
from distillery.store.belonging import check_losses
from distillery.store.chunks import ChunkIdentity, write_chunk
from distillery.store.footers import recipe_in
from distillery.store.shards import Manifest
from distillery.store.tables import read_table, write_table
from distillery.typed import COMMAND
from runs import Run

NAMES = ("0.png", "0.safetensors")


def test_a_folder_that_is_no_run_is_refused_with_the_runs_that_are_near(run: Run) -> None:
    for folder in (run.folder.parent, run.folder / "samples" / "teacher"):
        with pytest.raises(ValueError, match=rf"config/ of a run\): give {run.folder}$"):
            tell(RunFolder(folder))
    with pytest.raises(ValueError, match="no run in /nowhere/at/all: give results/NAME"):
        tell(RunFolder(Path("/nowhere/at/all")))


def test_files_that_no_manifest_lists_are_told_apart(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tell(run.files)
    first, *_, last = capsys.readouterr().out.splitlines()
    assert "what is not there at all" in last
    shutil.copytree(run.folder / "samples/teacher/p000", run.folder / "samples/teacher/p009")
    chunk = next((run.folder / "targets").glob("*/chunk-*.safetensors"))
    shutil.copy(chunk, chunk.with_name("chunk-000999.safetensors"))
    assert tell(run.files)
    again, told, _ = capsys.readouterr().out.splitlines()
    assert again == first, "they are not among those that were compared"
    assert told == "and 3 files that no manifest lists were left as they are"


def test_a_whole_file_of_another_run_is_damage_where_a_manifest_lists_another(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own checksums are right, and so are those of the manifest."""
    foreign = {"recipe": "0" * 64, "members": "1" * 64}
    image, latents = (run.folder / "samples/teacher/p001" / name for name in NAMES)
    chunk = next((run.folder / "targets").glob("*/chunk-*.safetensors"))
    write_png(image, np.zeros((8, 8, 3), np.uint8), foreign)
    for path in (latents, chunk):
        write_chunk(path, {"latents": torch.zeros(1)}, ChunkIdentity(**foreign), {})
    assert not tell(run.files)
    *named, _, remove, _ = capsys.readouterr().out.splitlines()
    assert {line.split(": ")[0] for line in named} == {str(it) for it in (image, latents, chunk)}
    assert all("it is whole, but not what its manifests list" in line for line in named)
    assert f"{run.folder}/samples/teacher/manifest.parquet" in remove


def test_commands_carry_the_snakefile_that_was_given(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = next((run.folder / "targets").glob("shard-*.json"))
    shard.write_text("{}")
    for typed, told in (
        (
            "snakemake verify --snakefile 'a b/Snakefile' -c 2",
            "snakemake --snakefile 'a b/Snakefile' ",
        ),
        ("snakemake --cores 2 -s ../Snakefile -n", "snakemake --snakefile ../Snakefile --cores"),
        ("snakemake --cores 2", "snakemake --cores all"),
    ):
        monkeypatch.setenv(COMMAND, typed)
        assert not tell(run.files)
        assert capsys.readouterr().out.splitlines()[-1].strip().startswith(told)


def test_commands_hold_where_the_person_is_who_gave_a_directory(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = next((run.folder / "targets").glob("shard-*.json"))
    shard.write_text("{}")
    monkeypatch.chdir(run.folder.parent)
    here = Path(run.folder.name)
    run_json, relative = here / "config/run.json", here / "targets" / shard.name
    write_frozen(freeze(run.config, "run"), run_json)
    for typed, options in (
        ("snakemake -n --directory 'my runs' verify", "--directory 'my runs'"),
        ("snakemake -d=.. -s ../Snakefile", "--snakefile ../Snakefile --directory .."),
        ("snakemake", ""),
    ):
        monkeypatch.setenv(COMMAND, typed)
        folder = Path.cwd() if options else Path()
        assert not tell(RunFolder(here))
        remove, make = capsys.readouterr().out.splitlines()[-2:]
        assert remove.strip() == f"rm -r {folder / relative}"
        again = f"snakemake {options} --cores all --configfile {folder / run_json}"
        assert make.split() == again.split()
        with pytest.raises(ValueError, match=rf"run `rm -r {folder / relative}` and start"):
            Manifest.read(relative)


def test_losses_of_another_training_are_told_and_refused(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of an earlier release carry no recipe, and are taken as they are."""
    run.train_and_export()
    write_frozen(freeze(run.config, "run"), run.files.config("run"))
    losses = run.files.loss
    assert recipe_in(losses) == read_metadata(run.files.student("trained"))["recipe_hash"]
    table = read_table(losses)
    for recipe in (recipe_in(losses), None):
        write_table(table, losses, recipe)
        check_losses(run.files)
        assert tell(run.files)
    write_table(table, losses, "0" * 64)
    capsys.readouterr()
    assert not tell(run.files)
    first, *_, remove, _ = capsys.readouterr().out.splitlines()
    why = f"{losses}: it is of another training than {run.files.student('trained')}, "
    assert first.startswith(why)
    assert remove.strip() == f"rm -r {losses}"
    with pytest.raises(ValueError, match=rf"^{why}.*: run `rm -r {losses}` and start"):
        gather(run.config, run.files)


def test_a_pipeline_without_its_card_is_told(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Its text may be changed, so it has no hash."""
    pipeline = run.train_and_export()
    card = pipeline / "README.md"
    card.write_text("another")
    assert tell(run.files)
    card.unlink()
    capsys.readouterr()
    assert not tell(run.files)
    out = capsys.readouterr().out
    assert f"{pipeline}: not as they were written: README.md" in out
    assert f"rm -r {pipeline}\n" in out
