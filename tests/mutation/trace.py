"""A plugin of pytest that notes which functions of ours each test runs, and how long it takes.

`MUTATION_TRACE` names the file that gets one line of JSON for each test; tests that are in it
already are left out, so an interrupted run resumes. What runs in processes of their own is not
seen.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

from mutation.covering import read

NOTES = Path(os.environ["MUTATION_TRACE"])
PACKAGE = "/workflow/distillery/"

_seen: dict[int, CodeType] = {}


def _note(frame: FrameType, event: str, argument: object) -> None:
    """Called at each call of a function; None: no line of it is of interest."""
    code = frame.f_code
    _seen[id(code)] = code


def function_of(qualified_name: str) -> str:
    """The outermost function: "Class.method" for a list within one of its methods."""
    return qualified_name.partition(".<locals>")[0]


def _functions() -> list[str]:
    """Since the last time, as "training/loop.py:train"."""
    found = list(_seen.values())
    _seen.clear()
    ours = (code for code in found if PACKAGE in code.co_filename)
    places = (
        f"{code.co_filename.partition(PACKAGE)[2]}:{function_of(code.co_qualname)}" for code in ours
    )
    return sorted(set(places))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    known = read(NOTES) if NOTES.exists() else {}
    items[:] = [item for item in items if item.nodeid not in known]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    begin_s, failed = time.monotonic(), item.session.testsfailed
    _seen.clear()
    threading.settrace(_note)
    sys.settrace(_note)
    try:
        result = yield
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    # One that was interrupted does not come here: it is noted when it has run.
    record = {
        "test": item.nodeid,
        "seconds": round(time.monotonic() - begin_s, 3),
        "passed": item.session.testsfailed == failed,
        "setup": item.stash.get(SETUP, []),
        "call": _functions(),
    }
    with NOTES.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    return result


SETUP = pytest.StashKey[list[str]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    finally:
        item.stash[SETUP] = _functions()
