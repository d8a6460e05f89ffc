"""What all sections of the configuration share: their base and their types."""

from collections.abc import Iterator
from math import isqrt
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from distillery.notes import Note, error, refuse

Dtype = Literal["float32", "bfloat16", "float16"]
Split = Literal["train", "eval"]
Count = Annotated[int, Field(ge=1, le=10**9)]
CountOrNone = Annotated[int, Field(ge=0, le=10**9)]
Small = Annotated[int, Field(ge=1, le=2**16)]
"""A number within one call, file or machine. All bounds are far beyond what is useful, and keep a
wrong number from exhausting a machine."""
Shards = Annotated[int, Field(ge=1, le=10_000)]
"""Snakemake itself takes a minute for ten thousand jobs."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Guidance = Annotated[float, Field(ge=1.0, le=1000.0)]


def _check_interval(interval: tuple[float, float]) -> tuple[float, float]:
    """Raise ValueError for one that ends before it begins."""
    start, stop = interval
    if start >= stop:
        raise ValueError(f"the interval ends at {stop:g}, and begins at {start:g}: end it later")
    return interval


Share = Annotated[float, Field(ge=0.0, le=1.0)]
Interval = Annotated[tuple[Share, Share], AfterValidator(_check_interval)]
"""Shares of a walk's steps, from the noise, 0, to the image, 1."""
Positive = Annotated[float, Field(gt=0, le=1e6)]
Compile = Literal["auto", "always", "never"]
BatchSize = Small | Literal["auto"]
NAME_RULE = "use letters, digits, '.', '_' or '-', beginning with a letter or digit"
"""What the pattern of `Name` says, the only one of the configuration."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)]


TAG = "learn"
"""The key that tells which of several sections is meant, of those that are one of several."""
REMAKES_NOTHING = "x-remakes-nothing"
NoResult = Field(json_schema_extra={REMAKES_NOTHING: True})
"""Annotates a setting that changes no result beyond rounding: it is in no recipe, and another value
makes nothing again."""


ONLY_IF_SET = "x-only-if-set"
OnlyIfSet = Field(json_schema_extra={ONLY_IF_SET: True})
"""Annotates a setting of a later release: left out of every file while it has its default, so that
what earlier releases wrote stays as it is, and nothing is made again."""


class Section(BaseModel):
    """Base of every section: immutable, exact types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def faults(self) -> Iterator[Note]:
        """What its keys may not be together."""
        yield from ()

    @model_validator(mode="after")
    def _refuse(self) -> Self:
        refuse(self.faults())
        return self

    @model_serializer(mode="wrap")
    def _leave_out(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = serialize(self)
        for name in _marked(type(self), ONLY_IF_SET):
            if getattr(self, name) == type(self).model_fields[name].get_default():
                content.pop(name, None)
        return content


def without_result(section: type[BaseModel]) -> frozenset[str]:
    """The names of a section's settings that are annotated with `NoResult`."""
    return _marked(section, REMAKES_NOTHING)


def _marked(section: type[BaseModel], mark: str) -> frozenset[str]:
    return frozenset(
        name
        for name, field in section.model_fields.items()
        if isinstance(field.json_schema_extra, dict) and mark in field.json_schema_extra
    )


def steps_within(interval: tuple[float, float] | None, steps: int) -> range:
    """Those of a walk's steps whose middle is in an interval, its end left out; None: all.

    By their middle, so that a walk of fewer steps is guided over nearly the same part of it.
    """
    start, stop = interval or (0.0, 1.0)
    middles = [(step + 0.5) / steps for step in range(steps)]
    return range(sum(it < start for it in middles), sum(it < stop for it in middles))


def on_multiple(name: str, value: int, unit_name: str, unit: int) -> Iterator[Note]:
    """The nearest good values of both unless `unit` divides `value`."""
    if value % unit:
        multiples = [value // unit * unit, (value // unit + 1) * unit]
        small = [number for number in range(1, isqrt(value) + 1) if value % number == 0]
        divisors = small + [value // number for number in small]
        below = max(number for number in divisors if number < unit)
        above = min((number for number in divisors if number > unit), default=0)
        yield error(
            f"{name} is {value}",
            f", {unit_name} is {unit}: {value} must be a multiple of {unit}",
            f"set {name} to {_either(multiples)}, or {unit_name} to {_either([below, above])}",
        )


def _either(values: list[int]) -> str:
    """The positive values, as "3 or 6"."""
    return " or ".join(str(value) for value in values if value)
