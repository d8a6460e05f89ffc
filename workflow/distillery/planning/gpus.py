"""The plan's GPUs: those that the jobs will get, on the machine that plans or on another."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distillery.config.hardware import Hardware, parse_gpu
from distillery.files import GIB, readable
from distillery.notes import Note, doubt


@dataclass(frozen=True)
class Gpus:
    """What is planned for.

    Attributes:
        count: of the training; 0 trains on the CPU.
        memory_bytes: of the smallest; None where there is none, or it is not known.
        capability: CUDA's compute capability of the oldest, e.g. (9, 0); None if not known.
        num_nodes: that the training's are on, the same number on each.
        names: of the kinds, as far as they are known.
    """

    count: int = 0
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None
    num_nodes: int = 1
    names: tuple[str, ...] = ()

    @property
    def is_unknown(self) -> bool:
        """Whether there are GPUs of which nothing is known."""
        return self.count > 0 and self.memory_bytes is None


CAPABILITIES = {
    "B200": (10, 0), "H200": (9, 0), "H100": (9, 0), "GH200": (9, 0), "L40S": (8, 9), "L40": (8, 9),
    "L4": (8, 9), "RTX4090": (8, 9), "A10": (8, 6), "A40": (8, 6), "RTX3090": (8, 6),
    "A100": (8, 0), "T4": (7, 5), "V100": (7, 0),
}  # fmt: skip
"""CUDA's compute capability of GPUs that a configuration may name; of others it is not known."""


def plan_gpus(
    hardware: Hardware,
    local_gpus: Sequence[Mapping[str, Any]],
    num_gpus: int | None = None,
    num_nodes: int = 1,
) -> Gpus:
    """The GPUs that the jobs of a run will get.

    The smallest memory and the oldest capability decide, for all processes must do alike.

    Args:
        local_gpus: on this machine, as in `hardware.describe_hardware`.
        num_gpus: that Snakemake gives the training, if it is to train.
    """
    if hardware.gpu is not None:
        kind = parse_gpu(hardware.gpu)
        known = CAPABILITIES.get(kind.name.replace(" ", "").upper())
        count = num_gpus or kind.count
        return Gpus(count, int(kind.memory_gib * GIB), known, num_nodes, (kind.name,))
    count = num_gpus or hardware.num_gpus or len(local_gpus)
    capabilities = [
        tuple(int(part) for part in str(gpu["capability"]).split("."))
        for gpu in local_gpus
        if gpu.get("capability")
    ]
    memory = min((int(gpu["memory_bytes"]) for gpu in local_gpus), default=None)
    names = tuple(sorted({str(gpu["name"]) for gpu in local_gpus}))
    if hardware.gpu_memory_gib is not None:
        memory, capabilities, names = int(hardware.gpu_memory_gib * GIB), [], ()
    major, minor = min(capabilities, default=(0, 0))
    capability = (major, minor) if capabilities else None
    if not count:
        memory, names = None, ()
    return Gpus(count, memory, capability, num_nodes, names)


def on_gpus(gpus: Gpus) -> Iterator[Note]:
    """GPUs elsewhere, whose memory is not known here."""
    if gpus.is_unknown:
        yield doubt(
            f"{gpus.count} GPUs will train",
            ", and none of them is here",
            "name them as hardware.gpu, such as H100-80GB x 4, to plan memory for them",
        )


def summarise_gpus(gpus: Mapping[str, Any]) -> str:
    """What is planned for, in a few words."""
    if not gpus["count"]:
        return "planned for the CPU"
    memory = readable(gpus["memory_bytes"]) if gpus["memory_bytes"] else "unknown memory"
    nodes = f" on {gpus['num_nodes']} nodes" if gpus["num_nodes"] > 1 else ""
    names = f" ({', '.join(gpus['names'])})" if gpus["names"] else ""
    return f"planned for {gpus['count']} GPU of {memory}{nodes}{names}"
