"""What `make` gives to the commands that it starts."""

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def exported(name: str, **environment: str) -> str:
    """The value of a variable in a command of the Makefile."""
    inherited = {key: value for key, value in os.environ.items() if key != "XDG_CACHE_HOME"}
    done = subprocess.run(
        ["make", "--silent", "--eval", f'show: ; @printf %s "$${name}"', "show"],
        cwd=REPOSITORY,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_caches_lie_here_where_the_home_folder_cannot_be_written(tmp_path: Path) -> None:
    """Snakemake ends with a traceback without them; /dev/null holds no folder, for root neither."""
    assert exported("XDG_CACHE_HOME", HOME="/dev/null") == f"{REPOSITORY}/.cache"
    assert exported("XDG_CACHE_HOME", HOME=str(tmp_path)) == f"{tmp_path}/.cache"
    assert exported("XDG_CACHE_HOME", HOME="/dev/null", XDG_CACHE_HOME="/given") == "/given"


@pytest.mark.parametrize(("given", "expected"), [("C", "C.UTF-8"), ("de_DE.UTF-8", "de_DE.UTF-8")])
def test_paths_beyond_ascii_can_be_read(given: str, expected: str) -> None:
    assert exported("LC_ALL", LC_ALL=given) == expected
