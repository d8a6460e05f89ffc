"""Clips as PNG and in sheets, and processes that write one sheet at once."""

import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from distillery import images
from distillery.images import (
    GAP_PX,
    SHEET,
    frames_of,
    moment_folder,
    poster,
    read_png,
    thumbnail,
    write_png,
    write_sheets,
)


def draw(root: Path, samples_seen: int) -> None:
    image = np.zeros((32, 32, 3), np.uint8)
    texts = {"training": "ours", "prompt": "one"}
    write_png(moment_folder(root, samples_seen) / "p0.png", image, texts, fps=1)


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


def test_the_sheet_shows_the_middle_of_a_clip(tmp_path: Path) -> None:
    clip = np.stack([np.full((32, 32, 3), value, np.uint8) for value in (10, 200, 60)])
    texts = {"training": "ours", "prompt": "one"}
    write_png(moment_folder(tmp_path, 8) / "p0.png", clip, texts, fps=16)
    write_sheets(tmp_path, 8, {"p0": "one"}, "ours")
    for sheet in (tmp_path / SHEET, moment_folder(tmp_path, 8) / SHEET):
        with Image.open(sheet) as opened:
            assert opened.getpixel((GAP_PX + 5, GAP_PX + 5)) == (200, 200, 200)
    assert thumbnail(moment_folder(tmp_path, 8) / "p0.png").size == (32, 32)


@pytest.mark.parametrize("shown", ["abcde", "aabbb", "abbba", "aaaaa"])
def test_a_clip_is_read_as_it_was_written(tmp_path: Path, shown: str) -> None:
    """Pillow writes frames that are equal to the one before as one that lasts longer."""
    noise = np.random.default_rng(0)
    drawn = {it: noise.integers(0, 256, (6, 4, 3), dtype=np.uint8) for it in sorted(set(shown))}
    clip = np.stack([drawn[it] for it in shown])
    for fps in (1, 7, 16, 24, 60):
        write_png(tmp_path / "clip.png", clip, {}, fps)
        with Image.open(tmp_path / "clip.png") as opened:
            np.testing.assert_array_equal(read_png(opened), clip)


def test_what_stands_for_a_sample() -> None:
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    np.testing.assert_array_equal(poster(image), image)
    assert frames_of(image).shape == (1, 2, 4, 3)
    clip = np.stack([image, image + 50, image + 100, image + 150, image + 200])
    np.testing.assert_array_equal(poster(clip), clip[2])
    np.testing.assert_array_equal(poster(clip[:4]), clip[2])
