"""One adapter file per model family, behind one protocol."""

from distillery.families.protocol import Conditioning, Family, Request, Schedule
from distillery.families.wan import Wan

__all__ = ["Conditioning", "Family", "Request", "Schedule", "family_named", "family_of"]

FAMILIES: tuple[Family, ...] = (Wan(),)


def family_of(pipeline_class: str) -> Family:
    """The family that a pipeline class (`_class_name` in model_index.json) belongs to."""
    for family in FAMILIES:
        if pipeline_class in family.pipeline_classes:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.pipeline_classes)
    raise ValueError(
        f"no family for the pipeline class {pipeline_class!r}; known: {known}. "
        "docs/design.md says what an adapter in workflow/distillery/families/ must do"
    )


def family_named(name: str) -> Family:
    """The family of a stored recipe."""
    for family in FAMILIES:
        if family.name == name:
            return family
    raise ValueError(f"no family {name!r}; known: {', '.join(f.name for f in FAMILIES)}")
