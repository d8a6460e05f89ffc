"""Prompt files to one checked table: CSV, Parquet, JSONL with named columns, or a line a prompt.

A bad row is named with its line, and nothing is generated until all are good.
"""

from pathlib import Path

import pandas as pd

from distillery.identity import check_prompt_id

REQUIRED = ("prompt_id", "prompt")
FORMATS = (".csv", ".txt", ".jsonl", ".parquet")
MAX_PROBLEMS_SHOWN = 20


def read_prompts(path: Path) -> pd.DataFrame:
    """Read and check a prompt file.

    Args:
        path: .csv, .jsonl or .parquet with columns `prompt_id` and `prompt` (more columns are
            kept), or .txt with one prompt a line, whose ids are p00000, p00001, ...

    Returns:
        One row a prompt in the file's order; `prompt_id` and `prompt` are strings and come first.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not UTF-8, empty, a column missing, or bad rows, all named with their lines.
    """
    if not path.is_file():
        raise FileNotFoundError(f"the prompt file {path} does not exist: create it, or correct the "
                                "path under `prompts` in the configuration")  # fmt: skip
    table = _read(path)
    missing = [column for column in REQUIRED if column not in table.columns]
    if missing:
        raise ValueError(
            f"{path} has no column {' and no column '.join(missing)} (it has: "
            f"{', '.join(map(str, table.columns))}): name them in the first line"
        )
    if table.empty:
        raise ValueError(f"{path} holds no prompts: write at least one")
    _check_rows(table, path)
    others = [column for column in table.columns if column not in REQUIRED]
    return table[[*REQUIRED, *others]].reset_index(drop=True)


def _read(path: Path) -> pd.DataFrame:
    """The raw table, with ids and prompts as text and nothing guessed to be a number or missing."""
    try:
        match path.suffix.lower():
            case ".csv":
                return pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
            case ".jsonl":
                return pd.read_json(path, lines=True, dtype=False, encoding="utf-8")
            case ".parquet":
                return pd.read_parquet(path)
            case ".txt":
                return _read_lines(path)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 (byte {error.start}: {error.object[error.start]:#04x}): save "
            f"it as UTF-8, for example with: iconv -f latin1 -t utf-8 {path}"
        ) from error
    except pd.errors.EmptyDataError:
        raise ValueError(f"{path} is empty: write a first line `prompt_id,prompt`, then the "
                         "prompts") from None  # fmt: skip
    except (pd.errors.ParserError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    raise ValueError(f"{path} ends in {path.suffix!r}: prompt files end in {', '.join(FORMATS)}")


def _read_lines(path: Path) -> pd.DataFrame:
    """One prompt a line; empty lines are left out and do not move the ids of the others."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [(f"p{number:05d}", line.strip()) for number, line in enumerate(lines) if line.strip()]
    return pd.DataFrame(rows, columns=list(REQUIRED), dtype=str)


def _check_rows(table: pd.DataFrame, path: Path) -> None:
    """Raise one ValueError that names every bad row (the first twenty of them)."""
    problems: list[str] = []
    first_line: dict[str, int] = {}
    # A CSV's first prompt is on line 2; a quoted line break shifts later ones, as in any editor.
    header_lines = 1 if path.suffix.lower() == ".csv" else 0
    for row, (prompt_id, prompt) in enumerate(
        zip(table["prompt_id"], table["prompt"], strict=True)
    ):
        line = row + header_lines + 1
        if not isinstance(prompt_id, str) or not isinstance(prompt, str):
            problems.append(f"line {line}: prompt_id and prompt must be text")
            continue
        try:
            check_prompt_id(prompt_id)
        except ValueError as error:
            problems.append(f"line {line}: {error}")
        if prompt_id in first_line:
            problems.append(
                f"line {line}: prompt id {prompt_id!r} is already on line {first_line[prompt_id]}: "
                "each id may stand once"
            )
        first_line.setdefault(prompt_id, line)
        if not prompt.strip():
            problems.append(f"line {line}: the prompt of {prompt_id!r} is empty")
    if problems:
        shown = "\n  ".join(problems[:MAX_PROBLEMS_SHOWN])
        more = len(problems) - MAX_PROBLEMS_SHOWN
        rest = f"\n  and {more} more" if more > 0 else ""
        raise ValueError(f"{path} has bad rows; nothing was generated:\n  {shown}{rest}")
