"""Configuration files as a user wrote them: refuse what YAML readers silently accept."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml


def check_files(paths: Iterable[Path | str]) -> None:
    """Look at configuration files before they are used.

    Raises:
        ValueError: a file is not UTF-8, not YAML, or has a key twice (YAML takes the last).
    """
    for path in map(Path, paths):
        if path.is_file():
            _check(path)


def _check(path: Path) -> None:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 (byte {error.start + 1}): save it as UTF-8, or convert it, for "
            f"example with: iconv -f {_guess(path)} -t UTF-8 {path}"
        ) from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    twice = [] if root is None else list(_twice(root, set()))
    if twice:
        lines = "\n".join(f"  {line}" for line in twice)
        raise ValueError(f"{path} has keys twice, of which YAML takes the last:\n{lines}")


def _guess(path: Path) -> str:
    """The likely encoding; UTF-16 begins with a byte order mark, or has zeros in ASCII text."""
    return "UTF-16" if b"\0" in path.read_bytes()[:100] else "LATIN1"


def _twice(node: yaml.Node, seen: set[int]) -> Iterator[str]:
    """Lines about keys that stand twice in one mapping; aliases are followed once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _twice(item, seen)
    if isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode):
                if key.value in first:
                    yield f"line {line}: {key.value} stands on line {first[key.value]} already"
                first.setdefault(key.value, line)
            yield from _twice(value, seen)
