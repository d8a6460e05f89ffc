"""Prompt files to one checked table: CSV, Parquet, JSONL with named columns, or a line a prompt.

A bad row is named with its line, and nothing is generated until all are good.
"""

import csv
import io
import json
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from distillery.identity import check_prompt_id

REQUIRED = ("prompt_id", "prompt")
RESERVED = (
    "index", "noise_seed", "file", "sha256", "latents_file", "latents_sha256", "model", "steps",
    "guidance_scale", "network_calls", "width", "height", "is_black", "recipe", "shard",
)  # fmt: skip
"""Columns of the samples' manifest that are ours; a prompt file's own stand beside them."""
RESERVED_FOR_PAIRS = ("guidance_scale_2",)
"""Another of them, where a teacher of two networks is given two scales."""
RESERVED_BY_DATASET = ("file_name", "device", "seconds")
"""Columns that a data set's tables have beside those."""
FORMATS = (".csv", ".txt", ".jsonl", ".parquet")
MAX_PROBLEMS_SHOWN = 20

Row = tuple[int, dict[str, Any]]
"""A row and the line that it begins on, counted from 1."""


def read_prompts(path: Path) -> pd.DataFrame:
    """Read and check a prompt file.

    Args:
        path: .csv, .jsonl or .parquet with columns `prompt_id` and `prompt` (more columns are
            kept), or .txt with one prompt a line, whose ids are p00000, p00001, ...

    Returns:
        One row a prompt in the file's order; `prompt_id` and `prompt` are strings and come first.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not UTF-8, empty, a column missing or of several types, or bad rows, all named
            with their lines.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"the prompt file {path} does not exist: create it, or correct the path under "
            "`prompts` in the configuration"
        )
    table, lines = _read(path)
    missing = [column for column in REQUIRED if column not in table.columns]
    if missing:
        raise ValueError(
            f"{path} has no column {' and no column '.join(missing)} (it has: "
            f"{', '.join(map(str, table.columns)) or 'none'}): name them in the first line"
        )
    ours = (*RESERVED, *RESERVED_FOR_PAIRS, *RESERVED_BY_DATASET)
    taken = [column for column in table.columns if column in ours]
    if taken:
        raise ValueError(
            f"{path} has columns named {', '.join(taken)}, which the tables of samples use "
            "themselves: rename them"
        )
    if table.empty:
        raise ValueError(f"{path} holds no prompts: write at least one")
    _check_rows(table, lines, path)
    _check_types(table, lines, path)
    others = [column for column in table.columns if column not in REQUIRED]
    return table[[*REQUIRED, *others]].reset_index(drop=True)


def _read(path: Path) -> tuple[pd.DataFrame, list[int]]:
    """The raw table, and the line that each row begins on (for Parquet the row's number)."""
    try:
        match path.suffix.lower():
            case ".csv":
                header, rows = _read_csv(path)
            case ".jsonl":
                header, rows = [*REQUIRED], list(_read_json_lines(path))
            case ".txt":
                header, rows = [*REQUIRED], list(_read_lines(path))
            case ".parquet":
                table = pd.read_parquet(path)
                return table, list(range(1, len(table) + 1))
            case suffix:
                raise ValueError(f"prompt files end in {', '.join(FORMATS)}, not in {suffix!r}")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 (byte {error.object[error.start]:#04x}): save it as UTF-8, for "
            f"example with: iconv -f latin1 -t utf-8 {path}"
        ) from error
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    columns = list(dict.fromkeys([*header, *(name for _, row in rows for name in row)]))
    # A column that no row has is missing, as the caller will say; an empty file has none to check.
    given = [name for name in columns if not rows or any(name in row for _, row in rows)]
    return pd.DataFrame([row for _, row in rows], columns=given), [line for line, _ in rows]


def _read_csv(path: Path) -> tuple[list[str], list[Row]]:
    """Header and rows. Every row has as many fields as the header, so no comma shifts a prompt."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        header = next(reader, None)
        if header is None:
            raise ValueError("it is empty; write a first line `prompt_id,prompt`, then the prompts")
        twice = {name for name in header if header.count(name) > 1}
        if twice:
            raise ValueError(f"two columns are named {', '.join(sorted(twice))}")
        rows, line = [], reader.line_num + 1
        for fields in reader:
            if fields and len(fields) != len(header):
                raise ValueError(
                    f"line {line} has {len(fields)} fields, the first line has {len(header)}: put "
                    "a prompt with a comma in double quotes"
                )
            if fields:
                rows.append((line, dict(zip(header, fields, strict=True))))
            line = reader.line_num + 1
    return header, rows


def _read_json_lines(path: Path) -> Iterator[Row]:
    """One JSON object a line; empty lines are left out."""
    for number, line in _lines(path):
        try:
            row = json.loads(line)
            json.dumps(row, ensure_ascii=False).encode()
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} is not JSON ({error})") from error
        except UnicodeEncodeError as error:
            raise ValueError(
                f"line {number} has half of a character, {error.object[error.start]!r}, as a text "
                "has that was cut there: remove it, or write the whole character"
            ) from error
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is no JSON object: write {{...}} on each line")
        yield number, row


def _read_lines(path: Path) -> Iterator[Row]:
    """One prompt a line; empty lines are left out and do not move the ids of the others."""
    for number, line in _lines(path):
        yield number, {"prompt_id": f"p{number - 1:05d}", "prompt": line.strip()}


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, with their numbers, as editors count them."""
    # Not str.splitlines: that also breaks at U+2028 and form feeds inside a prompt.
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        if line.strip():
            yield number, line


def _check_rows(table: pd.DataFrame, lines: list[int], path: Path) -> None:
    """Raise one ValueError that names every bad row (the first twenty of them)."""
    unit = "row" if path.suffix.lower() == ".parquet" else "line"
    problems: list[str] = []
    first_line: dict[str, int] = {}
    for line, prompt_id, prompt in zip(lines, table["prompt_id"], table["prompt"], strict=True):
        if not isinstance(prompt_id, str) or not isinstance(prompt, str):
            problems.append(f"{unit} {line}: prompt_id and prompt must be text")
            continue
        try:
            check_prompt_id(prompt_id)
        except ValueError as error:
            problems.append(f"{unit} {line}: {error}")
        if prompt_id in first_line:
            problems.append(
                f"{unit} {line}: prompt id {prompt_id!r} is already on {unit} "
                f"{first_line[prompt_id]}: each id may stand once"
            )
        first_line.setdefault(prompt_id, line)
        if not prompt.strip():
            problems.append(f"{unit} {line}: the prompt of {prompt_id!r} is empty")
    if problems:
        shown = "\n  ".join(problems[:MAX_PROBLEMS_SHOWN])
        more = len(problems) - MAX_PROBLEMS_SHOWN
        rest = f"\n  and {more} more" if more > 0 else ""
        raise ValueError(f"{path} has bad rows; nothing was generated:\n  {shown}{rest}")


def _check_types(table: pd.DataFrame, lines: list[int], path: Path) -> None:
    """Raise ValueError that names the first value by which a column cannot be stored as Parquet.

    Only JSON has columns of several types, which pandas holds as objects.
    """
    for name, column in table.items():
        if column.dtype != object or _is_storable(column):
            continue
        row = bisect_left(
            range(1, len(column)), True, key=lambda count: not _is_storable(column.head(count))
        )
        value = json.dumps(column.iloc[row], ensure_ascii=False, default=str)
        problem = "does not go with those before it" if row else "fits no column of a table"
        raise ValueError(
            f"{path} cannot be read: line {lines[row]}: {name} is {value:.80}, which {problem}; "
            f"write values of one type in all rows of {name}, as text if need be"
        )


def _is_storable(column: pd.Series) -> bool:
    """Whether a column can be written as Parquet; pyarrow says no in many ways."""
    try:
        column.to_frame("column").to_parquet(io.BytesIO(), index=False)
    except (ValueError, TypeError, OverflowError, NotImplementedError):
        return False
    return True
