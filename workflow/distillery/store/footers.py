"""Two hashes in the footer of a table's Parquet file, read without waiting for pyarrow."""

import os
import re
from pathlib import Path

KEY = "distillery-sha256"
RECIPE = "distillery-recipe"
"""The hash of the recipe that a table tells of, where it carries one."""
HASH = rb"\x18\x40([0-9a-f]{64})"
"""A value of the footer: in Thrift's compact protocol a text's type and length precede it."""
BOTH = re.compile(
    b"(?:" + RECIPE.encode() + HASH + b".{1,8})?" + KEY.encode() + HASH,
    re.DOTALL,
)
"""`store.tables` writes them side by side."""
END_BYTES = 8
"""At the end of the file: the footer's length, and four letters."""


def recipe_in(path: Path) -> str | None:
    """The hash of the recipe that a table tells of; None where there is none, or it tells none."""
    return _read(path)[0]


def seal_in(path: Path) -> str | None:
    """The hash of its bytes that a table carries, which its readers verify; None as above."""
    return _read(path)[1]


def _read(path: Path) -> tuple[str | None, str | None]:
    """Recipe and hash; the last match, since a prompt may look like one."""
    try:
        with path.open("rb") as file:
            file.seek(-END_BYTES, os.SEEK_END)
            length = int.from_bytes(file.read(4), "little")
            file.seek(-END_BYTES - length, os.SEEK_END)
            found = BOTH.findall(file.read(length))
    except OSError:  # none, or far too short
        return None, None
    recipe, digest = (it.decode() or None for it in found[-1]) if found else (None, None)
    return recipe, digest
