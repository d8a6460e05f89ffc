"""The plan of a training: how it will use the hardware, how much memory it takes, and why."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from distillery.config.run import Config
from distillery.config.student import OF_TEACHER
from distillery.config.training import Training, on_batch_size, on_teacher_rank
from distillery.files import readable
from distillery.launcher import num_processes
from distillery.notes import Note, doubt, error
from distillery.planning.gpus import Gpus
from distillery.planning.residence import plan_residence
from distillery.student.info import StudentInfo
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.memory import ITEM_BYTES, TIGHT
from distillery.training.execution import (
    Execution,
    Machine,
    choose_execution,
    supports_checkpointing,
)

TENSOR_CORES = (8, 0)
"""Compute capability from which GPUs multiply bfloat16 and TF32 in hardware."""


def plan_machine(config: Config, gpus: Gpus) -> Machine:
    """What trains: one process for each planned GPU, or on a CPU.

    Raises ValueError where no GPU is left beside those of the teacher.
    """
    processes = config.hardware.cpu_processes, config.own_gpus
    world_size = num_processes(gpus.count, gpus.num_nodes, *processes)
    return Machine(world_size, gpus.memory_bytes, gpus.capability, gpus.num_nodes)


def plan_execution(
    config: Config, student: StudentInfo, folder: PipelineFolder, machine: Machine
) -> Execution:
    """How it trains.

    Raises ValueError for gradient checkpointing of a network that does not offer it, or online
    targets of a sharded student.
    """
    additions = student.trained_parameters if student.init == "lora" else 0
    return choose_execution(
        config.training,
        student.num_parameters + additions,
        student.trained_parameters,
        machine,
        supports_checkpointing(folder.denoiser_class),
    )


def plan_training(
    config: Config,
    student: StudentInfo,
    folder: PipelineFolder,
    gpus: Gpus,
    machine: Machine,
    execution: Execution,
) -> dict[str, Any]:
    """What a training on the planned GPUs does, of a student as planned."""
    choices = list_choices(config.training, execution, machine)
    if gpus.is_unknown:  # the rest follows from the memory
        choices = [("processes", str(gpus.count), "one per GPU")]
    return {
        "machine": asdict(machine),
        "bytes_per_device": execution.bytes_per_device,
        "vae_bytes": vae_bytes(config, folder.parameters["vae"]),
        "teacher": plan_residence(config, student, folder, execution.bytes_per_device, machine),
        "choices": [
            {"setting": setting, "value": value, "reason": reason}
            for setting, value, reason in choices
        ],
    }


def vae_bytes(config: Config, num_parameters: int) -> int:
    """Bytes of the VAE beside the student: once for previews, once for the perceptual loss."""
    previews = ITEM_BYTES[config.teacher.vae_dtype] * bool(config.previews.every_samples)
    perceptual = ITEM_BYTES["float32"] * config.training.decodes
    return num_parameters * (previews + perceptual)


def list_choices(
    training: Training, execution: Execution, machine: Machine
) -> list[tuple[str, str, str]]:
    """(setting, value, reason) of every choice that the hardware has a say in."""
    on_gpu = machine.gpu_bytes is not None
    reasons = execution.reasons
    recompute = "on" if execution.gradient_checkpointing else "off"
    return [
        ("processes", str(machine.world_size), "one per GPU" if on_gpu else "no GPU"),
        ("parallel", execution.parallel, reasons["parallel"]),
        ("micro_batch_size", *_micro_batch(training, machine)),
        ("gradient_checkpointing", recompute, reasons["gradient_checkpointing"]),
        ("compile", "on" if execution.compile else "off", reasons["compile"]),
        ("dtype", training.dtype, "of the forward pass, as set; master weights are float32"),
        ("tf32", *_tf32(training, machine)),
        (
            "optimizer",
            "fused AdamW" if on_gpu else "AdamW",
            "one kernel for all parameters" if on_gpu else "no GPU",
        ),
        ("attention", "SDPA", "PyTorch picks flash, cuDNN or its own kernel by shape and GPU"),
    ]


def _micro_batch(training: Training, machine: Machine) -> tuple[str, str]:
    """Samples at once, and why."""
    share = -(-training.global_batch_size // machine.world_size)
    of_batch = f"of the global batch's {training.global_batch_size}"
    if training.micro_batch_size != "auto":
        size = min(training.micro_batch_size, share)
        return str(size), f"as set; a process has {share} {of_batch}"
    if machine.gpu_bytes is None:
        return str(share), f"a process's share {of_batch}"
    return f"{share} at most", f"a process's share {of_batch}, halved until it fits"


def _tf32(training: Training, machine: Machine) -> tuple[str, str]:
    """Whether float32 products are rounded to TF32, and why."""
    if machine.gpu_bytes is None:
        return "off", "no GPU"
    if not training.tf32:
        return "off", "as set"
    if _is_old(machine):
        return "off", f"a GPU of compute capability {_dotted(machine)} has none"
    return "on", "of the float32 matrix products that are left beside dtype"


def on_previews(config: Config, execution: Execution) -> Iterator[Note]:
    """Previews of a sharded student, which the training would refuse, hours later."""
    if execution.parallel == "fsdp" and config.previews.every_samples:
        yield error(
            f"previews.every_samples is {config.previews.every_samples}",
            f" and these GPUs train with fsdp ({execution.reasons['parallel']}), under which no "
            "process can draw alone",
            "set previews.every_samples: 0, and draw from a checkpoint with snakemake --cores all "
            "results/{run}/student/previews/samples-000000003200/sheet.png "
            "--configfile config/mine.yaml",
        )


def on_training(
    training: Training, execution: Execution, machine: Machine, init: str
) -> Iterator[Note]:
    """Processes without work, and what to set where the student, of `student.init`, does not fit,
    or the GPU is not made for its dtype."""
    yield from on_teacher_rank(training, machine.world_size)
    yield from on_batch_size(training, machine.world_size, "doubt")
    if _is_old(machine) and training.dtype == "bfloat16":
        yield doubt(
            "training.dtype is bfloat16",
            f", which a GPU of compute capability {_dotted(machine)} only imitates",
            "write float32",
        )
    need, gpu = execution.bytes_per_device, machine.gpu_bytes
    if gpu is not None and need > TIGHT * gpu:
        yield doubt(
            f"training needs {readable(need)}",
            f" on each GPU without activations, a GPU has {readable(gpu)}",
            _remedy(execution, machine, init),
        )


def _remedy(execution: Execution, machine: Machine, init: str) -> str:
    """The next thing to try for a student that does not fit."""
    if execution.parallel == "ddp":
        more = "set training.parallel: fsdp"
    else:
        more = "use several GPUs" if machine.world_size == 1 else "use more GPUs"
    if init in OF_TEACHER:  # almost all of it are frozen weights, whatever the rank
        return f"{more}, or GPUs of more memory"
    return f"{more}, keep fewer blocks with student.init: layers, or train additions with lora"


def _is_old(machine: Machine) -> bool:
    """Whether the GPU is known to be without bfloat16 and TF32."""
    return machine.capability is not None and machine.capability < TENSOR_CORES


def _dotted(machine: Machine) -> str:
    """The capability as CUDA writes it, e.g. 9.0."""
    return ".".join(map(str, machine.capability or ()))
