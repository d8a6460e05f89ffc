"""Tables with their own checksum: Parquet files with the hash of all their bytes in the footer.

Parquet readers do not look at checksums unless the pages have some, and nothing covers the footer.
"""

import hashlib
import re
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from distillery.files import atomic_path, repair_hint
from distillery.store.footers import HASH, KEY, RECIPE

BLANK = b"0" * 64
"""Stands in place of the hash while the file is hashed."""
_SEALED = re.compile(KEY.encode() + HASH)


def write_table(table: pd.DataFrame, path: Path, recipe: str | None = None) -> None:
    """Write a table atomically, without its index and with the hash of the file's bytes.

    `recipe` is the hash of the one that the table tells of.
    """
    with atomic_path(path) as temporary:
        seal_table(table, temporary, recipe)


def seal_table(table: pd.DataFrame, path: Path, recipe: str | None = None) -> None:
    """`write_table` to a path that is temporary already."""
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    with pq.ParquetWriter(path, arrow.schema) as writer:
        writer.write_table(arrow)
        writer.add_key_value_metadata(({RECIPE: recipe} if recipe else {}) | {KEY: BLANK.decode()})
    content = path.read_bytes()
    begin, end = _find_seal(content) or (0, 0)
    assert end, "pyarrow writes its footer as it is specified"
    digest = hashlib.sha256(content).hexdigest().encode()
    path.write_bytes(content[:begin] + digest + content[end:])


def read_table(path: Path) -> pd.DataFrame:
    """Read a table, and verify every byte of one that carries its hash.

    One that carries none was written by another program and is read as it is.

    Raises:
        ValueError: the file is damaged.
    """
    content = path.read_bytes()
    problem = find_problem(content) if _find_seal(content) else None
    if problem is None:
        try:
            table: pd.DataFrame = pq.read_table(pa.BufferReader(content)).to_pandas()
        except (OSError, ValueError, pa.ArrowException) as error:
            problem = str(error).partition("\n")[0]
        else:
            return table
    raise ValueError(f"{path} is damaged ({problem}): {repair_hint(path)}")


def find_problem(content: bytes) -> str | None:
    """Why the bytes of a table are not those that `write_table` wrote; None if they are."""
    seal = _find_seal(content)
    if seal is None:
        return "it carries no hash of its bytes"
    begin, end = seal
    digest = hashlib.sha256(content[:begin] + BLANK + content[end:]).hexdigest().encode()
    return None if digest == content[begin:end] else "its bytes do not match its hash"


def _find_seal(content: bytes) -> tuple[int, int] | None:
    """Where the hash begins and ends: the last match, since a prompt may look like one."""
    matches = list(_SEALED.finditer(content))
    return matches[-1].span(1) if matches else None
