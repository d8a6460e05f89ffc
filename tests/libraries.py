"""A copy of the library, to which a how-to page's own code is added as the page says."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import distillery
import forks
from checkout import REPOSITORY


def code_of(page: str, language: str = "python") -> list[str]:
    """The code of a page of docs/, block by block."""
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.+?)^```$", text, re.M | re.S)


def copy_library(folder: Path) -> Path:
    """The package `distillery` in a folder of its own."""
    library = folder / "library/distillery"
    unwanted = shutil.ignore_patterns("__pycache__", "stages")
    shutil.copytree(Path(distillery.__file__).parent, library, ignore=unwanted)
    (library / "stages").symlink_to(REPOSITORY / "scripts")
    return library


def insert(path: Path, before: str, code: str) -> None:
    """Put code before a line that is there once."""
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{path} has {before!r} {text.count(before)} times"
    path.write_text(text.replace(before, code + before), encoding="utf-8")


def run_with(library: Path, script: str, *arguments: str | Path) -> str:
    """What a script prints last that imports the copy, and the tests' own modules."""
    done = subprocess.run(
        ["python", "-c", script, *map(str, arguments)],
        env=forks.environ(PYTHONPATH=f"{library.parent}{os.pathsep}{REPOSITORY / 'tests'}"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]
