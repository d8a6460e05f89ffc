# ruff: noqa: RUF001
"""Prompt files as spreadsheets and old programs write them: separators, line ends, encodings."""

import csv
import io
import re
import subprocess
from pathlib import Path

import pytest

from distillery.encodings import find_misread
from distillery.prompt_files import separator_of
from distillery.prompts import read_prompts
from prompt_texts import refused, write

ROWS = [["a", 'a dog; red, "big"\tone', "x"], ["b", "two\nlines", ""], ["c", "Äpfel — 5 €", "y,;"]]
HEADER = ["prompt_id", "prompt", "style"]


BEGINS = ("", "\ufeff", "sep={}\n", "\ufeffsep={}\r\n", '"sep={}"\n', "\n \n")


def rows_with(line_end: str) -> list[list[str]]:
    """The rows with such line ends within a field too, which writers know to quote."""
    return [[field.replace("\n", line_end) for field in row] for row in ROWS]


def table(separator: str, line_end: str = "\n", quoting: int = csv.QUOTE_MINIMAL) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator, lineterminator=line_end, quoting=quoting)  # type: ignore[arg-type]
    writer.writerows([HEADER, *rows_with(line_end)])
    return text.getvalue()


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_and_line_ends(tmp_path: Path, separator: str, line_end: str) -> None:
    for begin in BEGINS:
        named = begin if separator != "|" or "sep" in begin else begin + "sep={}\n"
        for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL):
            text = named.format(separator) + table(separator, line_end, quoting)
            path = write(tmp_path, text)
            assert read_prompts(path)[HEADER].to_numpy().tolist() == rows_with(line_end)
            assert separator_of(path) == separator


def test_tabs_by_the_name_of_the_file(tmp_path: Path) -> None:
    assert read_prompts(write(tmp_path, table("\t"), "p.tsv"))[HEADER].to_numpy().tolist() == ROWS
    assert read_prompts(write(tmp_path, "prompt\na, b; c\n", "p.tsv"))["prompt"][0] == "a, b; c"


@pytest.mark.parametrize("header", ["prompt", "prompt,a;b", "a\tb;c,prompt", "prompt,prompt_id;"])
def test_commas_stay_where_the_header_can_be_read_by_them(tmp_path: Path, header: str) -> None:
    fields = header.split(",")
    row = ",".join("a;b\tc" for _ in fields)
    found = read_prompts(write(tmp_path, f"{header}\n{row}\n"))
    assert found["prompt"].tolist() == ["a;b\tc"]
    assert set(found.columns) == {"prompt_id", *fields}


@pytest.mark.parametrize("header", ["prompt;a,b", "a\tb;prompt", "prompt\tx;prompt"])
def test_two_separators_in_the_header_are_told_how_to_say_which(
    tmp_path: Path, header: str
) -> None:
    path = write(tmp_path, f"{header}\na;b\n")
    message = refused(path)
    assert "write a line sep=" in message
    named = message[message.index("sep=") + 4]
    with_line = write(
        tmp_path, f"sep={named}\n{header}\n" + named.join("xyz"[: header.count(named) + 1])
    )
    assert read_prompts(with_line)["prompt"].tolist() in (["x"], ["y"])


def test_ids_do_not_move_with_lines_above_the_header(tmp_path: Path) -> None:
    plain = read_prompts(write(tmp_path, "prompt;a\nx;1\n\ny;2\n"))
    assert plain["prompt_id"].tolist() == ["p00000", "p00002"]
    for above in ("sep=;\n", "\n", "\r\n\r\nsep=;\r\n\r\n"):
        assert read_prompts(write(tmp_path, f"{above}prompt;a\nx;1\n\ny;2\n")).equals(plain)
    assert "line 4: " in refused(write(tmp_path, "sep=;\nprompt_id;prompt\na;x\nb;\n"))


def test_a_field_of_any_length_and_its_quotes(tmp_path: Path) -> None:
    long = "x" * 300_000
    assert read_prompts(write(tmp_path, f"prompt;a\n{long};b\n"))["prompt"].tolist() == [long]
    assert csv.field_size_limit() == 131_072
    message = refused(write(tmp_path, f'prompt;a\n"{long};b\nc;d\n'))
    assert "the row on line 2 ends wrongly" in message
    assert len(message) < 500


def test_blank_rows_of_a_spreadsheet_are_left_out(tmp_path: Path) -> None:
    found = read_prompts(write(tmp_path, "prompt;a\nx;1\n;\n ; \n;;;;\ny;2\n"))
    assert found["prompt"].tolist() == ["x", "y"]
    assert "put a prompt with a semicolon in double quotes" in refused(
        write(tmp_path, "prompt;a\nx;1;2\n")
    )
    for header in ("prompt;;\nx;;\n", "prompt\t\nx\t\n"):
        assert "column 2 has no name in the first line" in refused(write(tmp_path, header))


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r", "\r\r\n"])
def test_line_ends_of_lines(tmp_path: Path, line_end: str) -> None:
    text = line_end.join(["a cat", "", "a dog", ""])
    found = read_prompts(write(tmp_path, text, "p.txt"))
    assert found.to_numpy().tolist() == [["p00000", "a cat"], ["p00002", "a dog"]]
    rows = line_end.join(['{"prompt": "a cat"}', "", '{"prompt": "a dog"}'])
    assert read_prompts(write(tmp_path, rows, "p.jsonl")).equals(found)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_table_is_no_text_file(tmp_path: Path, separator: str) -> None:
    assert "name it ." in refused(write(tmp_path, table(separator), "p.txt"))


