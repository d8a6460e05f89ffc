"""Images beside prompts, for pipelines that take one: found, checked, and opened as they were."""

import hashlib
import io
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pandas as pd
from PIL import Image, ImageOps, UnidentifiedImageError

from distillery.noise import shorten

IMAGE = "image"
"""The column of a prompt file: a path, from the file's own folder."""
SHA256 = "image_sha256"
"""The column beside it in tables: of the file's bytes. A table without it has no images."""
DEEP = ("I", "F")
"""Modes of Pillow with more than 8 bits a channel, and beginnings of others' names. `convert` cuts
off their values above 255."""
URL = re.compile(r"[a-z][a-z0-9+.-]+://|data:", re.IGNORECASE)
MAX_THREADS = 8
"""Pillow decodes without Python's lock."""


@dataclass(frozen=True)
class InputImage:
    """An image file; equal where the bytes are."""

    sha256: str
    path: str = field(compare=False)

    def open(self) -> Image.Image:
        """As `diffusers.utils.load_image` reads it: upright, RGB.

        Raises ValueError for other bytes than the prompts were read with.
        """
        content = Path(self.path).read_bytes()
        if _hash(content) != self.sha256:
            raise ValueError(
                f"the image {self.path} has changed since the prompts were read: start the run "
                "again, which reads them again"
            )
        return _decode(content)


def own_images(table: pd.DataFrame) -> list[InputImage | None]:
    """Each row's image; None where the table has none."""
    if SHA256 not in table:
        return [None] * len(table)
    return [InputImage(*pair) for pair in zip(table[SHA256], table[IMAGE], strict=True)]


def add_images(
    table: pd.DataFrame, folder: Path, size: tuple[int, int] | None
) -> list[tuple[int, str]]:
    """Make paths of the prompt file those from here, and hash the files.

    Args:
        size: height and width that all must have; None: any.

    Returns (row, problem) of every row whose image cannot be used.
    """
    names = table[IMAGE].tolist()
    paths = {it: str(folder / it) for it in names if _is_path(it)}
    with ThreadPoolExecutor(MAX_THREADS) as pool:
        found = list(pool.map(partial(_check, size=size), paths, paths.values()))
    checked = dict(zip(paths, found, strict=True))
    told = [checked[it] if _is_path(it) else ("", _no_path(it)) for it in names]
    table[SHA256] = [digest for digest, _ in told]
    table[IMAGE] = [paths[it] if _is_path(it) else "" for it in names]
    return [(row, problem) for row, (_, problem) in enumerate(told) if problem]


def _is_path(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _no_path(value: object) -> str:
    is_missing = value is None or value is pd.NA or isinstance(value, str) or value != value
    what = "is missing" if is_missing else f"is {value!r:.60}, and no path"
    return f"{IMAGE} {what}: give every row an image, or remove the column"


def _check(name: str, path: str, size: tuple[int, int] | None) -> tuple[str, str]:
    """The hash of a file, and why it is of no use; "" where it is.

    Args:
        name: of the file in the table.
    """
    if not Path(path).is_file():
        return "", _no_file(name, path)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        return "", f"the image {path!r} cannot be read: {error.strerror}"
    if not content:
        return "", f"the image {path!r} is empty: write it again"
    try:
        with Image.open(io.BytesIO(content)) as image:
            image.verify()
            mode = image.mode
        pixels = _decode(content)
    except UnidentifiedImageError:  # it names the bytes by their address
        return "", f"the image {path!r} is of no format that Pillow reads: write it again"
    except Exception as error:  # whatever Pillow raises of damaged bytes
        return "", f"the image {path!r} cannot be decoded ({error}): write it again"
    if mode.startswith(DEEP):
        return "", (
            f"the image {path!r} has more than 8 bits a channel (Pillow's mode {mode}), and all "
            "above 255 would be white: scale it to 0 to 255, and save it as 8 bits a channel"
        )
    if size is not None and (pixels.height, pixels.width) != size:
        return "", (
            f"the image {path!r} is {pixels.height} pixels high and {pixels.width} wide, and the "
            f"run's are {size[0]} and {size[1]}: crop or scale it to that"
        )
    return _hash(content), ""


def _no_file(name: str, path: str) -> str:
    """What is wrong with a path that leads to none."""
    if URL.match(name):
        shown = shorten(name)
        return f"the image {shown} is a URL, and only files are read: save it, and give its path"
    if name.startswith("~"):
        return f"the image {name!r} does not exist: ~ is no folder here, write the whole path"
    what = "is no file" if Path(path).exists() else "does not exist"
    return f"the image {path!r} {what}"


def _decode(content: bytes) -> Image.Image:
    with Image.open(io.BytesIO(content)) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


@dataclass(frozen=True)
class LeftOut:
    """Paths of images of which not all is read."""

    transparent: list[str]
    animated: list[str]


def find_left_out(table: pd.DataFrame) -> LeftOut:
    """The images of a table with pixels that are not opaque, and with frames after the first."""
    paths = [image.path for image in dict.fromkeys(own_images(table)) if image is not None]
    with ThreadPoolExecutor(MAX_THREADS) as pool:
        found = list(zip(paths, pool.map(_left_out, paths), strict=True))
    transparent = [path for path, (is_transparent, _) in found if is_transparent]
    return LeftOut(transparent, [path for path, (_, is_animated) in found if is_animated])


def _left_out(path: str) -> tuple[bool, bool]:
    with Image.open(path) as image:
        # A photograph's second picture in MPO is a thumbnail or a map of its brightness.
        is_animated = image.format != "MPO" and getattr(image, "n_frames", 1) > 1
        if not image.has_transparency_data:
            return False, is_animated
        opacities = image.convert("RGBA").getchannel("A").histogram()
    return any(opacities[:255]), is_animated


def has_changed_images(table: pd.DataFrame, made_ns: int) -> bool:
    """Whether a table's images are no longer what it says; those that are gone are told elsewhere.

    Args:
        made_ns: when the table was made. Only files with a later change time are read, which no
            program can set back.
    """
    images = [image for image in dict.fromkeys(own_images(table)) if image is not None]
    there = [image for image in images if Path(image.path).is_file()]
    later = [image for image in there if Path(image.path).stat().st_ctime_ns > made_ns]
    return any(_hash(Path(image.path).read_bytes()) != image.sha256 for image in later)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
