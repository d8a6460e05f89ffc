"""A student of a shape of its own, from a JSON file: the teacher's weights where they fit."""

import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from distillery.families import Family
from distillery.families.protocol import Denoiser


def read_shape(path: Path, teacher: Denoiser, family: Family) -> dict[str, Any]:
    """The configuration of the student's network, checked against the teacher's.

    Args:
        teacher: its network, on any device.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another class, unknown keys, dropout, or a network that takes or gives
            something else.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"student.config is {str(path)!r}: there is no such file; copy config.json of the "
            f"teacher's {family.denoisers[0]} and change it"
        )
    shape = {key: value for key, value in _read(path).items() if key != "_name_or_path"}
    name = type(teacher).__name__
    if shape.setdefault("_class_name", name) != name:
        raise ValueError(
            f"student.config: {path} is of a {shape['_class_name']}, the teacher's network is a "
            f"{name}: a student is fed as its teacher is, so it must be of the same class"
        )
    known = set(inspect.signature(type(teacher).__init__).parameters) - {"self"}
    unknown = sorted(key for key in shape if key not in known and not key.startswith("_"))
    if unknown:
        raise ValueError(
            f"student.config: {path} has {', '.join(unknown)}, which a {name} does not take; it "
            f"takes {', '.join(sorted(known))}"
        )
    _check_no_dropout(path, shape)
    _check_interface(path, shape, teacher, family)
    return shape


def _read(path: Path) -> dict[str, Any]:
    """A user's JSON object, which the workflow cannot make again."""
    try:
        shape = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"student.config: {path} is not valid JSON: {error}; fix it") from error
    if not isinstance(shape, dict):
        raise ValueError(
            f"student.config: {path} holds a {type(shape).__name__}, an object is needed, as in "
            "config.json of the teacher's network"
        )
    return shape


def _check_no_dropout(path: Path, shape: Mapping[str, Any]) -> None:
    """Raise ValueError for a network with dropout."""
    for key, value in shape.items():
        if "dropout" in key.lower() and isinstance(value, int | float) and value > 0:
            raise ValueError(
                f"student.config: {path} has {key} {value}: a training that resumes from a "
                "checkpoint, or on another number of GPUs, would drop other features and end with "
                f"other weights; write {key}: 0"
            )


def _check_interface(
    path: Path, shape: Mapping[str, Any], teacher: Denoiser, family: Family
) -> None:
    """Raise ValueError unless what goes in and out is the teacher's."""
    for key, value, wanted in other_interface(shape, teacher, family):
        raise ValueError(
            f"student.config: {path} has {key} {value}, the teacher's network has {wanted}: both "
            f"see the same latents and prompts, so write {key}: {wanted}"
        )


def other_interface(
    shape: Mapping[str, Any], teacher: Denoiser, family: Family
) -> Iterator[tuple[str, Any, Any]]:
    """(key, value, the teacher's value) where what goes in or out of a network is not the
    teacher's, of which it is a class."""
    parameters = inspect.signature(type(teacher).__init__).parameters
    for key in (key for key in family.interface if key in parameters):
        value = _plain(shape.get(key, parameters[key].default))
        wanted = _plain(teacher.config[key])  # type: ignore[index]
        if value != wanted:
            yield key, value, wanted


def _plain(value: Any) -> Any:
    """Tuples as JSON has them."""
    return list(value) if isinstance(value, tuple) else value


def make_shape(teacher: Denoiser, shape: Mapping[str, Any], seed: int) -> Denoiser:
    """A network of this shape in float32 with random weights, the same for the same seed.

    On the teacher's device: on the meta device it is a matter of milliseconds.
    """
    device = next(teacher.parameters()).device
    with torch.random.fork_rng(devices=[]), device:
        torch.manual_seed(seed)
        student = type(teacher).from_config(dict(shape))  # type: ignore[attr-defined]
    assert isinstance(student, torch.nn.Module)
    return student.eval()


@torch.no_grad()
def copy_weights(student: Denoiser, teacher: Denoiser) -> list[str]:
    """Copy the tensors whose names and shapes agree; returns the names of the others.

    A row of blocks that is shorter than the teacher's takes the teacher's first ones.
    """
    teacher_tensors = teacher.state_dict()
    left: list[str] = []
    for name, tensor in student.state_dict().items():
        source = teacher_tensors.get(name)
        if source is None or source.shape != tensor.shape:
            left.append(name)
        else:
            tensor.copy_(source)
    return left