WRITTEN = {
    "WINDOWS-1252": ["„a red fox“ – 5 €", "café au lait, grüne Äpfel", "it’s a dog…", "caf\xe9"],
    "WINDOWS-1250": ["zażółć gęślą jaźń", "červený kůň"],
    "ISO-8859-2": ["zażółć gęślą jaźń"],
    "WINDOWS-1251": ["красная собака на синем фоне", "Красная Собака «кавычки» – 5"],
    "KOI8-R": ["красная собака на синем фоне"],
    "MACINTOSH": ["café au lait “quoted” – 5 €", "grüne Äpfel"],
    "CP850": ["Grün und schöne Bären"],
    "WINDOWS-1253": ["κόκκινος σκύλος στο γρασίδι"],
    "WINDOWS-1254": ["kırmızı köpek gözlüğü"],
    "GB18030": ["一只红色的狗", "RGB灯, 3D模型"],
    "BIG5": ["一隻紅色的狗"],
    "CP932": ["赤い犬と青い猫、写真"],
    "EUC-JP": ["赤い犬と青い猫、写真"],
    "CP949": ["빨간 개와 파란 고양이"],
}  # fmt: skip


def encoded(text: str, name: str) -> bytes:
    """By iconv, which the messages name, and not by the library's own table of names."""
    command = ["iconv", "-f", "UTF-8", "-t", name]
    return subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in WRITTEN.items() for text in texts]
)
def test_an_encoding_is_shown_among_those_that_it_may_be_with_the_command_that_mends_it(
    tmp_path: Path, name: str, text: str
) -> None:
    message = refused(write(tmp_path, encoded(f"prompt\n{text}\n", name), "p.txt"))
    assert f"'{text}' in {name}" in message
    assert "line 2 reads" in message
    assert "\n" not in message
    if name == "WINDOWS-1252":  # the usual one comes first
        assert f"reads '{text}' in {name}" in message
    shown = re.findall(r"' in ([A-Z0-9-]+)", message)
    command = message[message.index("iconv -f") :].replace(shown[0], name, 1)
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert read_prompts(tmp_path / "utf8.txt")["prompt"].tolist() == ["prompt", text]


def test_what_is_no_text_or_two_encodings_is_told(tmp_path: Path) -> None:
    mixed = "grün\n".encode() + "Äpfel\n".encode("latin1")
    assert "(line 2, byte 0xc4), and line 1 is: files of two enc" in refused(
        write(tmp_path, mixed, "p.txt")
    )
    message = refused(write(tmp_path, bytes(range(1, 256)) * 3, "p.txt"))
    assert "its encoding; then convert it: iconv -f ENCODING" in message
    for begin, cure in {b"PK\x03\x04": "export it", b"\x1f\x8b\x08": "gunzip"}.items():
        assert cure in refused(write(tmp_path, begin + b"\0\1\2", "p.csv"))


@pytest.mark.parametrize(
    "code", [*range(9), 0xB, 0xC, *range(0xE, 0x20), *range(0x7F, 0xA0), 0xFEFF]
)
def test_a_control_character_is_refused_with_its_place(tmp_path: Path, code: int) -> None:
    """Those to which a wrong conversion turns quotation marks among them."""
    letter = chr(code)
    for name, text in {
        "p.csv": f'prompt;negative_prompt\nx;y\n"a dog{letter}";y\n',
        "p.txt": f"x\n\na dog{letter}\n",
        "p.jsonl": f'{{"prompt": "x"}}\n\n{{"prompt": "a dog\\u{code:04x}"}}\n',
    }.items():
        message = refused(write(tmp_path, text, name))
        assert f"line 3: character 6 of prompt is the {'byte' if code > 256 else 'con'}" in message
        assert f"U+{code:04X}" in message
    negative = refused(write(tmp_path, f'prompt;negative_prompt\nx;"{letter}y"\n'))
    assert "line 2: character 1 of negative_prompt is" in negative
    assert ("WINDOWS-1252" in negative) == (0x80 <= code < 0xA0)


def test_what_was_read_in_the_wrong_encoding_shows() -> None:
    for text in ("grün", "Äpfel à la carte", "„a“ – 5 €", "日本", "a dog", ""):
        assert find_misread(text) is None
    assert find_misread("grÃ¼n") == "grün"
    assert find_misread("5 â‚¬") == "5 €"
    assert find_misread("grün".encode().decode("latin1")) == "grün"
