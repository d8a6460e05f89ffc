"""The rows of a prompt file and the lines they begin on: CSV, JSONL, TXT and Parquet."""

import codecs
import csv
import io
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

FORMATS = (".csv", ".txt", ".jsonl", ".parquet")
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),  # before UTF-16, with whose mark it begins
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)

Row = tuple[int, dict[str, Any]]
"""A row and the line that it begins on, counted from 1."""


def read_rows(path: Path) -> tuple[pd.DataFrame, list[int]]:
    """Read a file as it is, unchecked.

    Returns:
        The table, and the line that each row begins on; for Parquet the row's number.

    Raises:
        ValueError: not UTF-8, or not of the format that its name says.
    """
    try:
        match path.suffix.lower():
            case ".csv":
                header, rows = _read_csv(_read_text(path))
            case ".jsonl":
                header, rows = ["prompt"], list(_read_json_lines(_read_text(path)))
            case ".txt":
                header, rows = ["prompt"], list(_read_lines(_read_text(path)))
            case ".parquet":
                table = _read_parquet(path)
                return table, list(range(1, len(table) + 1))
            case suffix:
                raise ValueError(f"prompt files end in {', '.join(FORMATS)}, not in {suffix!r}")
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    columns = list(dict.fromkeys([*header, *(name for _, row in rows for name in row)]))
    # A column that no row has is missing, as the caller will say; an empty file has none to check.
    present = [name for name in columns if not rows or any(name in row for _, row in rows)]
    return pd.DataFrame([row for _, row in rows], columns=present), [line for line, _ in rows]


def _read_text(path: Path) -> str:
    """The file's text; raises ValueError with the command that makes it UTF-8."""
    content = path.read_bytes()
    encoding = find_wide_encoding(content)
    command = f"-t UTF-8 {shlex.quote(str(path))} > utf8{path.suffix}"
    if encoding is not None:
        raise ValueError(f"it is {encoding}: save it as UTF-8: iconv -f {encoding} {command}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"it is not UTF-8 (byte {content[error.start]:#04x}): save it as UTF-8, for example "
            f"with: iconv -f latin1 {command}"
        ) from error


def find_wide_encoding(content: bytes) -> str | None:
    """The encoding of a file with two or four bytes per character, as iconv names it; or None.

    Without a byte order mark it shows in the zero bytes of its ASCII characters. UTF-8 with zeros
    here and there is left to the check of the rows.
    """
    for mark, name in BYTE_ORDER_MARKS:
        if content.startswith(mark):
            return name
    zeros = [content[place::4].count(0) for place in range(4)]
    if not any(zeros) or (4 * sum(zeros) < len(content) and _is_utf8(content)):
        return None
    quarter = len(content) // 4
    if zeros[3] >= quarter and 2 * zeros[2] > quarter:
        return "UTF-32LE"
    if zeros[0] >= quarter and 2 * zeros[1] > quarter:
        return "UTF-32BE"
    return "UTF-16LE" if zeros[1] + zeros[3] > zeros[0] + zeros[2] else "UTF-16BE"


def _is_utf8(content: bytes) -> bool:
    """Whether all of it can be decoded."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read_csv(text: str) -> tuple[list[str], list[Row]]:
    """Header and rows. Every row has as many fields as the header, so no comma shifts a prompt."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header = next(reader, None)
    if header is None:
        raise ValueError("it is empty; write a first line `prompt_id,prompt`, then the prompts")
    _check_names(header)
    rows, line = [], reader.line_num + 1
    while (fields := _next_fields(reader, line)) is not None:
        if fields and len(fields) != len(header):
            raise ValueError(
                f"line {line} has {len(fields)} fields, the first line has {len(header)}: put "
                "a prompt with a comma in double quotes"
            )
        if fields:
            rows.append((line, dict(zip(header, fields, strict=True))))
        line = reader.line_num + 1
    return header, rows


def _next_fields(reader: Iterator[list[str]], line: int) -> list[str] | None:
    """The row that begins on a line; None at the end."""
    try:
        return next(reader, None)
    except csv.Error as error:
        raise ValueError(
            f"the row on line {line} ends wrongly ({error}): a double quote that opens a field "
            'must close it, and one within it is written twice, ""'
        ) from error


def _check_names(names: list[str]) -> None:
    """Raise ValueError for two columns of one name, or of none."""
    if "" in names:
        raise ValueError(f"column {names.index('') + 1} has no name in the first line: give it one")
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"two columns are named {', '.join(sorted(twice))}")


def _read_json_lines(text: str) -> Iterator[Row]:
    """One JSON object a line; empty lines are left out."""
    for number, line in _lines(text):
        try:
            row = json.loads(line, object_pairs_hook=_unique_keys)
            json.dumps(row, ensure_ascii=False).encode()
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} is not JSON ({error})") from error
        except UnicodeEncodeError as error:
            raise ValueError(
                f"line {number} has half of a character, {error.object[error.start]!r}, as a text "
                "has that was cut there: remove it, or write the whole character"
            ) from error
        except RecursionError as error:
            raise ValueError(
                f"line {number} is nested too deep: write texts and numbers beside the prompt"
            ) from error
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is no JSON object: write {{...}} on each line")
        yield number, row


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; raises ValueError for a key that stands twice, of which JSON keeps one."""
    json_object = dict(pairs)
    if len(json_object) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} stands twice: remove one")
    return json_object


def _read_lines(text: str) -> Iterator[Row]:
    """One prompt per line; empty lines are left out."""
    for number, line in _lines(text):
        yield number, {"prompt": line.strip()}


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, with their numbers, as editors count them."""
    # Not str.splitlines: that also breaks at U+2028 and form feeds inside a prompt.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


def _read_parquet(path: Path) -> pd.DataFrame:
    """The table, whose index is a column of it where it has a name."""
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ValueError(
            f"it is no whole Parquet file ({str(error).splitlines()[0]:.200}): write it again"
        ) from error
    _check_names([str(name) for name in table.columns])
    is_named = any(name is not None for name in table.index.names)
    return table.reset_index() if is_named else table
