"""Turn what a user wrote into a checked section, or an error that names key, value and cure."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import isnan
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from distillery.config.earlier import with_phases
from distillery.config.section import NAME_RULE, TAG, Section
from distillery.files import JsonObject

Model = TypeVar("Model", bound=Section)
BRANCH = re.compile(r"constrained-|(literal|tuple|union|function-\w+)\[|(bool|int|float|str|none)$")
"""What pydantic adds to a key that takes one of several types: the type that it tried."""

MAX_SHOWN = 120
MAX_DEPTH = 50
MAX_VALUES = 100_000
MAX_BITS = 1024
"""Of an integer; Python writes none of more than 4,300 digits."""


def parse(model: type[Model], raw: JsonObject, source: str, given: Collection[str] = ()) -> Model:
    """Validate through JSON, which strict mode needs for tuples, and explain what is wrong.

    Args:
        source: what errors name: the files.
        given: keys that --config gives, which errors name instead.
    """
    try:
        check_values(raw)
        return model.model_validate_json(json.dumps(with_phases(raw)))
    except ValidationError as error:
        lines = _explain_all(model, error.errors())
    except ValueError as error:
        key, _, _ = str(error).partition(" ")
        lines = {key: str(error)}
    told = [
        line if not _is_given(key, given) else f"{line} (by --config)"
        for key, line in lines.items()
    ]
    if all(_is_given(key, given) for key in lines):
        source, told = "--config", list(lines.values())
    problems = "\n".join(f"  {line}" for line in told)
    raise ValueError(f"{source} cannot be used:\n{problems}") from None


def _is_given(key: str, given: Collection[str]) -> bool:
    """Whether the value of a key, or a part of it, is from --config."""
    return any(f"{one}.".startswith(f"{key}.") or key.startswith(f"{one}.") for one in given)


def check_values(raw: object) -> None:
    """Refuse what YAML knows and no key can have: dates, sets, values within themselves.

    Raises ValueError that begins with the key.
    """
    stack, number = [("", raw, 0)], 0
    while stack:
        key, value, depth = stack.pop()
        number += 1
        if depth > MAX_DEPTH or number > MAX_VALUES:
            raise ValueError(f"{key} is nested too deep, or within itself: write plain values")
        if isinstance(value, Mapping):
            for name, inner in value.items():
                if not isinstance(name, str | int | float | None):
                    raise ValueError(f"{key or name} has the key {name!r:.60}: write text as keys")
                stack.append((f"{key}.{name}" if key else str(name), inner, depth + 1))
        elif isinstance(value, list | tuple):
            stack += [(f"{key}.{place}", inner, depth + 1) for place, inner in enumerate(value)]
        else:
            _check_value(key, value)


def _check_value(key: str, value: object) -> None:
    """Raise ValueError for what JSON has not."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{key} has half of a character in {shorten(repr(value))}") from None
    elif isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise ValueError(f"{key} is a number of far too many digits")
    elif isinstance(value, float):
        if isnan(value):
            raise ValueError(f"{key} is {value}, which is no number: give a number")
    elif value is not None:
        raise ValueError(
            f"{key} is {shorten(str(value))}, which YAML takes for a {type(value).__name__}: put "
            "it in quotes if text is meant"
        )


def shorten(text: str) -> str:
    """A value for a message; of a huge one only the two ends."""
    if len(text) <= MAX_SHOWN:
        return text
    return f"{text[: MAX_SHOWN // 2]} … {text[-MAX_SHOWN // 4 :]}"


def _explain_all(model: type[BaseModel], errors: Sequence[Any]) -> dict[str, str]:
    """One line per problem, by its key; pydantic reports every type that a key can have.

    The type that got further, into a list, is the one that was meant.
    """
    keys = [_key(model, error) for error in errors]
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
    return lines


def _key(model: type[BaseModel], error: Any) -> str:
    """The key of one of pydantic's errors, as the user would write it."""
    parts, _ = _locate(model, error["loc"])
    return ".".join(parts)


