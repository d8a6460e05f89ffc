"""Tables with their own checksum: Parquet files with the hash of all their bytes in the footer.

Parquet readers do not look at checksums unless the pages have some, and nothing covers the footer.
"""

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from distillery.files import BLOCK_BYTES, atomic_path, repair_hint
from distillery.store.footers import HASH, KEY, RECIPE

ROWS_AT_ONCE = 1 << 20
"""Rows that are written, and so read, together: as many as pyarrow takes by itself."""
TAIL_BYTES = 1 << 20
"""The footer is looked for in so much of a file's end first."""
BLANK = b"0" * 64
"""Stands in place of the hash while the file is hashed."""
_SEALED = re.compile(KEY.encode() + HASH)


def write_table(table: pd.DataFrame, path: Path, recipe: str | None = None) -> None:
    """Write a table atomically, without its index and with the hash of the file's bytes.

    `recipe` is the hash of the one that the table tells of.
    """
    with atomic_path(path) as temporary:
        seal_table(table, temporary, recipe)


def write_parts(
    parts: Iterable[pd.DataFrame], like: Sequence[Path], path: Path, recipe: str | None = None
) -> None:
    """`write_table` of one table in parts, of which few are held; the same bytes.

    Args:
        like: tables that have the parts' columns; where one has no value in a column, another tells
            its type.

    Raises:
        ValueError: they have columns of different types.
    """
    try:
        types = pa.unify_schemas(map(pq.read_schema, like), promote_options="permissive")
    except pa.ArrowException as error:
        raise ValueError(f"the tables do not fit ({error}): {repair_hint(*like)}") from error
    with atomic_path(path) as temporary:
        _seal((_as_arrow(part, types) for part in parts), temporary, recipe)


def seal_table(table: pd.DataFrame, path: Path, recipe: str | None = None) -> None:
    """`write_table` to a path that is temporary already."""
    _seal(iter([pa.Table.from_pandas(table, preserve_index=False)]), path, recipe)


def _as_arrow(table: pd.DataFrame, types: pa.Schema) -> pa.Table:
    schema = pa.schema([types.field(name) for name in table.columns])
    return pa.Table.from_pandas(table, schema, preserve_index=False)


def _seal(parts: Iterator[pa.Table], path: Path, recipe: str | None) -> None:
    waiting = next(parts)
    with pq.ParquetWriter(path, waiting.schema) as writer:
        for part in parts:
            waiting = pa.concat_tables([waiting, part.replace_schema_metadata(None)])
            while len(waiting) > ROWS_AT_ONCE:
                writer.write_table(waiting.slice(0, ROWS_AT_ONCE).combine_chunks())
                waiting = waiting.slice(ROWS_AT_ONCE)
        writer.write_table(waiting.combine_chunks(), ROWS_AT_ONCE)
        writer.add_key_value_metadata(({RECIPE: recipe} if recipe else {}) | {KEY: BLANK.decode()})
    with path.open("r+b") as file:
        begin, _ = _find_seal(file) or (0, 0)
        assert begin, "pyarrow writes its footer as it is specified"
        digest = _hash(file, begin)
        file.seek(begin)
        file.write(digest)


def read_table(path: Path, columns: Collection[str] = ()) -> pd.DataFrame:
    """Read a table, and verify every byte of one that carries its hash.

    One that carries none was written by another program and is read as it is.

    Args:
        columns: those that are wanted, as far as it has them; none: all.

    Raises:
        ValueError: the file is damaged.
    """
    with path.open("rb") as file:
        seal = _find_seal(file)
        problem = _compare(file, seal) if seal else None
        if problem is None:
            try:
                parquet = pq.ParquetFile(file)
                wanted = [name for name in parquet.schema_arrow.names if name in columns]
                table: pd.DataFrame = parquet.read(wanted if columns else None).to_pandas()
            except (OSError, ValueError, pa.ArrowException) as error:
                problem = str(error).partition("\n")[0]
            else:
                return table
    raise ValueError(f"{path} is damaged ({problem}): {repair_hint(path)}")


def find_problem(path: Path) -> str | None:
    """Why the bytes of a table are not those that `write_table` wrote; None if they are."""
    with path.open("rb") as file:
        seal = _find_seal(file)
        return _compare(file, seal) if seal else "it carries no hash of its bytes"


def _compare(file: BinaryIO, seal: tuple[int, bytes]) -> str | None:
    begin, digest = seal
    return None if _hash(file, begin) == digest else "its bytes do not match its hash"


def _hash(file: BinaryIO, begin: int) -> bytes:
    """The hash of a file's bytes, those of its own hash, which begins there, left blank."""
    digest, at = hashlib.sha256(), 0
    file.seek(0)
    while block := file.read(BLOCK_BYTES):
        first = min(max(begin - at, 0), len(block))
        last = min(max(begin + len(BLANK) - at, 0), len(block))
        blank = BLANK[: last - first]
        digest.update(block[:first] + blank + block[last:] if blank else block)
        at += len(block)
    return digest.hexdigest().encode()


def _find_seal(file: BinaryIO) -> tuple[int, bytes] | None:
    """Where the hash begins, and it: the last match, since a prompt may look like one."""
    size = file.seek(0, os.SEEK_END)
    for tail in (TAIL_BYTES, size):
        file.seek(max(0, size - tail))
        matches = list(_SEALED.finditer(file.read()))
        if matches:
            return max(0, size - tail) + matches[-1].start(1), matches[-1][1]
    return None
