"""The section `hardware`: what a machine gives a job, and for which GPUs a run is planned."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from distillery.config.section import Compile, NoResult, Positive, Section, Small
from distillery.notes import Note, error

KIND = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9 ]*?)-(?P<gib>\d{1,4})GB"
    r"(?:\s*[x\u00d7]\s*(?P<count>[1-9]\d{0,3}))?"
)
"""As H100-80GB x 4; the makers' GB of GPU memory are GiB, but for what the driver keeps."""


@dataclass(frozen=True)
class GpuKind:
    """GPUs as a configuration names them.

    Attributes:
        name: as H100.
        memory_gib: of each.
    """

    name: str
    memory_gib: int
    count: int


def parse_gpu(text: str) -> GpuKind:
    """The GPUs that `hardware.gpu` names; raises ValueError for what is no such name."""
    found = KIND.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"hardware.gpu is {text!r}: write a name, its memory and a number, such as "
            "H100-80GB x 4"
        )
    return GpuKind(found["name"].strip(), int(found["gib"]), int(found["count"] or 1))


class Hardware(Section):
    """What the machine gives a job. Nothing here changes a result beyond rounding."""

    cpu_threads: Annotated[Small, NoResult] = Field(
        1, description="threads per job without a GPU; decides the last bits of its results"
    )
    compile: Annotated[Compile, NoResult] = Field(
        "auto",
        description="whether to compile networks on a GPU; auto: large networks in long runs, "
        "where it saves more than the minute that it takes",
    )
    gpu: Annotated[str | None, NoResult] = Field(
        None,
        description="for the plan: the GPUs that jobs will get, by name, memory and number, such "
        "as `H100-80GB x 4`; null: those of the planning machine, or as the two keys below say",
    )
    num_gpus: Annotated[Small | None, NoResult] = Field(
        None,
        description="for the plan: GPUs that the training will get, over all nodes; null: as "
        "many as Snakemake gives it, else those of the planning machine",
    )
    gpu_memory_gib: Annotated[Positive | None, NoResult] = Field(
        None,
        description="for a plan on a machine without GPUs: memory of each GPU that jobs will "
        "get; null: that of the GPUs of this machine",
    )
    cpu_processes: Annotated[Small, NoResult] = Field(
        2, description="training processes on a machine without a GPU"
    )

    def faults(self) -> Iterator[Note]:
        """GPUs that cannot be read, or that two keys describe."""
        if self.gpu is None:
            return
        parse_gpu(self.gpu)
        for key in ("num_gpus", "gpu_memory_gib"):
            if getattr(self, key) is not None:
                yield error(
                    f"hardware.gpu is {self.gpu!r}",
                    f" and hardware.{key} is {getattr(self, key):g}: both describe the planned "
                    "GPUs",
                    "remove one of the keys",
                )
