"""The words of a Snakemake command line: configurations, and the values of --config with types.

Snakemake reads what is nested in --config as text, `{num_samples: 16000}` as `{"num_samples":
"16000"}`, and takes all words behind --configfile for configurations. A Snakefile imports this
module while it is parsed, so nothing heavy is imported.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from distillery.config.yaml_files import check_files, is_result
from distillery.files import JsonObject
from distillery.notes import error, noting, refuse

FILES, VALUES = "--configfile", "--config"
OPTIONS = {FILES: FILES, "--configfiles": FILES, VALUES: VALUES, "-C": VALUES}
"""Options that take all words behind them."""
TEXT_KEYS = ("run",)
"""Keys outside of all sections that are text, whatever number YAML would read."""


class _TextKeys(yaml.SafeLoader):
    """YAML with keys as they are written, which is how Snakemake reads them."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = True) -> dict[Any, Any]:
        return {
            key.value
            if isinstance(key, yaml.ScalarNode)
            else str(key.value): self.construct_object(value, deep=True)
            for key, value in node.value
        }


_TextKeys.add_constructor("tag:yaml.org,2002:map", _TextKeys.construct_mapping)


def check_words(words: Sequence[str]) -> None:
    """Look at what stands behind --configfile and --config before Snakemake reads it.

    Args:
        words: of the command line, without the program.

    Raises:
        ValueError: a word there is a target, or configurations are not there or cannot be read.
    """
    taken, others = _split(words)
    targets = {
        FILES: [word for word in taken[FILES] if _is_target(word)],
        VALUES: [word for word in taken[VALUES] if "=" not in word],
    }
    for option, found in targets.items():
        if found:
            kept = {
                each: [word for word in taken[each] if word not in targets[each]] for each in taken
            }
            behind = [word for each in kept for word in [each, *kept[each]] if kept[each]]
            moved = [word for each in targets.values() for word in each]
            command = shlex.join(["snakemake", *moved, *others, *behind])
            raise ValueError(
                f"{option} takes all words after it, and {' and '.join(found)} is a target: write "
                f"targets before it: {command}"
            )
    notes = [
        error(f"the configuration {word}", " does not exist", "correct its name")
        for word in taken[FILES]
        if not Path(word).is_file()
    ]
    with noting(notes):
        check_files(taken[FILES])
    refuse(notes)


def _split(words: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The words behind each option that takes all, and all others."""
    taken: dict[str, list[str]] = {VALUES: [], FILES: []}
    others: list[str] = []
    taker = ""
    for word in words:
        option, equals, value = word.partition("=")
        if option in OPTIONS:
            taker = "" if equals else OPTIONS[option]
            taken[OPTIONS[option]] += [value] * bool(equals)
        elif taker and not word.startswith("-"):
            taken[taker].append(word)
        else:
            taker = ""
            others.append(word)
    return taken, others


def _is_target(word: str) -> bool:
    """Whether a word is a result, a rule's name or a folder."""
    path = Path(word)
    return is_result(path) or path.is_dir() or not (path.suffix or path.is_file())


def read_overrides(entries: Iterable[str]) -> JsonObject:
    """What --config gives, with the types that a file would give it.

    Snakemake reads numbers as Python does, `010` as 10, and what is nested as text. A value that is
    no YAML stays away, and is then as Snakemake reads it.

    Args:
        entries: as `training={num_samples: 16000}`.
    """
    given: dict[str, Any] = {}
    for entry in entries:
        key, _, value = entry.partition("=")
        try:
            read = yaml.load(value, Loader=_TextKeys)  # noqa: S506 (a SafeLoader)
        except (yaml.YAMLError, ValueError, RecursionError):
            continue
        if key in TEXT_KEYS:
            given[key] = read if isinstance(read, str) else value
        elif isinstance(read, dict | list):
            given = _merged(given, {key: read})
        elif key.isidentifier() and isinstance(read, bool | int | float | str | None):
            given[key] = read
    return given


def with_overrides(raw: JsonObject, as_text: Mapping[str, Any], typed: JsonObject) -> JsonObject:
    """A configuration in which values of --config have their types.

    Args:
        raw: as Snakemake has merged it.
        as_text: what Snakemake read of --config. Where the configuration has another value, as in a
            module with one of its own, it stays.
        typed: the same with types.
    """
    merged = dict(raw)
    for key, value in typed.items():
        if key not in raw or key not in as_text:
            continue
        inner, text = raw[key], as_text[key]
        if all(isinstance(it, Mapping) for it in (inner, text, value)):
            merged[key] = with_overrides(inner, text, value)
        elif inner == text:
            merged[key] = value
    return merged


def keys_of(values: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The keys of all values, as `training.num_samples`."""
    for key, value in values.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping) and value:
            yield from keys_of(value, f"{name}.")
        else:
            yield name


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two mappings, the latter's values above the former's."""
    both: dict[str, Any] = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], dict) and isinstance(above[key], dict):
            both[key] = _merged(below[key], above[key])
    return both
