"""The plan's page as text, as wide as the terminal; without colours where it is none."""

import os
import sys
from collections.abc import Iterator
from io import StringIO
from typing import TextIO

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from distillery.planning.page import Page, Part, Table

PIPED = 100
"""Columns where neither a terminal nor the variable COLUMNS tells them."""
WIDEST = 120
"""Longer lines are hard to read."""
INDENT = (0, 0, 0, 2)


def print_page(page: Page, file: TextIO | None = None) -> None:
    """Print a page.

    Args:
        file: where; the standard error output if there is none.
    """
    stream = file or sys.stderr
    console = Console(file=stream)
    if not console.is_terminal:
        stream.write(f"{text_of(page, _piped_columns())}\n")
        return
    drawn = StringIO()
    width = min(console.width, WIDEST)
    _print(page, _console(drawn, width, force_terminal=True))
    # In one piece, with blank lines around it: a board below takes the last lines for its own.
    stream.write(f"\n{drawn.getvalue()}\n\n")


def _piped_columns() -> int:
    """Not those of a terminal that this process has besides its pipe."""
    asked = os.environ.get("COLUMNS", "")
    return min(int(asked), WIDEST) if asked.isdigit() and int(asked) else PIPED


def _console(file: TextIO, width: int, force_terminal: bool) -> Console:
    return Console(
        file=file,
        width=width,
        force_terminal=force_terminal,
        highlight=False,
        markup=False,
        emoji=False,
    )


def text_of(page: Page, width: int = PIPED) -> str:
    """A page as plain text of so many columns."""
    stream = StringIO()
    _print(page, _console(stream, width, force_terminal=False))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def _print(page: Page, console: Console) -> None:
    console.print(
        Text(f"run {page.run}", style="bold").append(f": {page.headline}", style="not bold")
    )
    for part in page.parts:
        console.print()
        console.print(Text(part.title, style="bold"))
        for block in _blocks(part):
            console.print(Padding(block, INDENT))


def _blocks(part: Part) -> Iterator[RenderableType]:
    """What a part shows, from above."""
    if part.facts:
        facts = Grid.grid(padding=(0, 2, 0, 0))
        facts.add_column(no_wrap=True, style="dim")
        facts.add_column(overflow="fold")
        for name, text in part.facts:
            facts.add_row(name, text)
        yield facts
    for table in part.tables:
        if table.title:
            yield Text(f"\n{table.title}")
        yield _grid(table)
    for note in part.notes:
        points = Grid.grid(padding=(0, 1, 0, 0))
        points.add_row("-", Text(note, overflow="fold"))
        yield points


def _grid(table: Table) -> Grid:
    """Columns without lines; those of numbers end alike."""
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for place, column in enumerate(table.columns):
        justify = "right" if is_numeric(table, place) else "left"
        grid.add_column(column, justify=justify, overflow="fold", vertical="top")  # type: ignore[arg-type]
    for row in table.rows:
        grid.add_row(*(Text(cell) for cell in row))
    return grid


def is_numeric(table: Table, place: int) -> bool:
    """Whether a column is of numbers, sizes and times, which end alike."""
    cells = [row[place] for row in table.rows if row[place] not in ("", "-", "none")]
    return bool(cells) and place > 0 and all(cell[:1].isdigit() for cell in cells)
