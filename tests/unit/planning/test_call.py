"""The plan of `teacher.call`: values of another type, and arguments without effect, are refused."""

import inspect
from pathlib import Path
from typing import Any

import diffusers
import pytest

from distillery.config.run import Config, parse_config
from distillery.families import FAMILIES
from distillery.files import write_json
from distillery.planning.call import arguments_of, on_call, on_effect
from distillery.teacher.components import INDEX
from distillery.teacher.folder import PipelineFolder
from runs import settings

CLASSES = [family.pipeline_classes[0] for family in FAMILIES]
GOOD: dict[str, Any] = {"float": 0.7, "tuple": [4, 8], "list": [0, 1]}
"""By the beginning of an argument's type."""
TRACED = (  # class, arguments that it takes as they are written, and one that it does not
    ("CogView4Pipeline", {"original_size": [64, 64]}, {"original_size": [64]}),
    ("HunyuanDiTPipeline", {"guidance_rescale": 0.7}, {"guidance_rescale": "0.7"}),
    ("HunyuanImagePipeline", {"distilled_guidance_scale": 2}, {"distilled_guidance_scale": [2]}),
    ("SkyReelsV2Pipeline", {}, {"no_such_argument": 1}),
    ("LuminaPipeline", {"scaling_watershed": 0.5}, {"scaling_watershed": True}),
    ("Flux2Pipeline", {"text_encoder_out_layers": [1, 2]}, {"no_such_argument": 1}),
)


def folder_of(class_name: str, folder: Path, is_traced: bool = False) -> PipelineFolder:
    write_json(folder / INDEX, {"_class_name": class_name})
    return PipelineFolder(folder, is_traced=is_traced)


def config_of(folder: Path, call: dict[str, Any], scale: float = 4.0, own: Any = None) -> Config:
    """A run whose trajectories and teacher's images are drawn with guidance scales."""
    config = parse_config(
        settings(
            folder,
            folder,
            teacher={"call": call},
            targets={"guidance_scale": scale},
            samples={"models": {"teacher": {"source": "teacher", "guidance_scale": own}}},
        ),
        "tiny",
    )
    assert isinstance(config, Config)
    return config


def told(folder: PipelineFolder, call: dict[str, Any], **scales: Any) -> str:
    config = config_of(folder.path, call, **scales)
    notes = [*on_call(config.teacher, folder), *on_effect(config, folder)]
    assert all(note.kind == "error" for note in notes)
    return "\n".join(map(str, notes))


def good(class_name: str, name: str) -> Any:
    """A value of an argument's type that is not its default."""
    kind = inspect.signature(getattr(diffusers, class_name).__call__).parameters[name].annotation
    return next(
        value for it, value in GOOD.items() if inspect.formatannotation(kind).startswith(it)
    )


@pytest.mark.parametrize("class_name", CLASSES)
def test_every_argument_takes_its_own_type_alone(class_name: str, tmp_path: Path) -> None:
    folder = folder_of(class_name, tmp_path)
    call = {name: good(class_name, name) for name in arguments_of(folder)}
    assert told(folder, call) == ""
    for name, value in call.items():
        wrong: list[Any] = ["x", {"a": 1}, True]
        wrong += [["a", 1], [[1]], 7] if isinstance(value, list) else [[0.5], "0.7", None]
        for other in wrong:
            message = told(folder, call | {name: other})
            assert f"teacher.call.{name} is {other!r}: the call of {class_name} takes " in message
    if "original_size" in call:
        assert "takes tuple[int, int] | None, which is a list" in told(folder, {"original_size": 7})
    if "guidance_rescale" in call:
        assert told(folder, {"guidance_rescale": 1}) == "", "an integer is a number"


@pytest.mark.parametrize("class_name", CLASSES)
def test_an_argument_without_effect_is_refused(class_name: str, tmp_path: Path) -> None:
    """Its default; what acts with guidance, where there is none; what acts beside another one."""
    folder = folder_of(class_name, tmp_path)
    parameters = inspect.signature(folder.pipeline_class.__call__).parameters
    call = {name: good(class_name, name) for name in arguments_of(folder)}
    for name in call:
        default = parameters[name].default
        as_read = list(default) if isinstance(default, tuple) else default
        assert f"{name} is {as_read!r} has no effect: it is the call's default" in told(
            folder, call | {name: as_read}
        )
    unguided = told(folder, call, scale=1.0, own=1.0)
    reads = {"original_size", "crops_coords_top_left", "target_size"}
    for name in call:
        assert (f"call.{name} is " in unguided) == (name not in reads), name
    assert told(folder, call, scale=1.0, own=3.0) == "", "the teacher's images are guided"
    assert told(folder, call, scale=3.0, own=1.0) == "", "trajectories are guided"
    alone = {"guidance_rescale", "skip_guidance_layers", *reads}
    for name, value in call.items():
        message = told(folder, {name: value})
        assert ("looks at it only with" in message) == (name not in alone), name


@pytest.mark.parametrize(("class_name", "taken", "refused"), TRACED, ids=lambda it: str(it)[:20])
def test_of_a_traced_class_types_and_defaults_are_known(
    class_name: str, taken: dict[str, Any], refused: dict[str, Any], tmp_path: Path
) -> None:
    """Where annotations are texts too, and not where one contradicts its default."""
    folder = folder_of(class_name, tmp_path, is_traced=True)
    parameters = inspect.signature(folder.pipeline_class.__call__).parameters
    for name in arguments_of(folder):
        default = parameters[name].default
        as_read = list(default) if isinstance(default, tuple) else default
        assert "it is the call's default" in told(folder, {name: as_read}), name
    assert told(folder, taken, scale=1.0, own=1.0) == "", "what its guidance reads is not known"
    assert "the call of " in told(folder, refused)
