"""From what a user wrote to a checked section, or to an error that names key, value and cure."""

import json
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from distillery.config.section import Section
from distillery.files import JsonObject

Model = TypeVar("Model", bound=Section)


def parse(model: type[Model], raw: JsonObject, source: str) -> Model:
    """Validate through JSON, which strict mode needs for tuples, and explain what is wrong."""
    try:
        return model.model_validate_json(json.dumps(raw, default=_refuse))
    except ValidationError as error:
        problems = "\n".join(f"  {_explain(model, details)}" for details in error.errors())
        raise ValueError(f"{source} cannot be used:\n{problems}") from None


def _refuse(value: object) -> None:
    """YAML knows more types than JSON does, dates above all."""
    raise ValueError(
        f"YAML takes {value} for a {type(value).__name__}: put it in quotes if text is meant"
    )


def _explain(model: type[BaseModel], details: Any) -> str:
    """One line about one of pydantic's errors: key, value given, what is allowed."""
    key = ".".join(str(part) for part in details["loc"] if part != "[key]")
    given = details.get("input")
    match details["type"]:
        case "extra_forbidden":
            allowed = ", ".join(sorted(_known_keys(model, details["loc"][:-1])))
            return f"{key} is not a key of the configuration; known here: {allowed}"
        case "missing":
            return f"{key} is missing: add it"
        case "value_error":
            return str(details["ctx"]["error"])
        case "float_type" | "int_type" if isinstance(given, str) and _is_number(given):
            return (
                f"{key} is the text {given!r}: YAML 1.1 takes 1e-4 for text, write 1.0e-4, "
                "and leave out quotes"
            )
        case _:
            message = details["msg"].replace("Input should be", "it should be")
            return f"{key} is {given!r}: {message}"


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
