"""Configuration files as a user wrote them: refuse what YAML readers silently accept."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from distillery.encodings import decode, explain_control, find_control
from distillery.files import read_json
from distillery.notes import Note, noting, refuse

RESULTS = "results"


def check_files(paths: Iterable[Path | str]) -> None:
    """Look at configuration files before they are used.

    Raises:
        ValueError: files are results, not UTF-8 or not YAML, have control characters, or have a key
            twice (YAML takes the last).
    """
    notes: list[Note] = []
    for path in map(Path, paths):
        with noting(notes):
            _check(path)
    refuse(notes)


def is_result(path: Path) -> bool:
    """Whether a path is one below results/{run}/, but for the configurations that a run keeps and
    the whole one that a probe writes for its small run."""
    parts = path.parts
    below = parts[parts.index(RESULTS) + 1 :] if RESULTS in parts else ()
    return len(below) > 1 and below[1] != "config" and not _is_whole(path)


def _is_whole(path: Path) -> bool:
    try:
        content = read_json(path) if path.suffix == ".json" else {}
    except (OSError, ValueError):
        return False
    return {"run", "teacher", "prompts"} <= content.keys()


def _check(path: Path) -> None:
    if is_result(path):
        raise ValueError(
            f"{path} is a result and no configuration: write targets before --configfile: "
            f"`snakemake --cores all {path} --configfile config/mine.yaml`"
        )
    if not path.is_file():
        return
    try:
        text = decode(path.read_bytes(), path)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    place = find_control(text)
    if place is not None:
        line = text.count("\n", 0, place) + 1
        column = place - text.rfind("\n", 0, place)
        raise ValueError(
            f"{path} is no YAML: line {line}, column {column} is {explain_control(text[place])}"
        )
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    twice = [] if root is None else list(_twice(root, set()))
    if twice:
        lines = "\n".join(f"  {line}" for line in twice)
        raise ValueError(f"{path} has keys twice, of which YAML takes the last:\n{lines}")


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
