"""Things that several tests read and that take seconds to make: made once, also by two workers.

pytest-xdist's workers are processes with session fixtures of their own; what they share lies in
the folder that holds all their temporary folders.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def no_fsync(_: object) -> None:
    """Stand in for `os.fsync`: a disk takes milliseconds for each of thousands, and keeps what no
    power failure takes."""


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name`, filled by `make` for whoever comes first; the others wait for it.

    Tests must not write into it: they copy it (`shutil.copytree` keeps times, as Snakemake needs).
    """
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, made = shared / "shared" / name, shared / "shared" / f"{name}.made"
    folder.parent.mkdir(exist_ok=True)
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            folder.mkdir()  # that another worker has failed here is an error of this one too
            make(folder)
            made.touch()
    return folder
