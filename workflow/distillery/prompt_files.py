"""The rows of a prompt file and the lines they begin on: CSV, TSV, JSONL, TXT and Parquet."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from distillery.encodings import decode

TABLES = (".csv", ".tsv")
FORMATS = (".csv", ".tsv", ".txt", ".jsonl", ".parquet")
TAB = "\t"
SEPARATORS = {",": "comma", ";": "semicolon", TAB: "tab"}
"""What may separate the columns of a table without a line that names it, as `sep=|`."""
LINE_END = re.compile(r"\r*\n|\r")
"""Of Unix, Windows (also where it was converted twice) and old Macs, as editors count them. Not
those of str.splitlines, which also breaks at U+2028 within a prompt."""
BLANK_LINES = re.compile(r"(?:[^\S\r\n]*(?:\r\n|\r|\n))*")
NAMED_SEPARATOR = re.compile(r'"?sep=([^\r\n"])"?[,;\t]*(?:\r\n|\r|\n|\Z)', re.IGNORECASE)
"""The line by which spreadsheets name the separator; it stands above the header."""
BLANKS = "".join(filter(str.isspace, map(chr, range(0x20, 0x3001)))).replace("\x85", "") + "\t"
"""What is no part of a line's prompt at its ends; control characters stay, and are refused."""

Row = tuple[int, dict[str, Any]]
"""A row and the line that it begins on, counted from 1."""

Found = TypeVar("Found")


@dataclass(frozen=True)
class Rows:
    """What a prompt file holds, unchecked.

    Attributes:
        lines: that each row begins on, counted from 1; for Parquet the row's number.
        first: the line on which rows may begin, behind a header.
    """

    table: pd.DataFrame
    lines: list[int]
    first: int = 1


def read_rows(path: Path) -> Rows:
    """Read a file as it is, unchecked.

    Raises:
        ValueError: not UTF-8, or not of the format that its name says.
    """
    first = 1
    try:
        match path.suffix.lower():
            case ".csv" | ".tsv":
                layout = _find_table(_read_text(path), path)
                first = layout.line + 1
                header, rows = _read_table(layout)
            case ".jsonl":
                header, rows = ["prompt"], list(_read_json_lines(_read_text(path)))
            case ".txt":
                header, rows = ["prompt"], list(_read_lines(_read_text(path)))
            case ".parquet":
                table = _read_parquet(path)
                return Rows(table, list(range(1, len(table) + 1)))
            case suffix:
                raise ValueError(f"prompt files end in {', '.join(FORMATS)}, not in {suffix!r}")
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    columns = list(dict.fromkeys([*header, *(name for _, row in rows for name in row)]))
    # A column that no row has is missing, as the caller will say; an empty file has none to check.
    present = [name for name in columns if not rows or any(name in row for _, row in rows)]
    table = pd.DataFrame([row for _, row in rows], columns=present)
    return Rows(table, [line for line, _ in rows], first)


def separator_of(path: Path) -> str | None:
    """What separates the columns of a table that can be read; None of other files."""
    if path.suffix.lower() not in TABLES:
        return None
    return _find_table(_read_text(path), path).separator


def name_separator(separator: str) -> str:
    """A separator as a message names it."""
    return SEPARATORS.get(separator, repr(separator))


def _read_text(path: Path) -> str:
    """The file's text; raises ValueError with the command that makes it UTF-8."""
    return decode(path.read_bytes(), path)


@dataclass(frozen=True)
class _Layout:
    """A table in a text.

    Attributes:
        text: from its header on.
        line: of its header, counted from 1.
    """

    separator: str
    text: str
    line: int


def _find_table(text: str, path: Path) -> _Layout:
    """Where a table begins, and what separates its columns; see `_separator_of_header`."""
    begin = BLANK_LINES.match(text).end()  # type: ignore[union-attr]
    named = NAMED_SEPARATOR.match(text, begin)
    if named:
        begin = BLANK_LINES.match(text, named.end()).end()  # type: ignore[union-attr]
    if begin == len(text):
        raise ValueError("it is empty; write a first line `prompt_id,prompt`, then the prompts")
    line = len(re.findall(r"\r\n|\r|\n", text[:begin])) + 1
    table = text[begin:]
    if named:
        return _Layout(named[1], table, line)
    is_tabbed = path.suffix.lower() == ".tsv"
    return _Layout(TAB if is_tabbed else _separator_of_header(table), table, line)


