"""Whether a pipeline is of a known family, made of known classes, and without code of its own."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distillery.families import FAMILIES, FLOW_MAPS
from distillery.files import read_json
from distillery.teacher.components import INDEX, LIBRARIES, check_index
from distillery.teacher.weights import CONFIG

if TYPE_CHECKING:
    from distillery.teacher.folder import PipelineFolder

OTHER_USES = ("Img2Img", "Inpaint")
"""Parts of the names of pipeline classes that use the same networks otherwise."""


def check_known(folder: "PipelineFolder") -> None:
    """Raise ValueError unless a pipeline is of a known family and made of known classes."""
    path, pipeline = folder.path / INDEX, folder.index.get("_class_name", "")
    if not isinstance(pipeline, str):
        raise ValueError(_own_code(path, "_class_name", pipeline))
    check_index(path, folder.index)
    for name in folder.components:
        if not _is_known(str(folder.index[name][0])):
            raise ValueError(_own_code(path, name, folder.index[name]))
    other = _text_to_image_class(folder, pipeline)
    if other:
        raise ValueError(
            f"{path} names the class {pipeline}, which begins with an image; {other} has the same "
            "networks and begins with noise: write it there as _class_name"
        )
    try:
        if folder.is_traced:
            _check_traceable(pipeline)
        family = folder.family
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if family in FLOW_MAPS.values():
        raise ValueError(
            f"{path} names the class {pipeline}, whose network is told where each step ends: a "
            "trajectory of it is one of many, so it can be a student and no teacher; use the model "
            "that it was made from"
        )
    check_present(folder, (family.denoisers[0], "vae", "scheduler"))


def check_present(folder: "PipelineFolder", needed: Iterable[str]) -> None:
    """Raise ValueError for a part that is needed and that the index does not name."""
    absent = sorted(set(needed) - folder.components.keys())
    if absent:
        raise ValueError(
            f"{folder.path / INDEX} names no {', no '.join(absent)}, which a {folder.class_name} "
            "needs: use the whole pipeline, as its save_pretrained writes it"
        )


def check_texts_present(folder: "PipelineFolder") -> None:
    """Raise ValueError for a part that reads prompts and is not there, or is there by half."""
    family = folder.family
    check_present(folder, set(family.text_components) - set(family.may_lack))
    for name in family.text_components:
        encoder = name.replace("tokenizer", "text_encoder")
        if (name in folder.components) != (encoder in folder.components):
            raise ValueError(
                f"{folder.path / INDEX} names one of {name} and {encoder}: both are needed, or "
                "[null, null] for both"
            )


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


def _text_to_image_class(folder: "PipelineFolder", pipeline: str) -> str | None:
    """The text-to-image class for the networks of an image-to-image class, if they fit it.

    Networks for inpainting take more channels than they give, and SDXL's refiner, which asks for
    an aesthetic score, makes no image from text alone.
    """
    known = {name: family for family in FAMILIES for name in family.pipeline_classes}
    for use in OTHER_USES:
        name = pipeline.replace(use, "")
        if name != pipeline and name in known and not folder.index.get("requires_aesthetics_score"):
            path = folder.path / known[name].denoisers[0] / CONFIG
            config = read_json(path) if path.is_file() else {}
            same = config.get("out_channels") in (None, config.get("in_channels"))
            return name if same else None
    return None


def _check_traceable(pipeline: str) -> None:
    """Raise ValueError for a class that is none of Diffusers'."""
    import diffusers

    if not hasattr(diffusers, pipeline):
        raise ValueError(f"Diffusers {diffusers.__version__} has no class {pipeline}")
