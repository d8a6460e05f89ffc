"""One colour and shape for each part that a model plays, on every page and in every chart."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from distillery.config.samples import SampledModel
from distillery.measures.manifests import ModelSamples
from distillery.report.verdict import TEACHER, Roles

Part = Literal[
    "student", "reference", "teacher, guided", "teacher, no guidance", "untrained", "other"
]


@dataclass(frozen=True)
class Mark:
    """How a part is drawn.

    Attributes:
        colour: the class of the style sheet, and its variable with two dashes before.
        shape: in a chart.
        glyph: the same shape in text.
        dash: of its line, lengths drawn and left out.
    """

    colour: str
    shape: str
    glyph: str
    dash: tuple[int, ...]


MARKS: Mapping[Part, Mark] = {
    "student": Mark("c0", "diamond", "\N{BLACK DIAMOND}", (1, 0)),
    "reference": Mark("c3", "square", "\N{BLACK SQUARE}", (1, 0)),
    "teacher, guided": Mark("c7", "triangle-up", "\N{BLACK UP-POINTING TRIANGLE}", (8, 3)),
    "teacher, no guidance": Mark("c4", "triangle-down", "\N{BLACK DOWN-POINTING TRIANGLE}", (3, 3)),
    "untrained": Mark("c1", "cross", "\N{HEAVY GREEK CROSS}", (8, 3, 2, 3)),
    "other": Mark("c6", "circle", "\N{BLACK CIRCLE}", (2, 6)),
}


def usual_part(model: ModelSamples) -> Part:
    """What a model is by its usual name, where no configuration tells its role."""
    by_name: Mapping[str, Part] = {
        "student": "student", "untrained": "untrained", TEACHER: "reference"
    }  # fmt: skip
    if model.model in by_name:
        return by_name[model.model]
    if not model.model.startswith(TEACHER):
        return "other"
    return "teacher, guided" if model.guidance_scale > 1 else "teacher, no guidance"


def part_of(
    name: str, models: Mapping[str, SampledModel], quality: Mapping[str, Any], roles: Roles
) -> Part:
    """What a scored model is: by its role, else by how the teacher samples.

    Args:
        name: of the model.
        models: as configured.
        quality: quality.json, which has the guidance of each.
        roles: of the run.
    """
    if name == roles.student:
        return "student"
    if name == roles.reference:
        return "reference"
    if name == roles.untrained:
        return "untrained"
    if models[name].source != "teacher":
        return "other"
    return (
        "teacher, guided"
        if quality["models"][name]["guidance_scale"] > 1
        else ("teacher, no guidance")
    )
