"""The plan's page as HTML, beside plan.json: one file that needs no network, as the report."""

import re
from dataclasses import dataclass
from pathlib import Path

from jinja2 import FileSystemLoader

from distillery.planning.page import COSTS, DOUBTS, NO_DOUBT, Page, Part
from distillery.planning.text import is_numeric
from distillery.report.html import ICON, own_file, page_environment

TEMPLATES = Path(__file__).resolve().parent / "templates"
IN_TILES = {"time": "Time", "disk": "Disk", "training": "Memory of the training"}
"""Facts of the costs that are seen first."""
CALLS = "network calls"
"""A column of the costs' table, whose last row is the sum."""


@dataclass(frozen=True)
class Tile:
    """A number that decides whether to start; the detail is what else the page says of it."""

    name: str
    value: str
    detail: str = ""


def html_of(page: Page) -> str:
    """A page as HTML; prompts and paths in it are users' text, so all is escaped."""
    environment = page_environment().overlay(loader=FileSystemLoader(TEMPLATES))
    return environment.get_template("plan.html.j2").render(
        page=page,
        style=own_file("report.css"),
        icon=ICON,
        is_numeric=is_numeric,
        tiles=tiles_of(page),
        shares=shares_of(page),
    )


def tiles_of(page: Page) -> list[Tile]:
    """Time, work, disk, memory and doubts, as far as the page tells them."""
    costs, doubts = _part(page, COSTS), _part(page, DOUBTS)
    tiles = []
    for name, text in costs.facts:
        if name in IN_TILES:
            value, _, detail = re.sub("[,;] ", "\n", text, count=1).partition("\n")
            tiles.append(Tile(IN_TILES[name], value, detail))
    calls = _calls(page)
    if calls:
        tiles.insert(1, Tile("Network calls", f"{calls[-1][1]:,}", "of teacher and student"))
    noted = [note for note in doubts.notes if note != NO_DOUBT]
    return [*tiles, Tile("Doubts", str(len(noted) or "none"), noted[0] if noted else "")]


def shares_of(page: Page) -> list[tuple[str, float]]:
    """Stages with their parts of all network calls, in per cent; empty where none are told."""
    *stages, total = _calls(page) or [("", 0)]
    return [(name, 100 * number / total[1]) for name, number in stages] if total[1] else []


def _calls(page: Page) -> list[tuple[str, int]]:
    """The stages' network calls; the last is their sum."""
    for table in _part(page, COSTS).tables:
        if CALLS in table.columns:
            place = table.columns.index(CALLS)
            cells = [(row[0], row[place].replace(",", "")) for row in table.rows]
            return [(name, int(cell)) for name, cell in cells if cell.isdigit()]
    return []


def _part(page: Page, title: str) -> Part:
    """A quarter of the page; an empty one where there is none."""
    return next((it for it in page.parts if it.title == title), Part(title))
