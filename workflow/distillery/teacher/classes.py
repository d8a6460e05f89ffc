"""The classes that model_index.json names: of a known family, and without code of their own."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from distillery.families import FAMILIES, family_of
from distillery.files import read_json

LIBRARIES = ("diffusers", "transformers")
OTHER_USES = ("Img2Img", "Inpaint")
"""What names of classes have more that take the same networks for another use."""


def check_classes(path: Path, index: Mapping[str, Any], components: Iterable[str]) -> None:
    """Raise ValueError unless a pipeline is of a known family and made of known classes.

    Args:
        path: of the model_index.json.
        index: what it holds.
        components: names of those that are present.
    """
    pipeline = index.get("_class_name", "")
    if not isinstance(pipeline, str):
        raise ValueError(_own_code(path, "_class_name", pipeline))
    for name in components:
        if not _is_known(index[name][0]):
            raise ValueError(_own_code(path, name, index[name]))
    other = _text_to_image_class(path.parent, pipeline, index)
    if other:
        raise ValueError(
            f"{path} names the class {pipeline}, which begins with an image; {other} has the same "
            "networks and begins with noise: write it there as _class_name"
        )
    family_of(pipeline)


def _is_known(library: str) -> bool:
    """Whether a component's class comes from an installed library, or from one of its modules."""
    if library in LIBRARIES:
        return True
    import diffusers

    return hasattr(diffusers.pipelines, library)


def _own_code(path: Path, name: str, value: Any) -> str:
    return (
        f"{path}: {name} is {value}, code of the teacher's own, which is never run: use a teacher "
        f"whose classes come from {' and '.join(LIBRARIES)}"
    )


def _text_to_image_class(folder: Path, pipeline: str, index: Mapping[str, Any]) -> str | None:
    """The text-to-image class of a family for the networks of another class, if they are such.

    Networks for inpainting take more channels than they give, and SDXL's refiner, which asks for
    an aesthetic score, makes no image from text alone.
    """
    known = {name: family for family in FAMILIES for name in family.pipeline_classes}
    for use in OTHER_USES:
        name = pipeline.replace(use, "")
        if name != pipeline and name in known and not index.get("requires_aesthetics_score"):
            path = folder / known[name].denoisers[0] / "config.json"
            config = read_json(path) if path.is_file() else {}
            same = config.get("out_channels") in (None, config.get("in_channels"))
            return name if same else None
    return None
