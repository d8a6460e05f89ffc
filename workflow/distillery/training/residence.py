"""Where the teacher of online targets is: what each place takes, and which one is chosen.

Pure functions, which the plan and the trainer both call.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from distillery.config.section import Dtype
from distillery.config.teacher import Teacher
from distillery.config.training import Place, Training
from distillery.files import readable
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.memory import TIGHT, on_one_gpu
from distillery.training.execution import Machine

FILE_DTYPES: dict[Dtype, str] = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True)
class Demand:
    """Bytes that a place takes, without activations.

    Attributes:
        gpu: on a GPU that has the teacher, beside the student in training.
        other_gpus: on the others.
        host: on each node while it trains. Weights that are read as they lie in the teacher's files
            are mapped, one copy for all processes; others are each process's own.
    """

    gpu: int
    other_gpus: int
    host: int


def demands(
    teacher: Teacher, folder: PipelineFolder, student_bytes: int, machine: Machine
) -> dict[Place, Demand]:
    """What each place takes on a machine.

    Args:
        teacher: section of the configuration.
        folder: of the teacher.
        student_bytes: of the student in training, see `execution.state_bytes`.
        machine: processes and memory.
    """
    names = [*folder.denoisers, "vae"]  # stock calls ask the VAE for the size of latents
    whole, streamed = (
        on_one_gpu(
            teacher.model_copy(update={"offload": offload, "num_gpus": 1}), folder.sizes, names
        )
        for offload in ("none", "sequential")
    )
    processes = machine.world_size // machine.num_nodes
    copies = 1 if is_mapped(teacher, folder) else processes
    here, there = student_bytes + whole, student_bytes
    return {
        "every_rank": Demand(here, here, 0),
        "one_rank": Demand(here, there, 0),
        "own_gpus": Demand(-(-whole // teacher.num_gpus), there, 0),
        "shared": Demand(there + streamed, there + streamed, copies * whole),
        "cpu": Demand(there, there, copies * whole),
    }


def is_mapped(teacher: Teacher, folder: PipelineFolder) -> bool:
    """Whether the teacher's networks are used in the type in which their files hold them."""
    there = {dtype for name in folder.denoisers for dtype in folder.sizes[name].dtypes}
    return not teacher.adapters and there == {FILE_DTYPES[teacher.dtype]}


def choose_place(
    training: Training, num_gpus: int, needed: Mapping[Place, Demand], machine: Machine
) -> tuple[Place, str]:
    """Where the teacher is put, and why; `num_gpus`: `teacher.num_gpus`."""
    if training.teacher_residence != "auto":
        return training.teacher_residence, "as set"
    if num_gpus > 1:
        return "own_gpus", f"teacher.num_gpus is {num_gpus}"
    if machine.gpu_bytes is None:
        return "every_rank", "no GPU"
    gpu = needed["every_rank"].gpu
    takes = f"student in training and teacher take {readable(gpu)} of a GPU's"
    if gpu <= TIGHT * machine.gpu_bytes:
        return "every_rank", f"{takes} {readable(machine.gpu_bytes)}"
    return "shared", f"{takes} {readable(machine.gpu_bytes)}, too much without activations"
