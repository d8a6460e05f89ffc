"""Text files that are not UTF-8: which encoding they may have, and the command that mends them.

Nothing heavy is imported: a Snakefile reads configurations by it while it is parsed.
"""

import codecs
import shlex
import unicodedata
from itertools import pairwise
from pathlib import Path

BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),  # before UTF-16, with whose mark it begins
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
NO_TEXT = (
    (b"PK\x03\x04", "it is an Excel or ZIP file: export it as UTF-8 text"),
    (b"\xd0\xcf\x11\xe0", "it is a file of an old Excel or Word: export it as UTF-8 text"),
    (b"\x1f\x8b", "it is compressed: unpack it with gunzip"),
    (b"PAR1", "it is a Parquet file: name it .parquet"),
    (b"%PDF", "it is a PDF file: export its text as UTF-8"),
)
"""How other files begin that are given the name of a text file."""
ENCODINGS = {
    "WINDOWS-1252": "cp1252",
    "ISO-8859-15": "iso8859_15",
    "WINDOWS-1250": "cp1250",
    "ISO-8859-2": "iso8859_2",
    "MACINTOSH": "mac_roman",
    "CP850": "cp850",
    "WINDOWS-1251": "cp1251",
    "KOI8-R": "koi8_r",
    "WINDOWS-1253": "cp1253",
    "WINDOWS-1254": "cp1254",
    "WINDOWS-1255": "cp1255",
    "WINDOWS-1256": "cp1256",
    "GB18030": "gb18030",
    "BIG5": "big5",
    "CP932": "cp932",
    "EUC-JP": "euc_jp",
    "CP949": "cp949",
}
"""Python's names by iconv's, the likeliest first of equally odd ones."""
MAX_READINGS = 5
MAX_SHOWN = 40
MAX_LINES = 200
"""Lines by which encodings are compared."""
NEVER_WRITTEN = {"Cc", "Co", "Cn"}
SELDOM_WRITTEN = {"So", "Sm", "Sk", "Sc", "No", "Lm"}
"""Signs of mathematics, frames, currencies: Unicode's categories of these."""
LOST = "\N{REPLACEMENT CHARACTER}"
"""What conversions write for a character that they cannot read."""
ALLOWED_CONTROLS = "\t\n\r"
JOINED = "\ufeff"
"""A byte order mark, which stands within a text where files were joined."""


