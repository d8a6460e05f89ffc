"""The error that ended a job, found in a log that launchers and several processes write to.

The process that fails first writes its traceback first. The others follow when they lose the
connection to it, and torchrun ends the log with a traceback of its own and a banner.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

PREFIX = re.compile(r"(\[rank\d+\]: |\d+: )?(.*)")
"""Which process wrote a line: PyTorch's prefix, or that of `srun --label`."""
TRACEBACK = "Traceback"
CHAINS = ("During handling of the above exception", "The above exception was the direct cause")
EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: .*)?")
LAUNCHERS = "torch.distributed.elastic."
"""How torchrun's own exceptions begin; they say that a process has failed, never why."""
SIGNALLED = re.compile(rf"{re.escape(LAUNCHERS)}[\w.]*SignalException\b")
"""The one that it ends with where a signal came; its processes may have been done."""
ROOT_CAUSE = "Root Cause"
WITHOUT_WORDS = ("(SIGKILL)", "(SIGSEGV)", "(SIGBUS)")
"""Signals that end a process before it can write a traceback; the others lose the connection."""
FACT = re.compile(r" *(rank|exitcode|traceback) +: (.*)")


def first_error(lines: Sequence[str]) -> str | None:
    """The exception of the process that failed first, as "RuntimeError: why".

    Without a traceback of a process, or where that one was killed and could write none, it is what
    torchrun says of the process that ended first.

    Args:
        lines: of the log, without empty ones.
    """
    cause = _root_cause(lines)
    if cause is not None and any(signal in cause for signal in WITHOUT_WORDS):
        return cause
    pairs = [_split(line) for line in lines]
    for number, (_, text) in enumerate(pairs):
        if text.startswith(TRACEBACK):
            error = _last_of_chain(pairs[number:])
            if error is not None and not error.startswith(LAUNCHERS):
                return error
    return cause


def _split(line: str) -> tuple[str, str]:
    """A line's prefix, which may be empty, and the rest."""
    match = PREFIX.fullmatch(line)
    assert match is not None, "it matches everything"
    return match[1] or "", match[2]


def _last_of_chain(pairs: Sequence[tuple[str, str]]) -> str | None:
    """The exception that a traceback ends with, of chained ones the last; None if it is torn."""
    writer, _ = pairs[0]
    own = [text for prefix, text in pairs if prefix == writer]
    for text, following in pairwise([*own[1:], ""]):
        is_within = text.startswith((" ", TRACEBACK, *CHAINS)) or following.startswith(CHAINS)
        if not is_within:
            return text if EXCEPTION.fullmatch(text) else None
    return None


def _root_cause(lines: Sequence[str]) -> str | None:
    """What torchrun's banner says of the process that ended first; None where there is none."""
    begins = [number for number, line in enumerate(lines) if line.startswith(ROOT_CAUSE)]
    if not begins:
        return None
    matches = filter(None, map(FACT.match, lines[begins[-1] :]))
    facts = {match[1]: match[2].strip() for match in matches}
    rank, exit_code = facts.get("rank", "?"), facts.get("exitcode", "?")
    why = facts.get("traceback", "")
    signal = f": {why}" if why.startswith("Signal ") else ""
    return f"rank {rank.split(' ')[0]} ended with status {exit_code.split(' ')[0]}{signal}"
