"""How a training uses its hardware: pure functions, which the plan and the trainer both call."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from distillery.config.section import Dtype
from distillery.config.teacher import Teacher
from distillery.config.training import Place, Training
from distillery.files import readable
from distillery.student.info import StudentInfo
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.memory import ITEM_BYTES, ROOMY, TIGHT, on_one_gpu

GATHERED_SHARE = 0.1
"""Share of a sharded student's weights that are whole on a device at once: two of 20 or more
blocks, the one computed with and the next. A rule of thumb, not measured."""
MIN_PARAMETERS = 500_000_000
MIN_UPDATES = 2_000
"""Compiling pays for networks as large as generation compiles, in trainings of this many updates:
an update costs three forward passes, so it is as long as the 8,000 calls of generation."""


@dataclass(frozen=True)
class Machine:
    """What the choice depends on, by device: bytes and capability, never a name.

    Attributes:
        world_size: of the training, one per device.
        gpu_bytes: all memory of the smallest GPU; None without one.
        capability: of that GPU, e.g. (9, 0); None if it is not known.
        num_nodes: that the devices are on, the same number on each.
    """

    world_size: int
    gpu_bytes: int | None = None
    capability: tuple[int, int] | None = None
    num_nodes: int = 1


@dataclass(frozen=True)
class Execution:
    """What was chosen.

    Attributes:
        parallel: none for one process.
        gradient_checkpointing: whether blocks are computed again in the backward pass.
        compile: whether the student is compiled.
        bytes_per_device: of weights, gradients, averages and optimizer; activations come on top.
        reasons: of each choice, by the setting's name.
    """

    parallel: Literal["none", "ddp", "fsdp"]
    gradient_checkpointing: bool
    compile: bool
    bytes_per_device: int
    reasons: Mapping[str, str]


def choose_execution(
    training: Training,
    num_parameters: int,
    num_trainable: int,
    machine: Machine,
    supports_checkpointing: bool = True,
) -> Execution:
    """How a student is trained on a machine.

    Args:
        training: its settings are followed; where they say auto, the bytes decide.

    Raises:
        ValueError: gradient checkpointing of a network that does not offer it, or online targets
            of a student that is sharded.
    """
    whole = state_bytes(training, num_parameters, num_trainable)
    parallel, why_parallel = _choose_parallel(training, whole, machine)
    needed = whole
    if parallel == "fsdp":
        parts = machine.world_size // machine.num_nodes
        needed = sharded_bytes(training, num_parameters, num_trainable, parts)
    sharded = parallel == "fsdp"
    if sharded and training.asks:
        raise ValueError(
            f"training.phases has online and the student is to be trained with fsdp "
            f"({why_parallel}), under which no rank can walk alone: use stored targets, a smaller "
            "student, or student.init: lora"
        )
    recompute, why_recompute = _choose_checkpointing(
        training, needed, machine, sharded, supports_checkpointing
    )
    compiled, why_compiled = _choose_compile(training, num_parameters, machine)
    return Execution(
        parallel,
        recompute,
        compiled,
        needed,
        {
            "parallel": why_parallel,
            "gradient_checkpointing": why_recompute,
            "compile": why_compiled,
        },
    )


def supports_checkpointing(network: object) -> bool:
    """Whether a Diffusers network, or its class, offers gradient checkpointing."""
    return bool(getattr(network, "_supports_gradient_checkpointing", False))


def state_bytes(training: Training, num_parameters: int, num_trainable: int) -> int:
    """Bytes of a whole student in training: a parameter that does not learn is held in
    `training.dtype`; one that does takes 16 (weight, gradient and two moments in float32), 4 more
    with averaging, 2 more for the copy that bfloat16 computes with. Distribution matching takes a
    second network, without an average; an adversarial finish a frozen one, and heads, which are
    small.
    """
    item = ITEM_BYTES[training.dtype]
    networks = 1 + training.trains_copy
    learning = networks * (16 + item % 4) + 4 * bool(training.ema_half_life_samples)
    whole = networks * (num_parameters - num_trainable) * item + num_trainable * learning
    return whole + frozen_bytes(training, num_parameters)


def frozen_bytes(training: Training, num_parameters: int) -> int:
    """Bytes of the frozen network of an adversarial finish; 0 without one."""
    return training.keeps_frozen * num_parameters * ITEM_BYTES[training.dtype]


def student_state_bytes(training: Training, student: StudentInfo) -> int:
    """`state_bytes` of a student, with its low-rank additions."""
    additions = student.trained_parameters if student.init == "lora" else 0
    return state_bytes(training, student.num_parameters + additions, student.trained_parameters)


def sharded_bytes(
    training: Training, num_parameters: int, num_trainable: int, num_parts: int
) -> int:
    """Bytes on each device where a student is dealt out: a part of its `state_bytes`, the weights
    and gradients that are gathered at once, and the frozen network, which every device has whole.
    """
    frozen = frozen_bytes(training, num_parameters)
    dealt_out = state_bytes(training, num_parameters, num_trainable) - frozen
    gathered = num_parameters * (ITEM_BYTES[training.dtype] + 4)
    return -(-dealt_out // num_parts) + int(GATHERED_SHARE * gathered) + frozen


def _choose_parallel(
    training: Training, whole: int, machine: Machine
) -> tuple[Literal["none", "ddp", "fsdp"], str]:
    """How several processes share the work, and why."""
    need = f"a whole student in training takes {readable(whole)}"
    if machine.world_size == 1:
        return "none", "one process"
    if training.parallel != "auto":
        return training.parallel, f"as set; {need}"
    if machine.gpu_bytes is None:
        return "ddp", "no GPU"
    if whole <= TIGHT * machine.gpu_bytes:
        return "ddp", f"{need} of a GPU's {readable(machine.gpu_bytes)}"
    return "fsdp", f"{need}, too much for a GPU's {readable(machine.gpu_bytes)}"


def _choose_checkpointing(
    training: Training, needed: int, machine: Machine, sharded: bool, supports_checkpointing: bool
) -> tuple[bool, str]:
    """Whether blocks are computed again in the backward pass, and why."""
    if training.gradient_checkpointing is True and not supports_checkpointing:
        raise ValueError(
            "training.gradient_checkpointing is true and the student's network does not offer it: "
            "write auto or false, and lower training.micro_batch_size where memory is short"
        )
    if training.gradient_checkpointing != "auto":
        return training.gradient_checkpointing, "as set"
    if not supports_checkpointing:
        return False, "the network does not offer it"
    if machine.gpu_bytes is None:
        return False, "no GPU"
    if sharded:
        return True, "sharded weights leave no second try where a sample does not fit"
    share = needed / machine.gpu_bytes
    why = f"weights and optimizer take {share:.0%} of a GPU"
    if share > ROOMY:
        return True, f"{why}, more than {ROOMY:.0%}"
    return False, f"{why}; on if a single sample does not fit"


def _choose_compile(training: Training, num_parameters: int, machine: Machine) -> tuple[bool, str]:
    """Whether the student is compiled, and why."""
    if training.compile != "auto":
        return training.compile == "always", "as set"
    if machine.gpu_bytes is None:
        return False, "no GPU"
    updates = training.num_samples // training.global_batch_size
    pays = num_parameters >= MIN_PARAMETERS and updates >= MIN_UPDATES
    return pays, (
        f"{num_parameters / 1e9:.3g} billion parameters, {updates} updates; it pays from "
        f"{MIN_PARAMETERS / 1e9} billion and {MIN_UPDATES}"
    )


# ---- the teacher of online targets: what each place takes, and which one is chosen --------------

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
        student_bytes: of the student in training, see `state_bytes`.
    """
    names = [*folder.denoisers, "vae"]  # stock calls ask the VAE for the size of latents
    whole, streamed = (
        on_one_gpu(teacher.model_copy(update={"offload": offload, "num_gpus": 1}), folder, names)
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
    is_changed = bool(teacher.adapters or teacher.quantization)
    return not is_changed and there == {FILE_DTYPES[teacher.dtype]}


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
