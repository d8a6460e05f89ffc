"""What pages are made with: templates that escape users' text, our own files, images, links."""

import base64
import io
import os
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

TEMPLATES = Path(__file__).resolve().parent / "templates"
THUMBNAIL_PX = 400
"""Larger ones are scaled down to this width for the report."""
MAX_INLINE_BYTES = 48 * 1024
"""A file up to this size is inlined as it is."""


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


def inline(path: Path, image: Image.Image, most: int = THUMBNAIL_PX) -> tuple[str, int, int]:
    """An image as a data URI with its width and height in pixels.

    Small files go in as they are; larger ones are scaled down to a width and coded as WebP.
    """
    if path.stat().st_size <= MAX_INLINE_BYTES and image.width <= most:
        return data_uri(path.read_bytes(), "image/png"), image.width, image.height
    height = max(1, round(image.height * most / image.width))
    size = (most, height) if image.width > most else image.size
    content = io.BytesIO()
    image.resize(size, Image.Resampling.LANCZOS).save(content, "WEBP", quality=85)
    return data_uri(content.getvalue(), "image/webp"), *size


def data_uri(content: bytes, media_type: str) -> str:
    """Bytes as a URI that an HTML file can hold."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"


def link_to(path: Path, folder: Path) -> str:
    """A relative link from `folder`, percent-encoded."""
    return quote(Path(os.path.relpath(path, folder)).as_posix())
