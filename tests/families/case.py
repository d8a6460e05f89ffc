"""What a family's tests need to know of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distillery.families import Setting, Size, family_named


@dataclass(frozen=True)
class FamilyCase:
    """A tiny teacher of one family.

    Attributes:
        name: of the test.
        family: of the adapter.
        make: saves the pipeline to a folder; random weights, always the same.
        height, width, num_frames: what it makes.
        max_tokens: `teacher.max_sequence_length`.
        steps: of the teacher.
        guidance_scale: of the targets.
        guidance_scale_2: of a second network; None: the same.
        guidance_argument: the stock call's, where it is not the family's.
        no_negative: what a stock call that does not guide without a negative prompt is given.
        teacher: further settings of the section `teacher`.
        denoiser_at: name of the component that the stock pipeline calls at a timestep.
        masks: denoiser's arguments of tokens, to the argument that is 0 where they do not count.
    """

    name: str
    family: str
    make: Callable[[Path], None]
    height: int = 32
    width: int = 32
    num_frames: int = 1
    max_tokens: int | None = None
    steps: int = 4
    guidance_scale: float = 3.0
    guidance_scale_2: float | None = None
    guidance_argument: str | None = None
    no_negative: str | None = None
    teacher: Mapping[str, Any] = field(default_factory=dict)
    student: Mapping[str, Any] = field(default_factory=dict)
    denoiser_at: Callable[[float], str] = lambda _timestep: "transformer"
    masks: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> Size:
        """Of a sample."""
        return Size(self.height, self.width, self.num_frames)

    @property
    def in_call(self) -> dict[str, int]:
        """Its size as arguments of the stock call."""
        frames = family_named(self.family).frames(self.size)
        return {"height": self.height, "width": self.width, **frames}

    @property
    def length(self) -> int:
        """Tokens of a prompt."""
        return self.max_tokens or family_named(self.family).max_sequence_length

    @property
    def scale_argument(self) -> str:
        """Of the stock call, its guidance scale."""
        return self.guidance_argument or family_named(self.family).guidance_argument

    @property
    def guidance(self) -> dict[str, Any]:
        """The teacher's, as arguments of the stock call."""
        found = {
            self.scale_argument: self.guidance_scale,
            "guidance_scale_2": self.guidance_scale_2,
            "negative_prompt": self.teacher.get("negative_prompt", self.no_negative),
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def stock_call(self) -> dict[str, Any]:
        """Arguments of the teacher's call for any prompt and noise."""
        options = family_named(self.family).call_options(self.length)
        return {**self.in_call, "num_inference_steps": self.steps, **options, **self.guidance}

    @property
    def setting(self) -> Setting:
        """Of the targets."""
        return Setting(self.size, self.guidance_scale, self.guidance_scale_2)
