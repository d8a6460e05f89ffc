# ruff: noqa: RUF001
"""Any prompt file is read as it was written, or refused with a cure."""

import csv
import io
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from distillery.prompt_files import LINE_END
from distillery.prompts import read_prompts
from fuzzing import seeds

ENCODINGS = (
    *["utf-8"] * 6, "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252", "latin1",
    "mac_roman", "cp1250", "cp1251", "gbk", "shift_jis", "koi8_r", "cp850",
)  # fmt: skip
ALPHABETS = (
    "abc xyz, ;\t|\"'.:=()", "äöüßéèñçÄÖ „“–€…’",
    "żółćęąśźń", "красный кот", "红色的狗", "赤い犬テスト",
    "\u200b\u200d\u2028\u00a0\u3000\ufeff", "🦊🐈‍⬛",
    "\x00\x07\x0b\x0c\x1b\x7f\x80\x84\x85\x93\x9f",
    "\r\n",
)  # fmt: skip
LINE_ENDS = ("\n", "\r\n", "\r")


def words(chance: random.Random) -> str:
    """A text of one or two alphabets, mostly plain."""
    chosen = chance.choices(ALPHABETS, [20, 6, 2, 2, 2, 2, 1, 1, 0.3, 0.5], k=2)
    text = "".join(chance.choice(chance.choice(chosen)) for _ in range(chance.randint(1, 30)))
    return f"a {text} b" if chance.random() < 0.8 else text


def as_table(texts: list[str], chance: random.Random) -> str:
    """A table with separators, quoting, blank rows and a line that names the separator."""
    separator, line_end = chance.choice(",;\t|"), chance.choice(LINE_ENDS)
    quoting = chance.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=separator, lineterminator=line_end, quoting=quoting)
    writer.writerow(["prompt_id", "note", "prompt"])
    for number, text in enumerate(texts):
        writer.writerow([f"id{number}", chance.choice(["", "x", ",;"]), text])
        if chance.random() < 0.1:
            writer.writerow(["", "", ""])
    needs_name = separator == "|" or chance.random() < 0.3
    return f"sep={separator}{line_end}" * needs_name + stream.getvalue()


def as_lines(texts: list[str], chance: random.Random) -> str:
    return chance.choice(LINE_ENDS).join(LINE_END.sub(" ", text) for text in texts)


def as_json(texts: list[str], chance: random.Random) -> str:
    is_ascii = chance.random() < 0.5
    rows = [json.dumps({"prompt": text}, ensure_ascii=is_ascii) for text in texts]
    return chance.choice(LINE_ENDS).join(rows)


FORMATS: dict[str, Callable[[list[str], random.Random], str]] = {
    ".csv": as_table, ".txt": as_lines, ".jsonl": as_json,
}  # fmt: skip


@pytest.mark.parametrize("seed", seeds(100))
def test_prompts_are_those_that_were_written(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    suffix = chance.choice([".csv", ".csv", ".txt", ".jsonl"])
    texts = [words(chance) for _ in range(chance.randint(1, 6))]
    text = FORMATS[suffix](texts, chance)
    encoding = chance.choice(ENCODINGS)
    path = tmp_path / f"p{suffix}"
    path.write_bytes(text.encode(encoding, "replace"))
    is_text = path.read_bytes().decode(encoding) == text
    # Bytes of another encoding may be UTF-8 by chance, which no reader can tell.
    is_chance = not encoding.startswith("utf-8") and is_utf8(path.read_bytes())
    try:
        found = read_prompts(path)["prompt"].tolist()
    except ValueError as error:
        check_refusal(str(error), path, texts, encoding)
        return
    assert encoding.startswith("utf-8") or is_chance
    if is_text and (not is_chance or text.isascii()):
        expected = [LINE_END.sub(" ", one).strip() for one in texts] if suffix == ".txt" else texts
        assert [one.strip() for one in found] == [one.strip() for one in expected if one.strip()]


def is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def check_refusal(message: str, path: Path, texts: list[str], encoding: str) -> None:
    """It names the file, what is wrong, and is short; a sound file is not refused."""
    assert str(path) in message
    assert len(message) < 6000
    if encoding.startswith("utf-8"):
        odd = any(cure in message for cure in ("control character", "byte order mark", "is empty"))
        assert odd, message
    else:
        cures = ("iconv -f", "two encodings", "control character", "is empty", "byte order mark")
        assert any(cure in message for cure in cures), message
