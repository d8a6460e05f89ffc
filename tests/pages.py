"""The pages of the repository, and the shell commands that they show in blocks."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "config/README.md")),
        *ROOT.glob("docs/**/*.md"),
    ]
)
LOGS = {ROOT / "docs/log.md", ROOT / "CHANGELOG.md"}
"""What once was so: their commands are history."""
PROGRAMS = {
    *("apt-get", "bash", "cp", "docker", "export", "hf", "make", "pip", "pytest", "python"),
    *("distillery", "snakemake", "source", "srun", "sudo", "tensorboard", "torchrun"),
}
"""A block without a language holds commands if a line of it begins so."""
SHELLS = {"sh", "bash", "shell", "console"}
MARK = re.compile(r"<!-- needs: (.+?) -->")
NEEDS = {"a GPU", "a hub account", "released weights", "root", "a cluster", "a plugin", "your code"}
"""What a mark may give as the reason that no test runs a block."""


@dataclass(frozen=True)
class Command:
    """One command of a page, continued lines joined.

    Attributes:
        page: relative to the repository.
        variables: set in front of it.
        words: program and arguments.
        needs: of the mark before its block.
    """

    page: str
    variables: tuple[str, ...]
    words: tuple[str, ...]
    needs: frozenset[str]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def all_commands() -> list[Command]:
    """Those of all pages, each text once."""
    found = (command for page in PAGES if page not in LOGS for command in commands_of(page))
    return list({(command.words, command.needs): command for command in found}.values())


def commands_of(page: Path) -> Iterator[Command]:
    """Those in fenced and in indented blocks of a page."""
    needs: frozenset[str] = frozenset()
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block"):
            for variables, words in _split(token.content, token.info.strip()):
                yield Command(str(page.relative_to(ROOT)), variables, words, needs)
        mark = MARK.search(token.content) if token.type == "html_block" else None
        needs = frozenset(mark[1].split(", ")) if mark else frozenset()


def _split(block: str, language: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The commands of a block; none in one of another language."""
    if language and language not in SHELLS:
        return
    for line in block.replace("\\\n", " ").splitlines():
        if not language and not _begins_a_command(line):
            continue
        words = shlex.split(line, comments=True)
        number = next((n for n, word in enumerate(words) if not _is_variable(word)), len(words))
        if words[number:]:
            yield tuple(words[:number]), tuple(words[number:])


def _begins_a_command(line: str) -> bool:
    words = [word for word in line.split() if not _is_variable(word)]
    return bool(words) and words[0] in PROGRAMS


def _is_variable(word: str) -> bool:
    return re.match(r"[A-Z_]+=", word) is not None
