"""Run Snakemake and its jobs as forks of one process that has imported the libraries already.

Importing Torch and Diffusers takes three to nine seconds of a core, for each of the dozens of jobs
of a workflow. A fork starts in milliseconds, with the code, arguments, variables, folder and
streams of the command, and ends with its status. A test that is about processes themselves
(signals, kills, an installed wheel) starts the real commands.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from forks import client

HERE = Path(__file__).parent
LIBRARY = HERE.parents[1] / "workflow"
COMMANDS = {"python": f"client.be_python({sys.executable!r})", "snakemake": "client.be_snakemake()"}
"""Isolated and without site-packages, Python starts in 15 ms."""
SCRIPT = f"""#!{sys.executable} -IS
import sys
sys.path.insert(0, {str(HERE)!r})
import client
"""


def environ(**changes: str) -> dict[str, str]:
    """The variables with which `snakemake`, `python` and all that they start run in forks."""
    folder = _serve()
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    ours = {client.SOCKET: str(folder / "socket"), client.PYTHON: str(folder / "python")}
    return os.environ | ours | {"PATH": path, "CUDA_VISIBLE_DEVICES": ""} | changes


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what this process starts itself, by `sys.executable`, run in forks."""
    for name, value in environ().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "executable", str(_serve() / "python"))


@cache
def _serve() -> Path:
    """The folder of the server's commands; started by whichever of pytest's workers comes first."""
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    user = os.getppid() if is_worker else os.getpid()
    folder = Path(tempfile.gettempdir()) / f"distillery-forks-{user}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "socket").exists():
            _start(folder, user)
    return folder


def _start(folder: Path, user: int) -> None:
    for name, call in COMMANDS.items():
        (folder / name).write_text(f"{SCRIPT}{call}\n")
        (folder / name).chmod(0o755)
    paths = [str(LIBRARY), *filter(None, [os.environ.get("PYTHONPATH")])]
    server = subprocess.Popen(
        [sys.executable, str(HERE / "server.py"), str(folder), str(user)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,  # one worker's end is not the server's
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
