"""What a pipeline gives its network of the image beside a prompt, learnt.

Another image for the same prompt and noise tells which of the network's arguments follow it. They
are stored beside the prompt's parts, and numbered after them: neither VAE nor image encoder is then
needed to ask the network. The stock call is given the image itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from PIL import Image

from distillery.families.encodings import (
    PROMPT,
    TEXTS,
    Encodings,
    Reading,
    Slot,
    is_same,
    part_name,
    watching,
)
from distillery.families.protocol import Conditioning, Pipeline
from distillery.families.recording import NetworkCall, Place, UntraceableError, at, dotted, leaves
from distillery.families.tracing import Entry, LateEntry, Signature

Ask = Callable[[str, Image.Image], NetworkCall]
"""An unguided call for one prompt and image with always the same noise, up to its network."""


@dataclass(frozen=True)
class Beside:
    """An argument that holds the state: of what stands beside it, a part.

    Attributes:
        axis: along which they stand.
        size: of the argument, along it.
        start, end: of the part, along it.
    """

    part: int
    axis: int
    size: int
    start: int
    end: int

    def of(self, prompts: Conditioning) -> torch.Tensor:
        """With zeros in the place of the state."""
        part = prompts[part_name(self.part)]
        shape = [*part.shape]
        shape[self.axis] = self.size
        made = part.new_zeros(shape)
        made.narrow(self.axis, self.start, self.end - self.start).copy_(part)
        return made

    def part_of(self, argument: torch.Tensor) -> torch.Tensor:
        """What stands beside the state."""
        return argument.narrow(self.axis, self.start, self.end - self.start)


@dataclass(frozen=True)
class ImageEncodings(Encodings):
    """`Encodings` of a pipeline that takes an image; `readings` are of the image's parts, too.

    Attributes:
        argument: of the call, that the image is given as.
        images: the network's arguments that follow the image, to their part.
        absent: what negative prompts, which have no image, hold in its place.
    """

    argument: str
    images: Mapping[Place, Reading | Beside]
    absent: Mapping[str, torch.Tensor]

    def parts_of(self, call: NetworkCall) -> dict[str, torch.Tensor]:
        """An image's parts, each (l, ...) on the CPU, by a call for one prompt with it."""
        found = {}
        for place, reading in self.images.items():
            given = at(call.arguments, place)
            part = reading.part_of(given) if isinstance(reading, Beside) else given
            found[part_name(reading.part)] = part[0].reshape(part.shape[1:] or (1,)).cpu().clone()
        return found


def with_images(
    encodings: Encodings,
    signature: Signature,
    state_shape: Sequence[int],
    argument: str,
    ask: Ask,
    images: Sequence[Image.Image],
) -> ImageEncodings:
    """Encodings with what follows the image.

    Args:
        state_shape: (b, *latent).
        argument: of the call.
        images: two that differ.

    Raises UntraceableError where nothing follows the image, or what does cannot be stored.
    """
    base, other = (ask(TEXTS[0], image) for image in images)
    numbers = [
        leaf.part
        for asked in encodings.guided
        for leaf in leaves(asked.result).values()
        if isinstance(leaf, Slot) and leaf.of == PROMPT
    ]
    found: dict[Place, Reading | Beside] = {}
    for place, leaf in leaves(base.arguments).items():
        if is_same(leaf, at(other.arguments, place)):
            continue
        if place not in signature.rows:
            raise UntraceableError(
                f"{dotted(place)} follows the image, and no axis of it counts samples"
            )
        if isinstance(encodings.readings[place], Reading):
            raise UntraceableError(f"{dotted(place)} follows the prompt and the image together")
        part = max(numbers) + 1 + len(found)
        found[place] = (
            _beside(signature.entry, leaf.shape, state_shape, part)
            if place == signature.entry.place
            else Reading(part, "as it is")
        )
    if not found:
        raise UntraceableError(f"nothing that its network is given follows the {argument}")
    own = {it.name: getattr(encodings, it.name) for it in fields(Encodings)}
    made = ImageEncodings(
        **own | {"readings": {**encodings.readings, **found}},
        argument=argument,
        images=found,
        absent={},
    )
    return replace(made, absent={name: part[:0] for name, part in made.parts_of(base).items()})


def _beside(entry: Entry, shape: Sequence[int], state_shape: Sequence[int], part: int) -> Beside:
    """What of the state's own argument is the image's."""
    axis, size = entry.axis, shape[entry.axis]
    if isinstance(entry, LateEntry):
        return Beside(part, axis, size, 0, entry.first)
    return Beside(part, axis, size, state_shape[axis], size)


def check_reads_no_image(pipeline: Pipeline, ask: Ask, images: Sequence[Image.Image]) -> None:
    """Raise UntraceableError where prompts are encoded with their image.

    Args:
        images: two that differ.
    """
    kept: list[dict[Place, Any]] = []
    for image in images:
        with watching(pipeline) as calls:
            ask(TEXTS[0], image)
        kept.append(leaves(calls))
    one, other = kept
    if one.keys() != other.keys() or not all(is_same(one[it], other[it]) for it in one):
        raise UntraceableError("its encode_prompt reads the image: a prompt has no encoding alone")
