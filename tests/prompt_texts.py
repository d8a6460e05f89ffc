"""Prompt files as text, and the message of one that is refused."""

from pathlib import Path

import pytest

from distillery.prompts import (
    read_prompts,
)

GOOD = "prompt_id,prompt\na,a red dog\nb,a blue cat\n"
TEXTS = {"p.csv": GOOD, "p.txt": "a red dog\n", "p.jsonl": '{"prompt_id":"a","prompt":"b"}\n'}


def write(folder: Path, text: str | bytes, name: str = "prompts.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refused(path: Path) -> str:
    """The message of a file that must be refused; it names the file."""
    with pytest.raises(ValueError, match=r".") as caught:
        read_prompts(path)
    assert str(path) in str(caught.value)
    return str(caught.value)
