"""The student: which network it is, and how many steps it samples with."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from distillery.config.section import Count, Section


class Student(Section):
    """The network that learns, and the number of steps it samples with."""

    init: Literal["teacher", "layers"] = Field(
        "teacher", description="teacher: same shape and weights; layers: only the blocks kept"
    )
    layers: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None, description="indices of the teacher's blocks to keep, for init: layers"
    )
    expert: str | None = Field(
        None,
        description="of a teacher with several networks, the one that the student starts from; "
        "Wan2.2-A14B has transformer (for the noisier states) and transformer_2",
    )
    steps: Count = Field(4, description="denoising steps, without guidance")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.init == "layers") != (self.layers is not None):
            raise ValueError(
                f"student.init is {self.init!r} and student.layers is {self.layers}: give the list "
                "of blocks with init: layers, and null with init: teacher"
            )
        if self.layers is not None and list(self.layers) != sorted(set(self.layers)):
            raise ValueError(f"student.layers is {self.layers}: write each block once, ascending")
        if self.layers == ():
            raise ValueError("student.layers is empty: keep at least one block")
        return self
