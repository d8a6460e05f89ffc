"""Every `snakemake` command of the pages, as a dry run with the shipped configurations."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import forks
from checkout import REPOSITORY, skeleton
from pages import Command, all_commands
from sharing import made_once

pytestmark = pytest.mark.slow
DRY_RUNS_WITHOUT = {"a GPU", "released weights"}
"""Marks of commands that can be dry-run all the same."""
STAND_INS = {"config/mine.yaml": "mine", "config/other.yaml": "other", "mine.yaml": "mine"}
"""Configurations of a reader's own, with the names of their runs."""
COMMANDS = {
    command.words: command
    for command in all_commands()
    if command.words[0] == "snakemake" and command.needs <= DRY_RUNS_WITHOUT
}.values()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with configurations of a reader's own, and runs that are there."""
    return made_once(tmp_path_factory, "pages", _make)


def _make(folder: Path) -> None:
    skeleton(folder, "resources", "config")
    (folder / "config").unlink()
    shutil.copytree(REPOSITORY / "config", folder / "config")
    raw = yaml.safe_load((folder / "config/sdxl-4-steps.yaml").read_text(encoding="utf-8"))
    raw["training"]["phases"].append({"learn": "rounds", "count": 2, "samples": 64000})
    for path, run in STAND_INS.items():
        (folder / path).write_text(yaml.safe_dump(raw | {"run": run}))
    for run in ("demo", *STAND_INS.values()):
        scores = folder / "results" / run / "evaluation/scores.parquet"
        scores.parent.mkdir(parents=True, exist_ok=True)
        scores.touch()


def test_commands_were_found() -> None:
    assert len(COMMANDS) >= 15
    assert any(command.needs for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_snakemake_accepts_it(folder: Path, command: Command) -> None:
    done = subprocess.run(
        ["snakemake", *command.words[1:], "--dry-run", "--quiet"],
        cwd=folder,
        env=forks.environ(CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
