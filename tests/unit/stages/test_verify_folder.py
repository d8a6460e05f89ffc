"""Which folders are runs to verify, and what is said of files that no manifest lists."""

import shutil
from pathlib import Path

import pytest

from distillery.planning.verify import tell
from distillery.run_folder import RunFolder
from distillery.telemetry import COMMAND
from runs import Run


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