def _separator_of_header(text: str) -> str:
    """What separates the columns of a table: the one by which its first line has a column prompt.

    It is the comma wherever that can be, whatever else the names hold.

    Raises ValueError where it could be one of two others.
    """
    names = {separator: _header(text, separator) for separator in SEPARATORS}
    if "prompt" in names[","]:
        return ","
    several = [separator for separator in SEPARATORS if len(names[separator]) > 1]
    exact = [separator for separator in several if "prompt" in names[separator]]
    if exact and len(several) > 1:
        parted = " or ".join(SEPARATORS[separator] for separator in several)
        raise ValueError(
            f"the first line has columns by {parted}: write a line sep={exact[0]} above it, or use "
            "one of them alone"
        )
    like = [one for one in several if "prompt" in map(_letters, names[one])]
    return (exact or like or (several if len(several) == 1 else [","]))[0]


def _letters(name: str) -> str:
    return name.strip().casefold()


def _header(text: str, separator: str) -> list[str]:
    """The names in the first line; none where it cannot be read so."""
    try:
        return next(_reader(text, separator), [])
    except csv.Error:
        return []


def _reader(text: str, separator: str) -> Any:
    """Python's reader, whose type is private."""
    return csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)


@contextmanager
def _fields_of_any_length(text: str) -> Iterator[None]:
    """Let a field be as long as a whole text; by default it may have 131,072 characters."""
    before = csv.field_size_limit(max(len(text), csv.field_size_limit()))
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _read_table(layout: _Layout) -> tuple[list[str], list[Row]]:
    """Header and rows. Every row has as many fields as the header, so no comma shifts a prompt."""
    with _fields_of_any_length(layout.text):
        reader, above = _reader(layout.text, layout.separator), layout.line - 1
        header = _next_fields(reader, layout.line) or []
        _check_names(header)
        rows, line = [], reader.line_num + above + 1
        while (fields := _next_fields(reader, line)) is not None:
            # Rows without a text are blank ones of a spreadsheet.
            if fields and (len(fields) == 1 or any(map(str.strip, fields))):
                _check_number(fields, header, line, layout.separator)
                rows.append((line, dict(zip(header, fields, strict=True))))
            line = reader.line_num + above + 1
    return header, rows


def _check_number(fields: list[str], header: list[str], line: int, separator: str) -> None:
    """Raise ValueError for a row of more or fewer fields than there are columns."""
    if len(fields) != len(header):
        raise ValueError(
            f"line {line} has {len(fields)} fields, the first line has {len(header)}: put "
            f"a prompt with a {name_separator(separator)} in double quotes"
        )


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
        raise ValueError(
            f"column {names.index('') + 1} has no name in the first line: give it one, or remove it"
        )
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
    """One prompt per line; empty lines are left out.

    Raises ValueError for a table, whose header would be a prompt.
    """
    for separator in SEPARATORS:
        if {"prompt_id", "prompt"} <= set(_header(text, separator)):
            raise ValueError(
                "its first line names columns, and a .txt file has one prompt per line: name it "
                f".{'tsv' if separator == TAB else 'csv'}"
            )
    for number, line in _lines(text):
        yield number, {"prompt": line.strip(BLANKS)}


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, with their numbers, as editors count them."""
    for number, line in enumerate(LINE_END.split(text), start=1):
        if line.strip(BLANKS):
            yield number, line


def _read_parquet(path: Path) -> pd.DataFrame:
    """The table, whose index is a column of it where it has a name."""
    _check_names(_whole(pq.read_schema, path).names)
    table = _whole(pd.read_parquet, path)
    _check_names([str(name) for name in table.columns])
    is_named = any(name is not None for name in table.index.names)
    return table.reset_index() if is_named else table


def _whole(read: Callable[[Path], Found], path: Path) -> Found:
    """What is read of a Parquet file."""
    try:
        return read(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ValueError(
            f"it is no whole Parquet file ({str(error).splitlines()[0]:.200}): write it again"
        ) from error
