"""The size of a sample: pixels, and frames of a clip."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

from distillery.notes import Note, error, refuse


class Sized(Protocol):
    """A section or a recipe that has a size."""

    @property
    def height(self) -> int:
        """Pixels."""
        ...

    @property
    def width(self) -> int:
        """Pixels."""
        ...

    @property
    def num_frames(self) -> int:
        """1 of an image."""
        ...


@dataclass(frozen=True)
class Size:
    """Of one sample, in pixels; a clip has several frames."""

    height: int
    width: int
    num_frames: int = 1

    @classmethod
    def of(cls, settings: Sized) -> Self:
        """What the section `teacher` says, or a recipe."""
        return cls(settings.height, settings.width, settings.num_frames)

    def __str__(self) -> str:
        """In words, for messages."""
        frames = f", {self.num_frames} frames" if self.is_clip else ""
        return f"{self.height} pixels high and {self.width} wide{frames}"

    @property
    def is_clip(self) -> bool:
        """Whether it has frames to play."""
        return self.num_frames > 1

    def each(self, own: Sequence[tuple[int, int] | None]) -> list[Self]:
        """Of prompts that may have a height and width of their own; this is the others'."""
        return [self if it is None else replace(self, height=it[0], width=it[1]) for it in own]


def check_size(
    size: Size, height_multiple: int, width_multiple: int | None = None, frames_multiple: int = 1
) -> None:
    """Raise ValueError with the nearest good size unless each is a multiple of its factor.

    Args:
        width_multiple: None: as the height's.
        frames_multiple: of the frames after the first, which latents have alone.
    """
    multiples = {"height": height_multiple, "width": width_multiple or height_multiple}
    refuse([*_on_pixels(size, multiples), *_on_frames(size.num_frames, frames_multiple)])


def check_positions(size: Size, largest: Mapping[str, int]) -> None:
    """Raise ValueError with the largest that goes, where a network's positions end before a size
    does.

    Args:
        largest: of height and width, and of `num_frames` where the network has positions for them.
    """
    refuse(
        error(
            f"teacher.{name} is {getattr(size, name)}",
            f": this model's positions end at {end}",
            f"use at most {end}",
        )
        for name, end in largest.items()
        if getattr(size, name) > end
    )


def latent_frames(num_frames: int, multiple: int) -> int:
    """Of a clip, of which the first frame has latents of its own."""
    return (num_frames - 1) // multiple + 1


def _on_pixels(size: Size, multiples: Mapping[str, int]) -> Iterator[Note]:
    for name, multiple in multiples.items():
        pixels = getattr(size, name)
        if pixels % multiple:
            yield error(
                f"teacher.{name} is {pixels}",
                f": this model needs a multiple of {multiple}",
                f"use {max(round(pixels / multiple), 1) * multiple}",
            )


def _on_frames(num_frames: int, multiple: int) -> Iterator[Note]:
    if (num_frames - 1) % multiple:
        yield error(
            f"teacher.num_frames is {num_frames}",
            f": this model makes 1 and {multiple} more, or {multiple} times as many more",
            f"use {max(round((num_frames - 1) / multiple), 1) * multiple + 1}",
        )
