"""The image beside a prompt, as pages show it: without it nobody can judge an edit."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from distillery.input_images import InputImage, own_images
from distillery.report.html import SMALL_PX, THUMBNAIL_PX, as_webp, data_uri, scaled_down


@dataclass(frozen=True)
class Input:
    """A prompt's image, scaled down, or why there is none to show.

    Attributes:
        content: WebP; empty where the file is not what the run was made from.
        width, height: of it, in pixels.
        lost: why; empty where there is content.
    """

    content: bytes = b""
    width: int = 0
    height: int = 0
    lost: str = ""

    @property
    def uri(self) -> str:
        """With all its bytes."""
        return data_uri(self.content, "image/webp")

    @property
    def is_small(self) -> bool:
        """Whether it is shown enlarged, as samples of its size are."""
        return self.width <= SMALL_PX


def read_input(image: InputImage, most: int = THUMBNAIL_PX) -> Input:
    """An image of at most so many pixels of width.

    Results outlive the files that prompts name, so one that is gone or has changed is no error.
    """
    try:
        opened = image.open()
    except ValueError:
        return Input(lost=f"{image.path} has changed since")
    except OSError:
        return Input(lost=f"{image.path} cannot be read")
    size = scaled_down(opened.size, most)
    return Input(as_webp([opened], size), *size)


def inputs_of(table: pd.DataFrame, rows: Sequence[int], most: int = THUMBNAIL_PX) -> list[Input]:
    """Those of some rows of a table of prompts or samples; none where prompts have no images."""
    images = own_images(table.iloc[list(rows)])
    return [read_input(image, most) for image in images if image is not None]
