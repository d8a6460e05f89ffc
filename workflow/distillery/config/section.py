"""What all sections of the configuration share: their base and their types."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Dtype = Literal["float32", "bfloat16", "float16"]
Split = Literal["train", "eval"]
Count = Annotated[int, Field(ge=1)]
Compile = Literal["auto", "always", "never"]
BatchSize = Count | Literal["auto"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class Section(BaseModel):
    """Base of every section: immutable, exact types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def need_multiple(name: str, value: int, unit_name: str, unit: int) -> None:
    """Raise ValueError with the nearest good values unless `value` is a multiple of `unit`."""
    if value % unit:
        below, above = value // unit * unit, (value // unit + 1) * unit
        advice = f"{below} or {above}" if below else f"{above}"
        raise ValueError(
            f"{unit_name} is {unit}, {name} is {value}: {value} must be a multiple of {unit}; "
            f"use {advice}"
        )
