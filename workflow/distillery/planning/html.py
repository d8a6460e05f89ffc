"""The plan's page as HTML, beside plan.json: one file that needs no network, as the report."""

from pathlib import Path

from jinja2 import FileSystemLoader

from distillery.planning.page import Page
from distillery.planning.text import is_numeric
from distillery.report.html import own_file, page_environment

TEMPLATES = Path(__file__).resolve().parent / "templates"


def html_of(page: Page) -> str:
    """A page as HTML; prompts and paths in it are users' text, so all is escaped."""
    environment = page_environment().overlay(loader=FileSystemLoader(TEMPLATES))
    template = environment.get_template("plan.html.j2")
    return template.render(page=page, style=own_file("report.css"), is_numeric=is_numeric)
