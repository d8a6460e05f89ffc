"""What may not be, what is doubtful, what would be better: one type, made where its subject lives.

Errors stop a run; doubts and advice stand on the plan's page. A check yields notes of one subject,
and does not raise, so that a user is told of all faults at once.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Note:
    """One thing to know of a run.

    Attributes:
        kind: an error stops the run; a doubt may spoil it; advice would make it better.
        where: a key of the configuration with its value, or a file.
        cause: what is wrong with it.
        cure: what to do; "" where the cause says it.
        raised: what a library function raised, for the log's traceback.
    """

    kind: Literal["error", "doubt", "advice"]
    where: str
    cause: str
    cure: str = ""
    raised: Exception | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        told = f"{self.where}{self.cause}"
        if not self.cure:
            return told
        return f"{told}{';' if ': ' in told else ':'} {self.cure}"


error = partial(Note, "error")
doubt = partial(Note, "doubt")
advice = partial(Note, "advice")


class RefusedError(ValueError):
    """All that stops a run."""

    def __init__(self, notes: list[Note]) -> None:
        super().__init__("\n  ".join(map(str, notes)))
        self.notes = notes


def refuse(notes: Iterable[Note]) -> None:
    """Raise all errors among notes, at once; what alone was raised below is raised as it was."""
    errors = _errors(notes)
    if not errors:
        return
    raised = next((note.raised for note in errors if note.raised), None)
    if raised and len(errors) == 1:
        raise raised
    raise RefusedError(errors) from raised


@contextmanager
def noting(notes: list[Note]) -> Iterator[None]:
    """Take what the block raises, as functions do whose result is needed, as one more error."""
    try:
        yield
    except RefusedError as refusal:
        notes += refusal.notes
    except (ValueError, FileNotFoundError) as raised:
        notes.append(error("", str(raised), raised=raised))


def gather(
    checks: Iterable[Callable[[Subject], Iterable[Note] | None]], subject: Subject
) -> list[Note]:
    """The notes of all checks; one that raises hides none of the others, and may give nothing."""
    notes: list[Note] = []
    for check in checks:
        try:
            with noting(notes):
                notes.extend(check(subject) or ())
        except Exception:
            if not _errors(notes):  # else what was found may be why
                raise
    return notes


def _errors(notes: Iterable[Note]) -> list[Note]:
    """Each once."""
    return [note for note in dict.fromkeys(notes) if note.kind == "error"]
