"""A model's images on one sheet."""

from pathlib import Path

import pytest
from PIL import Image

from distillery.images import CAPTION_PX, GAP_PX
from distillery.report.sheet import make_sheet
from runs import Run
from tiny import HEIGHT, WIDTH


def test_a_sheet_has_every_image_of_the_table(run: Run, tmp_path: Path) -> None:
    """Five prompts of one image each: two rows of three, captions below."""
    make_sheet(run.files.samples("teacher"), tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        cell = WIDTH + GAP_PX, HEIGHT + CAPTION_PX + GAP_PX
        assert sheet.size == (GAP_PX + 3 * cell[0], GAP_PX + 2 * cell[1])
        first = sheet.crop((GAP_PX, GAP_PX, GAP_PX + WIDTH, GAP_PX + HEIGHT))
    images = sorted((run.files.sample_folder / "teacher").glob("*/0.png"))
    assert any(first.tobytes() == Image.open(image).convert("RGB").tobytes() for image in images)


def test_a_damaged_image_is_not_shown(run: Run, tmp_path: Path) -> None:
    image = next((run.files.sample_folder / "teacher").glob("*/0.png"))
    image.write_bytes(image.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"0\.png"):
        make_sheet(run.files.samples("teacher"), tmp_path / "sheet.png")
    assert not (tmp_path / "sheet.png").exists()