def _locate(
    model: type[BaseModel], location: Sequence[str | int]
) -> tuple[list[str], type[BaseModel]]:
    """A place as the user would write it, and the section that it is in or is.

    pydantic adds the type that it tried, and the tag of a section that is one of several.
    """
    parts: list[str] = []
    below: dict[str, type[BaseModel]] = {}
    for part in map(str, location):
        if part == "[key]" or BRANCH.match(part):
            continue
        if part in below:
            model, below = below[part], {}
            continue
        parts.append(part)
        field = model.model_fields.get(part)
        if field is not None:
            sections = list(_sections(field.annotation))
            below = {tag: section for section in sections for tag in _tags(section)}
            if len(sections) == 1:
                model = sections[0]
    return parts, model


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that a value may be, hold in a list, or hold by free names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _sections(part)


def _tags(section: type[BaseModel]) -> tuple[str, ...]:
    """What tells a section from others of its kind; empty for most."""
    field = section.model_fields.get(TAG)
    return get_args(field.annotation) if field else ()


def _explain(model: type[BaseModel], details: Any) -> str:
    """One line about one of pydantic's errors: key, value given, what is allowed."""
    key = _key(model, details)
    value = details.get("input")
    match details["type"]:
        case "union_tag_not_found":
            return f"{key}.{TAG} is missing: add one of {_expected(model, details)}"
        case "union_tag_invalid":
            tag = details["ctx"]["tag"]
            near = get_close_matches(tag, _all_tags(model, details), n=1)
            meant = f", did you mean {near[0]}" if near else ""
            return f"{key}.{TAG} is {shorten(repr(tag))}{meant}: use {_expected(model, details)}"
        case "extra_forbidden":
            allowed = sorted(_locate(model, details["loc"][:-1])[1].model_fields)
            near = get_close_matches(str(details["loc"][-1]), allowed, n=1)
            meant = f", did you mean {near[0]}" if near else ""
            known = ", ".join(allowed)
            return f"{shorten(key)} is not a key of the configuration{meant}; known here: {known}"
        case "missing":
            return f"{key} is missing: add it"
        case "value_error":
            text = str(details["ctx"]["error"])
            return text if key in text else f"{key}: {text}"
        case "string_pattern_mismatch":
            return f"{key} is {shorten(repr(value))}: {NAME_RULE}"
        case "float_type" | "int_type" if isinstance(value, str) and _is_number(value):
            why = "leave out the quotes"
            if "e" in value.lower():
                why = "YAML 1.1 takes 1e-4 for text, write 1.0e-4, and leave out quotes"
            return f"{key} is the text {shorten(repr(value))}: {why}"
        case "string_type" if isinstance(value, bool | int | float):
            return f"{key} is the number or switch {value}: put it in quotes, it is a text"
        case _:
            message = details["msg"].replace("Input should be", "it should be")
            message = message.replace("String should", "it should")
            message = message.replace("a valid array", "a list")
            return f"{key} is {'null' if value is None else shorten(repr(value))}: {message}"


def _all_tags(model: type[BaseModel], details: Any) -> list[str]:
    """The tags of the sections that may be where an error is."""
    *before, key = [part for part in details["loc"] if not isinstance(part, int)]
    _, section = _locate(model, before)
    sections = _sections(section.model_fields[str(key)].annotation)
    return [tag for each in sections for tag in _tags(each)]


def _expected(model: type[BaseModel], details: Any) -> str:
    return ", ".join(_all_tags(model, details))


def _is_number(text: str) -> bool:
    """Whether Python would read the text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def flatten(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The values of all sections by their keys with dots, as `targets.steps`; of a list of sections
    that are one of several by their places, as `training.phases.0.samples`."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name, inner = f"{before}{key}", value
        if isinstance(value, list | tuple) and value and all(_is_tagged(each) for each in value):
            inner = {str(place): each for place, each in enumerate(value)}
        flat |= flatten(inner, f"{name}.") if isinstance(inner, Mapping) else {name: value}
    return flat


def _is_tagged(value: object) -> bool:
    return isinstance(value, Mapping) and TAG in value
