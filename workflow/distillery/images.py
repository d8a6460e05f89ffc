"""Images as bytes and as PNG, and contact sheets of previews: one of a moment, one over time."""

import io
from collections.abc import Mapping, Sequence
from math import ceil, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont, ImageSequence, PngImagePlugin

from distillery.config.teacher import FPS
from distillery.files import atomic_path
from distillery.locks import alone, quiet

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")
Pixels = npt.NDArray[np.uint8]
"""An image, (h, w, 3), or a clip, (f, h, w, 3)."""
PNG_COMPRESSION = 1
"""zlib level. A 1024 px image takes 92 ms of a core at level 1 and 241 ms at the default 6."""
CLIP_AXES = 4
NUM_FRAMES = "num_frames"
"""Text in the PNG of a clip."""


def as_bytes(images: "torch.Tensor") -> "torch.Tensor":
    """(..., 3, h, w) in [0, 1] to (..., h, w, 3) uint8, rounded as `numpy_to_pil` of Diffusers."""
    return (images.float() * 255).round().byte().movedim(-3, -1).contiguous()


def write_png(path: Path, image: Pixels, texts: Mapping[str, str], fps: int = FPS) -> None:
    """Write `as_png` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(as_png(image, texts, fps))


def as_png(image: Pixels, texts: Mapping[str, str], fps: int = FPS) -> bytes:
    """A PNG with text chunks for people; of a clip one that plays.

    Args:
        fps: frames of a clip per second.
    """
    chunks = PngImagePlugin.PngInfo()
    for name, text in texts.items():
        chunks.add_text(name, text)  # Unicode where Latin-1 does not do
    playing: dict[str, Any] = {}
    first, *others = map(Image.fromarray, frames_of(image))
    if others:
        chunks.add_text(NUM_FRAMES, str(1 + len(others)))
        playing = {"save_all": True, "append_images": others, "duration": round(1000 / fps)}
    content = io.BytesIO()
    first.save(content, format="PNG", pnginfo=chunks, compress_level=PNG_COMPRESSION, **playing)
    return content.getvalue()


def read_png(opened: Image.Image) -> Pixels:
    """The pixels of a PNG of `write_png`."""
    num_frames = int(getattr(opened, "text", {}).get(NUM_FRAMES, 1))
    if num_frames == 1:
        return np.asarray(opened.convert("RGB"), dtype=np.uint8)
    # Frames that are equal are written once, for as long as they are shown together; where all are,
    # there is one and nothing says how long.
    shown = [
        (np.asarray(frame.convert("RGB"), dtype=np.uint8), frame.info.get("duration", 1))
        for frame in ImageSequence.Iterator(opened)
    ]
    each = sum(duration for _, duration in shown) / num_frames
    return np.stack([frame for frame, lasts in shown for _ in range(round(lasts / each))])


def frames_of(pixels: Pixels) -> Pixels:
    """Those of a clip, or an image as the only one, (f, h, w, 3)."""
    return pixels if pixels.ndim == CLIP_AXES else pixels[None]


def poster(pixels: Pixels) -> Image.Image:
    """What stands for a sample in a still page: an image itself, of a clip its middle frame."""
    frames = frames_of(pixels)
    return Image.fromarray(frames[len(frames) // 2])


SHEET = "sheet.png"
THUMBNAIL_PX = 256
"""Larger images are scaled down to this width; smaller ones stay as they are."""
MAX_COLUMNS = 10
"""Moments on the sheet over time, spread evenly, the first and the last among them."""
GAP_PX = 8
CAPTION_PX = 18
PAPER, INK = (255, 255, 255), (89, 96, 107)


def moment_folder(root: Path, samples_seen: int) -> Path:
    """Where the previews of a moment lie; named as its checkpoint is."""
    return root / f"samples-{samples_seen:012d}"


def is_preview(image: Path, training: str, prompt: str) -> bool:
    """Whether an image is there, of this training (the hash of its recipe) and of this text.

    Only the file's beginning is read; an image gets its name when it is whole.
    """
    try:
        with Image.open(image) as opened:
            info = opened.info
    except (OSError, SyntaxError, ValueError):
        return False
    return (info.get("training"), info.get("prompt")) == (training, prompt)


def find_moments(root: Path, prompts: Mapping[str, str], training: str) -> list[Path]:
    """The folders that hold a training's images of all these prompts, texts by id, in order."""
    return [
        folder
        for folder in sorted(root.glob("samples-*"))
        if all(is_preview(folder / f"{name}.png", training, prompts[name]) for name in prompts)
    ]


def write_sheets(root: Path, samples_seen: int, prompts: Mapping[str, str], training: str) -> None:
    """Write the sheet of a moment, if its images are all there, and the sheet over time.

    `prompts` are texts by id.

    Every process calls this when its images are saved. The lock admits one at a time, so the last
    one sees all images.
    """
    folder, prompt_ids = moment_folder(root, samples_seen), list(prompts)
    with alone(root / ".sheets.lock", quiet):
        moments = find_moments(root, prompts, training)
        if folder not in moments:
            return
        size = ceil(sqrt(len(prompt_ids)))
        rows = [prompt_ids[first : first + size] for first in range(0, len(prompt_ids), size)]
        write_sheet(
            folder / SHEET, [[(name, folder / f"{name}.png") for name in row] for row in rows]
        )
        shown = thin_out(moments, MAX_COLUMNS)
        over_time = [
            [(str(int(moment.name.split("-")[1])), moment / f"{name}.png") for moment in shown]
            for name in prompt_ids
        ]
        write_sheet(root / SHEET, over_time)


def thin_out(items: Sequence[Item], count: int) -> list[Item]:
    """At most `count` of them at equal distances, the first and the last included."""
    if len(items) <= count:
        return list(items)
    last = len(items) - 1
    return [items[number * last // (count - 1)] for number in range(count)]


def write_sheet(path: Path, rows: Sequence[Sequence[tuple[str, Path | io.BytesIO]]]) -> None:
    """Images in rows, each with a caption below; cells have the size of the largest."""
    sizes = [thumbnail(image).size for entries in rows for _, image in entries]
    width, height = (max(sides) for sides in zip(*sizes, strict=True))
    cell = width + GAP_PX, height + CAPTION_PX + GAP_PX
    size = GAP_PX + cell[0] * max(map(len, rows)), GAP_PX + cell[1] * len(rows)
    sheet = Image.new("RGB", size, PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for row, entries in enumerate(rows):
        for column, (caption, image) in enumerate(entries):
            left, top = GAP_PX + column * cell[0], GAP_PX + row * cell[1]
            sheet.paste(thumbnail(image), (left, top))
            draw.text((left, top + height + 2), _fitted(caption, width, font), INK, font)
    with atomic_path(path) as temporary:
        sheet.save(temporary, format="PNG")


def _fitted(caption: str, width: int, font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> str:
    """A caption cut to a width in pixels."""
    while caption and font.getlength(caption) > width:
        caption = caption[:-1]
    return caption


def thumbnail(png: Path | io.BytesIO) -> Image.Image:
    """An image of `THUMBNAIL_PX` at most; of a clip its poster."""
    with Image.open(png) as opened:
        image = poster(read_png(opened))
    image.thumbnail((THUMBNAIL_PX, THUMBNAIL_PX), Image.Resampling.LANCZOS)
    return image
