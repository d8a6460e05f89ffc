"""What all pages are made with: templates in which users' text is escaped, and our own files."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = Path(__file__).resolve().parent / "templates"


def page_environment() -> Environment:
    """Templates by their path below `TEMPLATES`; prompts are users' text, so all is escaped."""
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def own_file(name: str) -> Markup:
    """A style sheet or a script of ours, to be put into a page as it is."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))  # noqa: S704 (ours)
