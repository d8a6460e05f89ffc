"""Jobs that somebody watches write to their logs alone, so that nothing tears what is shown."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

WATCHED = "DISTILLERY_WATCHED"
"""Environment variable of jobs whose terminal is drawn on by `handler`; its value is `_here()`."""
LOG_OPTION = "--log-file"
TOLD = "told on the terminal"
"""Line of a watched job's log: why it fails, it has said there itself."""


def watch_jobs() -> None:
    """Let jobs that this process starts on this machine keep to their logs."""
    os.environ[WATCHED] = _here()
    # Loading bars of Transformers and the hub would fill the logs.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def keep_to_log(log: Path | None) -> None:
    """Write what goes to this process's terminal to the job's log, if the job is watched."""
    if log is None or not is_watched():
        return
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    except OSError:
        return
    for number, stream in enumerate((sys.stdout, sys.stderr), 1):
        if stream is not None:  # as where it was closed
            stream.flush()
        os.dup2(file, number)
    if file > 2:
        os.close(file)


def is_watched() -> bool:
    """Whether somebody draws on this process's terminal."""
    return os.environ.get(WATCHED) == _here()


def log_in(command: Sequence[str]) -> Path | None:
    """The log file that a job's command line names."""
    if LOG_OPTION not in command[:-1]:
        return None
    return Path(command[command.index(LOG_OPTION) + 1])


def goes_to(log: Path | None) -> bool:
    """Whether stderr is the log already."""
    try:
        return log is not None and os.path.samestat(os.fstat(sys.stderr.fileno()), log.stat())
    except (OSError, ValueError):
        return False


def _here() -> str:
    """This machine, or the cluster's job that this process is in: what a job there writes to its
    terminal nobody draws on."""
    return os.environ.get("SLURM_JOB_ID", "") or "here"
