"""What pages are made with: templates that escape users' text, our own files, images, links."""

import base64
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from distillery.images import Pixels, frames_of, poster, read_png, thin_out

TEMPLATES = Path(__file__).resolve().parent / "templates"
THUMBNAIL_PX = 400
"""Larger ones are scaled down to this width for the report."""
MAX_INLINE_BYTES = 48 * 1024
"""A file up to this size is inlined as it is, and a clip is scaled down to it: 170 of them, as a
report of four models has, are 13 MB of text with their posters."""
MAX_FRAMES = 16
"""Of a clip that is coded anew, at equal distances."""
SMALL_PX = 160
"""Images up to this width are shown at twice their size, their pixels kept square."""
LEAST_PX = 64
"""A clip is scaled down to this width at the most."""
ICON = "data:image/svg+xml," + quote(
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" '
    'rx="3" fill="#15a"/><path d="M3 4h10L9.5 8.5V13h-3V8.5z" fill="#fff"/></svg>'
)
"""Of a page: a funnel."""


def page_environment() -> Environment:
    """Templates by their path below `TEMPLATES`; prompts are users' text, so all is escaped."""
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def own_file(name: str) -> Markup:
    """A style sheet or a script of ours, to be put into a page as it is."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))  # noqa: S704 (ours)


@dataclass(frozen=True)
class Inlined:
    """An image, or a clip that plays, in a page.

    Attributes:
        uri: with all its bytes.
        width, height: at which it is shown, in pixels.
        still: of a clip its poster, for paper and for who wants nothing to move.
    """

    uri: str
    width: int
    height: int
    still: str | None = None


def inline(content: bytes, fps: int, most: int = THUMBNAIL_PX) -> Inlined:
    """An image or a clip as a data URI.

    Small files go in as they are; larger ones are scaled down to a width and coded as WebP, a clip
    with fewer frames that last longer.

    Args:
        content: of its file, a PNG.
        fps: frames of a clip per second.
        most: pixels of its width.
    """
    with Image.open(io.BytesIO(content)) as opened:
        pixels = read_png(opened)
    frames = frames_of(pixels)
    own_height, own_width = frames.shape[1:3]
    size = scaled_down((own_width, own_height), most)
    as_it_is = len(content) <= MAX_INLINE_BYTES and own_width <= most
    is_clip = len(frames) > 1
    if as_it_is:
        uri = data_uri(content, "image/png")
    elif is_clip:
        uri = data_uri(_playing(frames, size, fps), "image/webp")
    else:
        uri = data_uri(as_webp([poster(pixels)], size), "image/webp")
    still = data_uri(as_webp([poster(pixels)], size, 60), "image/webp") if is_clip else None
    return Inlined(uri, size[0], size[1], still)


def scaled_down(size: tuple[int, int], most: int) -> tuple[int, int]:
    """Width and height of an image that is to have at most so much width."""
    width, height = size
    return (most, max(1, round(height * most / width))) if width > most else size


def _playing(frames: Pixels, size: tuple[int, int], fps: int) -> bytes:
    """A clip as WebP of at most `MAX_INLINE_BYTES`, scaled down until it has no more."""
    chosen = thin_out(range(len(frames)), MAX_FRAMES)
    shown = [Image.fromarray(frames[number]) for number in chosen]
    each_ms = round(1000 * len(frames) / fps / len(shown))
    while True:
        content = as_webp(shown, size, 75, each_ms)
        share = 0.9 * (MAX_INLINE_BYTES / len(content)) ** 0.5
        if len(content) <= MAX_INLINE_BYTES or size[0] <= LEAST_PX:
            return content
        width = max(LEAST_PX, int(size[0] * share))
        size = width, max(1, round(size[1] * width / size[0]))


def as_webp(
    frames: Sequence[Image.Image], size: tuple[int, int], quality: int = 85, each_ms: int = 0
) -> bytes:
    """An image, or several that play again and again."""
    content = io.BytesIO()
    first, *others = (frame.resize(size, Image.Resampling.LANCZOS) for frame in frames)
    if others:
        playing = {"save_all": True, "append_images": others, "duration": each_ms, "loop": 0}
        first.save(content, "WEBP", quality=quality, **playing)
    else:
        first.save(content, "WEBP", quality=quality)
    return content.getvalue()


def data_uri(content: bytes, media_type: str) -> str:
    """Bytes as a URI that an HTML file can hold."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"


def link_to(path: Path, folder: Path) -> str:
    """A relative link from `folder`, percent-encoded."""
    return quote(Path(os.path.relpath(path, folder)).as_posix())
