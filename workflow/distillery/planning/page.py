"""The plan as one page: what runs, what is already there, what it costs, what is doubtful.

`plan.json` holds it as `page`; `text` and `html` show it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

TIMES = "\N{MULTIPLICATION SIGN}"
COSTS, DOUBTS = "Costs", "Doubts"
NO_DOUBT = "None that can be seen beforehand."


@dataclass(frozen=True)
class Table:
    """A table of a part.

    Attributes:
        title: above it; "" for none.
        columns: their heads.
        rows: a text for each column.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Part:
    """A quarter of the page.

    Attributes:
        facts: names with what is to be said of each.
        tables: after the facts.
        notes: whole sentences, last.
    """

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """All of it.

    Attributes:
        run: its name.
        headline: the run in one sentence.
        parts: in the order in which they are read.
    """

    run: str
    headline: str
    parts: tuple[Part, ...]


def page_of(plan: Mapping[str, Any]) -> Page:
    """The page that a plan.json holds."""
    return TypeAdapter(Page).validate_python(plan["page"])


def without_empty(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of the columns that say something."""
    kept = [
        place for place in range(len(columns)) if any(row[place] not in ("", "-") for row in rows)
    ]
    cells = tuple(tuple(row[place] for place in kept) for row in rows)
    return Table(title, tuple(columns[place] for place in kept), cells)


def in_words(number: float) -> str:
    """A large number for people: 2.57 billion, 262 million; smaller ones in full."""
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.3g} {word}"
    return f"{number:,.0f}"
