"""What all sections of the configuration share: their base and their types."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Dtype = Literal["float32", "bfloat16", "float16"]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Base of every section: immutable, exact types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