def decode(content: bytes, path: Path, output: str | None = None) -> str:
    """The text of a UTF-8 file, without a byte order mark.

    Args:
        output: what the command that mends it is to write; utf8 with the file's ending if not said.

    Raises:
        ValueError: it is not UTF-8; with its encoding, as far as it shows, and the command.
    """
    for begin, problem in NO_TEXT:
        if content.startswith(begin):
            raise ValueError(problem)
    command = f"-t UTF-8 {shlex.quote(str(path))} > {shlex.quote(output or f'utf8{path.suffix}')}"
    encoding = find_wide_encoding(content)
    if encoding is not None:
        raise ValueError(f"it is {encoding}: save it as UTF-8: iconv -f {encoding} {command}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = len((content[: error.start] + b".").splitlines())
        place = f"it is not UTF-8 (line {line}, byte {content[error.start]:#04x})"
    raise ValueError(f"{place}{_advise(content, command)}")


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


def find_control(text: str) -> int | None:
    """The place of the first character that is no part of a written text; None without one.

    These are control characters but for tabs and line ends, above all U+0080 to U+009F, to which a
    conversion from Latin-1 turns quotation marks, and a byte order mark within the text.
    """
    if text.isprintable():
        return None
    return next((place for place, letter in enumerate(text) if _is_control(letter)), None)


def explain_control(letter: str) -> str:
    """What a character of `find_control` is, and the cure."""
    code = f"U+{ord(letter):04X}"
    if letter == JOINED:
        return f"the byte order mark {code}, as files have that were joined: remove it"
    if "\x80" <= letter <= "\x9f":
        return (
            f"the control character {code}, as a text has that was converted from Latin-1 and was "
            "WINDOWS-1252: convert the original again (iconv -f WINDOWS-1252 -t UTF-8), or remove "
            "it"
        )
    return f"the control character {code}{' (NUL)' if letter == chr(0) else ''}: remove it"


def find_misread(text: str) -> str | None:
    """What a text should be that was UTF-8 and was read as another encoding; None of others."""
    if text.isascii():
        return None
    for codec in ("cp1252", "latin1"):
        try:
            return text.encode(codec).decode()
        except UnicodeError:
            continue
    return None


def _is_control(letter: str) -> bool:
    is_control = unicodedata.category(letter) == "Cc" and letter not in ALLOWED_CONTROLS
    return is_control or letter == JOINED


def _is_utf8(content: bytes) -> bool:
    """Whether all of it can be decoded."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _advise(content: bytes, command: str) -> str:
    """How a text of narrow characters becomes UTF-8: by what each likely encoding makes of it."""
    lines = [line for line in enumerate(content.splitlines(), start=1) if not line[1].isascii()]
    sound = [number for number, line in lines if _is_utf8(line)]
    broken = [number for number, line in lines if not _is_utf8(line)]
    if len(sound) >= len(broken):
        return (
            f", and line {sound[0]} is: files of two encodings were joined, or one was cut; "
            "convert each before they are joined, or write the line again"
        )
    readings = list(_readings(content, [line for _, line in lines[:MAX_LINES]]))
    if not readings:
        return (
            ", and none of the usual encodings makes a text of it: the program that wrote it knows "
            f"its encoding; then convert it: iconv -f ENCODING {command}"
        )
    shown = next((pair for pair in lines[:MAX_LINES] if _differ(pair[1], readings)), lines[0])
    likely = ", ".join(f"{_excerpt(shown[1], name)} in {name}" for name in readings)
    which = "" if len(readings) == 1 else ", by the name that reads right"
    return (
        f": line {shown[0]} reads {likely}; save it as UTF-8{which}, for example with: "
        f"iconv -f {readings[0]} {command}"
    )


def _readings(content: bytes, lines: list[bytes]) -> list[str]:
    """Encodings by which a file is a text, the least odd first; one of equal texts."""
    sample = b"\n".join(lines)
    found: dict[str, str] = {}
    for name, codec in ENCODINGS.items():
        try:
            content.decode(codec)
            text = sample.decode(codec)
        except UnicodeDecodeError:
            continue
        if not NEVER_WRITTEN.intersection(map(unicodedata.category, set(text) - {"\n", "\t"})):
            found.setdefault(text, name)
    return [found[text] for text in sorted(found, key=_oddness)][:MAX_READINGS]


def _oddness(text: str) -> int:
    """Scripts beside the first, signs that are seldom written, and capitals behind small letters.

    By it the right one of 17 encodings is among the first five for all texts of
    tests/unit/test_prompt_tables.py; people tell which.
    """
    beyond = [letter for letter in text if letter > "\x7f"]
    scripts = {unicodedata.name(it, "").split(" ")[0] for it in beyond if it.isalpha()}
    signs = sum(unicodedata.category(letter) in SELDOM_WRITTEN for letter in beyond)
    return len(scripts) + signs + sum(a.islower() and b.isupper() for a, b in pairwise(text))


def _differ(line: bytes, names: list[str]) -> bool:
    """Whether the first two encodings make different texts of a line."""
    return len(names) < 2 or len({_text(line, name) for name in names[:2]}) > 1


def _excerpt(line: bytes, name: str) -> str:
    """The part of a line that has characters beyond ASCII, as text."""
    text = _text(line, name)
    first = next((place for place, letter in enumerate(text) if letter > "\x7f"), 0)
    begin = max(0, min(first - MAX_SHOWN // 4, len(text) - MAX_SHOWN))
    return f"'{text[begin : begin + MAX_SHOWN]}'"


def _text(line: bytes, name: str) -> str:
    return line.decode(ENCODINGS[name], "replace")
