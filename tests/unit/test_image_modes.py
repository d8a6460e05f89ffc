"""All that Pillow writes: what is read of it has the right pixels, or it is refused."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from distillery.input_images import own_images
from distillery.planning.prompts import on_images
from distillery.prompts import read_prompts
from prompt_texts import write

MODES = (
    "1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV",
    "I", "F", "I;16", "I;16B", "I;16L", "I;16N",
)  # fmt: skip
LOSSLESS = ("PNG", "TIFF", "PPM", "BMP", "GIF", "TGA", "SGI", "PCX", "ICO", "DDS", "QOI")
TOO_DEEP = r"line 2: .* has more than 8 bits a channel .*: scale it to 0 to 255"
DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
OFF = {"YCbCr": 1, "LAB": 2, "CMYK": 1}
"""How far their colours may be: to round them is up to the decoder."""
SHAPE = (4, 8)
RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, SHAPE, np.uint8)
COLOURS = RNG.integers(0, 256, (*SHAPE, 3), np.uint8)
ALPHA = np.full(SHAPE, 255, np.uint8)
BLACK = 51
NONE = np.zeros(SHAPE, np.uint8)


def luminance(red: np.ndarray, blue: np.ndarray, luma: np.ndarray) -> np.ndarray:
    """RGB of luma and both chromas, as JPEG defines it."""
    green = luma - 0.344136 * (blue - 128) - 0.714136 * (red - 128)
    found = [luma + 1.402 * (red - 128), green, luma + 1.772 * (blue - 128)]
    return np.stack(found, -1).round().clip(0, 255)


def grey_of_lightness() -> np.ndarray:
    """sRGB of neutral colours in CIELAB, whose lightness is `GREY`."""
    lightness = GREY / 255 * 100
    linear = np.where(lightness > 8, ((lightness + 16) / 116) ** 3, lightness / 903.3)
    curved = np.where(linear > 0.0031308, 1.055 * linear ** (1 / 2.4) - 0.055, 12.92 * linear)
    return np.stack([curved * 255] * 3, -1)


def made(mode: str) -> tuple[Image.Image, np.ndarray]:
    """An image of a mode, and its colours by the definition of the mode."""
    grey = np.stack([GREY] * 3, -1)
    if mode in DEEP:
        # Ends of the range at least are no 8 bits.
        values = np.linspace(0, 1 if mode == "F" else 65535, GREY.size).reshape(SHAPE)
        kind = {"F": np.float32, "I": np.int32}.get(mode, np.dtype(">u2" if "B" in mode else "<u2"))
        content = values.astype(kind).tobytes()
        return Image.frombytes(mode, SHAPE[::-1], content), np.empty(0)
    if mode == "1":
        bits = GREY > 127
        return Image.fromarray(bits), np.stack([bits * 255] * 3, -1)
    if mode in ("P", "PA"):
        image = Image.frombytes("P", SHAPE[::-1], (GREY // 16).tobytes())
        palette = RNG.integers(0, 256, (16, 3), np.uint8)
        image.putpalette(palette.tobytes())
        return image.convert(mode) if mode == "PA" else image, palette[GREY // 16]
    bands = {"L": [GREY], "LA": [GREY, ALPHA], "La": [GREY, ALPHA], "LAB": [GREY, NONE, NONE]}
    colours = [COLOURS[..., place] for place in range(3)]
    fourth = ALPHA - (255 - BLACK) if mode == "CMYK" else ALPHA
    of_colours = [*colours, fourth][: len(Image.new(mode, (1, 1)).getbands())]
    content = np.stack(bands.get(mode, of_colours), -1)
    image = Image.frombytes(mode, SHAPE[::-1], content.tobytes())
    if mode == "LAB":
        return image, grey_of_lightness()
    if mode in bands:
        return image, grey
    if mode == "CMYK":
        return image, (255 - COLOURS.astype(float)) * (255 - BLACK) / 255
    if mode == "YCbCr":
        luma, blue, red = (it.astype(float) for it in colours)
        return image, luminance(red, blue, luma)
    return image, COLOURS


def written() -> Iterator[tuple[str, str]]:
    """Each mode, and the formats that take it as it is."""
    for mode in MODES:
        for kind in LOSSLESS:
            content = io.BytesIO()
            try:
                made(mode)[0].save(content, kind)
                with Image.open(io.BytesIO(content.getvalue())) as image:
                    kept = image.mode.split(";")[0] == mode.split(";")[0]
            except Exception:  # of any class: the format has no such mode
                continue
            if kept:
                yield mode, kind


PAIRS = list(written())


def read(folder: Path, image: Image.Image, kind: str = "PNG", **options: object) -> pd.DataFrame:
    image.save(folder / f"it.{kind.lower()}", kind, **options)
    return read_prompts(write(folder, f"prompt,image\na,it.{kind.lower()}\n"))


def test_every_mode_that_can_be_saved_is_tried() -> None:
    assert {mode for mode, _ in PAIRS} >= {*MODES} - {"La", "RGBa", "RGBX", "HSV", "I;16N"}


@pytest.mark.parametrize(("mode", "kind"), PAIRS)
def test_pixels_are_right_or_the_image_is_refused(tmp_path: Path, mode: str, kind: str) -> None:
    image, colours = made(mode)
    if mode in DEEP:
        with pytest.raises(ValueError, match=TOO_DEEP):
            read(tmp_path, image, kind)
        return
    (found,) = own_images(read(tmp_path, image, kind))
    assert found is not None
    off = np.asarray(found.open()).astype(int) - colours
    assert abs(off).max() <= OFF.get(mode, 0)


def test_16_bits_of_grey_are_refused_in_other_formats_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=TOO_DEEP):
        read(tmp_path, made("I;16")[0], "PPM")
    if "JPEG2000" in Image.SAVE:
        with pytest.raises(ValueError, match=TOO_DEEP):
            read(tmp_path, made("I;16")[0], "JPEG2000")


def noted(*tables: pd.DataFrame) -> list[str]:
    return [str(note) for note in on_images(dict(zip(("train", "eval"), tables, strict=False)))]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_told_once(tmp_path: Path, mode: str) -> None:
    image = made(mode)[0]
    assert noted(read(tmp_path, image)) == []
    options = {}
    if mode == "P":
        options["transparency"] = int(GREY[0, 0]) // 16
    else:
        image.putalpha(Image.fromarray(ALPHA - GREY))
    table = read(tmp_path, image, **options)
    (told,) = noted(table, table)
    assert told.startswith(f"1 image has transparent pixels, such as {str(tmp_path / 'it.png')!r}")


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_frames_after_the_first_are_told(tmp_path: Path, kind: str) -> None:
    first = made("RGB")[0]
    assert noted(read(tmp_path, first, kind)) == []
    table = read(tmp_path, first, kind, save_all=True, append_images=[first.rotate(180)])
    (told,) = noted(table)
    assert told.startswith("1 image has several frames")
    assert told.endswith("of which the first is read: save the one that is meant")


def test_a_photographs_thumbnail_is_no_frame(tmp_path: Path) -> None:
    first = made("RGB")[0]
    table = read(tmp_path, first, "MPO", save_all=True, append_images=[first])
    assert noted(table) == []
