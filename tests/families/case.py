"""What a family's tests need to know of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class FamilyCase:
    """A tiny teacher of one family.

    Attributes:
        name: of the test.
        family: of the adapter.
        make: saves the pipeline to a folder; random weights, always the same.
        height, width: pixels it makes.
        max_tokens: `teacher.max_sequence_length`.
        steps: of the teacher.
        guidance_scale: of the targets.
        teacher: further settings of the section `teacher`.
        denoiser_at: name of the component that the stock pipeline calls at a timestep.
    """

    name: str
    family: str
    make: Callable[[Path], None]
    height: int = 32
    width: int = 32
    max_tokens: int | None = None
    steps: int = 4
    guidance_scale: float = 3.0
    teacher: Mapping[str, Any] = field(default_factory=dict)
    student: Mapping[str, Any] = field(default_factory=dict)
    denoiser_at: Callable[[float], str] = lambda _timestep: "transformer"
