"""Images beside prompts: what is refused, by its line, and what is read of the others."""

import os
import re
from pathlib import Path

import pandas as pd
import pytest
from diffusers.utils import load_image
from PIL import Image

from distillery.input_images import InputImage, has_changed_images, own_images
from distillery.prompts import made_of_rows, read_prompts
from distillery.store.embeddings import distinct_texts, members_of
from prompt_texts import refused, write
from traced.pictured import save_image

SIZE = (8, 4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With two images, the second also under another name, and what is none."""
    for number, name in enumerate(("one", "two")):
        save_image(tmp_path / f"images/{name}.png", number, *SIZE)
    (tmp_path / "images/copy.png").write_bytes((tmp_path / "images/two.png").read_bytes())
    whole = (tmp_path / "images/one.png").read_bytes()
    (tmp_path / "images/cut.png").write_bytes(whole[: len(whole) // 2])
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    (tmp_path / "images/flipped.png").write_bytes(flipped)
    (tmp_path / "images/text.png").write_text("no image")
    (tmp_path / "images/empty.png").touch()
    save_image(tmp_path / "images/large.png", 0, 8, 8)
    return tmp_path


def read(folder: Path, *images: str) -> pd.DataFrame:
    rows = "".join(f"p{row},a prompt,{image}\n" for row, image in enumerate(images))
    return read_prompts(write(folder, f"prompt_id,prompt,image\n{rows}"), size=SIZE)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("images/none.png", "the image '.*none.png' does not exist"),
        ("images", "the image '.*images' is no file"),
        ("images/text.png", "the image '.*text.png' is of no format that Pillow reads: write"),
        ("images/cut.png", "the image '.*cut.png' cannot be decoded"),
        ("images/flipped.png", "the image '.*flipped.png' cannot be decoded"),
        (
            "images/large.png",
            "the image '.*large.png' is 8 pixels high and 8 wide, and the run's are 8 and 4: crop",
        ),
        ("images/one.png ", "the image '.*one.png ' does not exist"),
        ("images/empty.png", "the image '.*empty.png' is empty: write it again"),
        ("https://a.org/x.png", "the image 'https://a.org/x.png' is a URL, and only files are"),
        ("file:///tmp/x.png", "the image 'file:///tmp/x.png' is a URL, and only files are"),
        ("data:image/png;base64", "the image 'data:image/png;base64' is a URL, and only files"),
        ("~/x.png", "the image '~/x.png' does not exist: ~ is no folder here, write the whole"),
        ("", "image is missing: give every row an image"),
        ("  ", "image is missing: give every row"),
    ],
)
def test_an_image_that_cannot_be_used_is_named_with_its_line(
    folder: Path, image: str, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"line 3: {message}") as error:
        read(folder, "images/one.png", image, "images/two.png")
    assert not re.search("0x[0-9a-f]{4}", str(error.value)), "an address in memory"
    assert "line 2" not in str(error.value)
    assert "line 4" not in str(error.value)


def test_what_is_no_text_is_no_path(folder: Path) -> None:
    lines = '{"prompt": "a", "image": 3}\n{"prompt": "b", "image": null}\n'
    message = refused(write(folder, lines, "prompts.jsonl"))
    assert "line 1: image is 3.0, and no path" in message
    assert "line 2: image is missing" in message


def test_images_for_a_teacher_without_are_refused(folder: Path) -> None:
    path = write(folder, "prompt,image\na,images/one.png\n")
    with pytest.raises(ValueError, match=r"a column image, and .* set teacher\.trace\.image"):
        read_prompts(path, takes_images=False)
    kept = read_prompts(path, notes=["image"], takes_images=False)
    assert kept["image"].tolist() == ["images/one.png"]
    assert own_images(kept) == [None]


def test_the_hash_is_not_the_users(folder: Path) -> None:
    path = write(folder, "prompt,image,image_sha256\na,images/one.png,1\n")
    assert "image_sha256, which the tables of samples use" in refused(path)


def test_paths_are_from_the_prompt_file_or_absolute(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    there = Path(folder.name)
    table = read(there, "images/one.png", str(folder / "images/two.png"))
    assert table["image"].tolist() == [
        str(there / "images/one.png"),
        str(folder / "images/two.png"),
    ]


def test_equal_bytes_are_one_image(folder: Path) -> None:
    table = read(folder, "images/one.png", "images/two.png", "images/copy.png")
    one, two, copy = own_images(table)
    assert one != two
    assert two == copy
    texts = distinct_texts(table, None)
    assert len(texts.texts) == 3
    assert texts.prompt_of_row == [1, 2, 2]
    made_of = made_of_rows(table, guided=False)
    assert made_of[0] != made_of[1] == made_of[2]
    other = read(folder, "images/two.png", "images/two.png", "images/two.png")
    assert members_of(distinct_texts(other, None).texts) != members_of(texts.texts[:2])


@pytest.mark.parametrize("mode", ["RGBA", "L", "P"])
def test_pixels_are_those_that_diffusers_loads(folder: Path, mode: str) -> None:
    path = folder / "images/other.png"
    Image.open(folder / "images/one.png").convert(mode).save(path)
    (image,) = own_images(read(folder, "images/other.png"))
    assert image is not None
    assert image.open().tobytes() == load_image(str(path)).tobytes()


def test_an_image_lies_as_its_camera_says(folder: Path) -> None:
    path = folder / "images/turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: turned by 90 degrees
    Image.open(folder / "images/one.png").rotate(90, expand=True).save(path, exif=exif)
    (image,) = own_images(read(folder, "images/turned.jpg"))
    assert image is not None
    assert image.open().size == SIZE[::-1]


def test_an_image_that_has_changed_is_not_used(folder: Path) -> None:
    table = read(folder, "images/one.png", "images/two.png")
    path = folder / "images/one.png"
    made_ns = path.stat().st_ctime_ns - 1
    assert not has_changed_images(table, made_ns)
    save_image(path, 7, *SIZE)
    os.utime(path, ns=(1, 1))  # an old date hides nothing
    assert has_changed_images(table, made_ns)
    (image, _) = own_images(table)
    assert isinstance(image, InputImage)
    with pytest.raises(ValueError, match=r"one\.png has changed since the prompts were read"):
        image.open()
