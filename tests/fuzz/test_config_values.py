"""Any value under any key of a shipped configuration is taken as it is, or refused by its key."""

import datetime
import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from snakemake.cli import parse_config as read_by_snakemake
from snakemake.utils import update_config

from distillery.config.command_line import keys_of, read_overrides, with_overrides
from distillery.config.jobs import freeze
from distillery.config.run import parse_config
from fuzzing import seeds

CONFIG = Path(__file__).parents[2] / "config"
SHIPPED = [yaml.safe_load(path.read_text()) for path in sorted(CONFIG.glob("*.yaml"))]
CYCLE: list[Any] = []
CYCLE.append(CYCLE)
BOMB: list[Any] = []
for _ in range(40):
    BOMB = [BOMB] * 9
DEEP: list[Any] = []
for _ in range(2000):
    DEEP = [DEEP]
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 4, 8, 10**9, -(10**20), 10**400, 10**5000, 0.5, -0.0, 1e-400,
    1e308, float("inf"), float("-inf"), float("nan"), "", " ", "0", "16", "1e-4", "true", "null",
    "auto", "teacher", "a" * 100_000, "é", "\ud83d", "\0", "{x}", "../x", "2026-11-25",
    datetime.date(2026, 11, 25), datetime.datetime(2026, 11, 25, 1, 2), b"bytes", {1, 2}, (1, 2),
    [], [1], [None], [[]], {}, {"a": 1}, {1: 2}, {None: 1}, {(1, 2): 3}, {"steps": 4}, {True: {}},
    {datetime.date(2026, 11, 25): 1}, {"source": "teacher"}, [{"path": "x"}], CYCLE, BOMB, DEEP,
]  # fmt: skip


TEXTS = (
    "null", "true", "no", "16", "1.0e-4", "1e-4", "0x10", "1_000", "'16'", "2026-11-25", "[4, 8]",
    "{a: 1}", "auto", "", "[", "a: b", ".nan", ".inf", "'", "a" * 5000, "1:30", "~", "*a",
)  # fmt: skip


def places(raw: dict[str, Any], before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The keys of a configuration, of its sections and of lists of these, and one that is
    unknown."""
    found = [(*before, "unknown")]
    for key, value in raw.items():
        found.append((*before, key))
        if isinstance(value, list) and all(isinstance(each, dict) for each in value):
            for number, each in enumerate(value):
                found += places(each, (*before, key, str(number)))
        if isinstance(value, dict):
            found += places(value, (*before, key))
    return found


def put(raw: Any, place: tuple[str, ...], value: object) -> Any:
    if isinstance(raw, list):
        number, *inner = place
        return [
            put(each, tuple(inner), value) if str(at) == number else each
            for at, each in enumerate(raw)
        ]
    changed: dict[str, Any] = {**raw}
    key, *inner = place
    changed[key] = put(raw[key], tuple(inner), value) if inner else value
    return changed


def faults(raw: dict[str, Any], key: str, source: str, given: set[str]) -> list[str]:
    """What is wrong: one that is taken is frozen as it can be read again; otherwise an error names
    the key and its source."""
    try:
        config = parse_config(raw, "my.yaml", given)
    except ValueError as error:
        message = str(error)
        section, _, last = key.rpartition(".")
        told = {
            "its source": message.partition(" cannot be used")[0] in (source, "my.yaml"),
            "its section": section.partition(".")[0] in message,
            "its key": last in message or section in message,
            "few words": len(message) < 5000,
        }
        return [f"no {name}: {message}" for name in told if not told[name]]
    again = parse_config(json.loads(json.dumps(freeze(config, "run"))), "again")
    return [] if again == config else [f"read again it is {again}, not {config}"]


@pytest.mark.parametrize("seed", seeds(120))
def test_a_value_is_taken_or_refused_by_its_key(seed: int) -> None:
    chance = random.Random(seed)
    raw = chance.choice(SHIPPED)
    place = chance.choice(places(raw))
    changed = put(raw, place, chance.choice(VALUES))
    assert faults(changed, ".".join(place), "my.yaml", set()) == []


@pytest.mark.parametrize("seed", seeds(60))
def test_a_value_of_config_is_that_of_a_file(seed: int) -> None:
    chance = random.Random(seed)
    raw = chance.choice(SHIPPED)
    # --config replaces a list as a whole.
    place = chance.choice([it for it in places(raw) if not any(map(str.isdigit, it))])
    text = chance.choice(TEXTS)
    key, *inner = place
    nested = text
    for name in reversed(inner):
        nested = f"{{{name}: {nested}}}"
    entry = f"{key}={nested}"
    as_text = read_by_snakemake([entry])
    merged = json.loads(json.dumps(raw))
    update_config(merged, as_text)
    given = dict(with_overrides(merged, as_text, read_overrides([entry])))
    assert faults(given, ".".join(place), "--config", set(keys_of(as_text))) == []
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return
    if inner and isinstance(as_text[key], dict):
        found: Any = given
        for name in place:
            found = found[name]
        expected = put(raw, place, value)
        for name in place:
            expected = expected[name]
        is_merged = isinstance(found, dict) and isinstance(expected, dict)
        assert is_merged or str(found) == str(expected)
