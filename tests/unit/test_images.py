"""Processes that write one sheet at once."""

import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from distillery import images
from distillery.images import SHEET, moment_folder, write_png, write_sheets


def draw(root: Path, samples_seen: int) -> None:
    image = np.zeros((32, 32, 3), np.uint8)
    write_png(
        moment_folder(root, samples_seen) / "p0.png", image, {"training": "ours", "prompt": "one"}
    )


def test_who_comes_later_waits_so_that_no_moment_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first looks, and is slow to write what it has seen; another image comes meanwhile."""
    find, looked, second_wrote = images.find_moments, threading.Event(), threading.Event()

    def slow_find(*arguments: object) -> list[Path]:
        found = find(*arguments)  # type: ignore[arg-type]
        if not looked.is_set():
            looked.set()
            second_wrote.wait(0.5)
        return found

    monkeypatch.setattr(images, "find_moments", slow_find)
    draw(tmp_path, 0)
    first = threading.Thread(target=write_sheets, args=(tmp_path, 0, {"p0": "one"}, "ours"))
    first.start()
    assert looked.wait(5)
    draw(tmp_path, 8)
    write_sheets(tmp_path, 8, {"p0": "one"}, "ours")
    second_wrote.set()
    first.join()
    with (
        Image.open(tmp_path / SHEET) as over_time,
        Image.open(moment_folder(tmp_path, 8) / SHEET) as one,
    ):
        assert over_time.width > 1.5 * one.width, "both moments are on it"
