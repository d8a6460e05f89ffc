"""The last line of a page, which no reader sees: a hash of the results that it was made of."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from distillery.files import hash_file, hash_json
from distillery.run_folder import RunFolder
from distillery.store.footers import seal_in

MARK = re.compile(r"<!-- made of ([0-9a-f]{64}) -->\s*$")
MARK_BYTES = 100


def sources_of_report(run: RunFolder, models: Iterable[str]) -> list[Path]:
    """What the report's claims are made of."""
    return [run.quality, run.scores, run.loss, *(run.samples(model) for model in models)]


def hash_made_of(sources: Iterable[Path]) -> str | None:
    """Of files of a run, wherever it lies; None where one of them is gone."""
    paths = list(sources)
    if not all(path.is_file() for path in paths):
        return None
    return hash_json(
        {f"{path.parent.name}/{path.name}": seal_in(path) or hash_file(path) for path in paths}
    )


def mark_of(made_of: str | None) -> str:
    """The line of a page with such a hash."""
    return f"<!-- made of {made_of} -->\n" if made_of else ""


def mark_in(page: Path) -> str | None:
    """The hash that a page ends with; None where there is none, as in those of earlier releases."""
    try:
        with page.open("rb") as file:
            file.seek(-min(MARK_BYTES, page.stat().st_size), os.SEEK_END)
            found = MARK.search(file.read().decode(errors="replace"))
    except OSError:
        return None
    return found[1] if found else None


def why_not_made_of(found: str | None, wanted: str | None) -> str:
    """Why a page is of another run or of earlier results; "" where it is not, or nothing tells."""
    is_other = None not in (found, wanted) and found != wanted
    return "it was made of other results than those that are there" * is_other
