"""Turn what a user wrote into a checked section, or an error that names key, value and cure."""

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from distillery.config.section import NAME_RULE, Section
from distillery.files import JsonObject

Model = TypeVar("Model", bound=Section)
BRANCH = re.compile(r"constrained-|(literal|tuple|union|function-\w+)\[|(bool|int|float|str|none)$")
"""What pydantic adds to a key that takes one of several types: the type that it tried."""

MAX_SHOWN = 120


def parse(model: type[Model], raw: JsonObject, source: str) -> Model:
    """Validate through JSON, which strict mode needs for tuples, and explain what is wrong."""
    try:
        return model.model_validate_json(json.dumps(raw, default=_refuse))
    except ValidationError as error:
        lines = _explain_all(model, error.errors())
        problems = "\n".join(f"  {line}" for line in lines)
        raise ValueError(f"{source} cannot be used:\n{problems}") from None


def _refuse(value: object) -> None:
    """YAML knows more types than JSON does, dates above all."""
    raise ValueError(
        f"YAML takes {shorten(str(value))} for a {type(value).__name__}: put it in quotes if text "
        "is meant"
    )


def shorten(text: str) -> str:
    """A value for a message; of a huge one only the two ends."""
    if len(text) <= MAX_SHOWN:
        return text
    return f"{text[: MAX_SHOWN // 2]} … {text[-MAX_SHOWN // 4 :]}"


def _explain_all(model: type[BaseModel], errors: Sequence[Any]) -> list[str]:
    """One line per problem; pydantic reports every type that a key can have.

    The type that got further, into a list, is the one that was meant.
    """
    keys = [_key(error) for error in errors]
    lines: dict[str, str] = {}
    for key, error in zip(keys, errors, strict=True):
        is_branch = any(BRANCH.match(str(part)) for part in error["loc"])
        if is_branch and any(other.startswith(f"{key}.") for other in keys):
            continue
        line = _explain(model, error)
        if is_branch and key in lines and line != lines[key]:
            line = f"{lines[key]} or {line.rpartition('it should be ')[2]}"
        elif key in lines and line != lines[key]:
            line = f"{lines[key]}\n  {line}"
        lines[key] = line
    return list(lines.values())


def _key(error: Any) -> str:
    """The key of one of pydantic's errors, as the user would write it."""
    parts = [str(part) for part in error["loc"] if part != "[key]"]
    return ".".join(part for part in parts if not BRANCH.match(part))


def _explain(model: type[BaseModel], details: Any) -> str:
    """One line about one of pydantic's errors: key, value given, what is allowed."""
    key = _key(details)
    value = details.get("input")
    match details["type"]:
        case "extra_forbidden":
            allowed = sorted(_known_keys(model, details["loc"][:-1]))
            near = get_close_matches(str(details["loc"][-1]), allowed, n=1)
            meant = f", did you mean {near[0]}" if near else ""
            known = ", ".join(allowed)
            return f"{shorten(key)} is not a key of the configuration{meant}; known here: {known}"
        case "missing":
            return f"{key} is missing: add it"
        case "value_error":
            return str(details["ctx"]["error"])
        case "string_pattern_mismatch":
            return f"{key} is {shorten(repr(value))}: {NAME_RULE}"
        case "float_type" | "int_type" if isinstance(value, str) and _is_number(value):
            why = "leave out the quotes"
            if "e" in value.lower():
                why = "YAML 1.1 takes 1e-4 for text, write 1.0e-4, and leave out quotes"
            return f"{key} is the text {shorten(repr(value))}: {why}"
        case _:
            message = details["msg"].replace("Input should be", "it should be")
            message = message.replace("String should", "it should")
            message = message.replace("a valid array", "a list")
            return f"{key} is {'null' if value is None else shorten(repr(value))}: {message}"


def _known_keys(model: type[BaseModel], location: tuple[str | int, ...]) -> set[str]:
    """The keys of the (nested) section at `location`."""
    for part in location:
        field = model.model_fields.get(str(part))
        if field is not None and isinstance(field.annotation, type):
            model = field.annotation if issubclass(field.annotation, BaseModel) else model
        elif field is not None:  # a list of sections, or a mapping from free names to them
            parts = [part for part in get_args(field.annotation) if isinstance(part, type)]
            model = next((part for part in parts if issubclass(part, BaseModel)), model)
    return set(model.model_fields)


def _is_number(text: str) -> bool:
    """Whether Python would read the text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def flatten(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The values of all sections by their keys with dots, as `targets.steps`."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{before}{key}"
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat
