"""The image beside a prompt on pages: as the teacher was given it, or what became of its file."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from distillery.files import hash_file
from distillery.input_images import InputImage
from distillery.report.inputs import inputs_of, read_input


def test_it_is_upright_and_scaled_down(tmp_path: Path) -> None:
    """As the teacher was given it, not as it lies in the file."""
    turned = Image.new("RGB", (40, 80), "blue")
    turned.paste("red", (0, 0, 40, 40))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    turned.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    image = InputImage(hash_file(tmp_path / "turned.jpg"), str(tmp_path / "turned.jpg"))
    found = read_input(image, most=20)
    assert (found.width, found.height, found.lost) == (20, 10, "")
    with Image.open(io.BytesIO(found.content)) as opened:
        pixels = np.asarray(opened.convert("RGB"), dtype=int)
    assert pixels.shape == (10, 20, 3)
    left, right = pixels[5, 3], pixels[5, 16]
    assert left[2] > 200 > 60 > left[0], "what was below is on the left"
    assert right[0] > 200 > 60 > right[2]
    assert found.uri.startswith("data:image/webp;base64,")


def test_what_became_of_a_file_is_named(tmp_path: Path) -> None:
    names = ("there.png", "changed.png", "gone.png", "folder.png")
    for name in names:
        Image.new("RGB", (8, 4), "green").save(tmp_path / name)
    paths = [str(tmp_path / name) for name in names]
    table = pd.DataFrame({"image": paths, "image_sha256": [hash_file(Path(it)) for it in paths]})
    Image.new("RGB", (8, 4), "red").save(paths[1])
    for path in paths[2:]:
        Path(path).unlink()
    Path(paths[3]).mkdir()
    found = inputs_of(table, range(4))
    assert [it.lost for it in found] == [
        "",
        f"{paths[1]} has changed since",
        f"{paths[2]} cannot be read",
        f"{paths[3]} cannot be read",
    ]
    assert [bool(it.content) for it in found] == [True, False, False, False]
    assert [it.lost for it in inputs_of(table, [2, 0])] == [found[2].lost, ""]


def test_a_column_that_is_a_note_is_no_image(tmp_path: Path) -> None:
    """`prompts.notes` may list a column `image`, which then has no hashes beside it."""
    assert inputs_of(pd.DataFrame({"image": ["a.png"]}), [0]) == []
