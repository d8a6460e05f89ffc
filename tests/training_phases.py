"""A training's phases in few words."""

from typing import Any


def phases(**ways: int | dict[str, Any]) -> tuple[Any, ...]:
    """As `stored=24, rounds={"count": 2, "samples": 16}`; a number is that of a way's samples."""
    return tuple(
        {"learn": way} | (given if isinstance(given, dict) else {"samples": given})
        for way, given in ways.items()
    )
