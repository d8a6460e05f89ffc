"""The student as the loop runs it: recomputed, compiled, sharded, as `execution` decides."""

import torch

from distillery.families.protocol import Denoiser
from distillery.teacher.loading import torch_dtype
from distillery.training import distributed, parallel
from distillery.training.execution import Execution, Machine, can_recompute, choose_execution
from distillery.training.run import Run

MAX_COMPILED = 256
"""Variants of one function: widths of blocks (12 of SDXL's residual ones) times sizes of
micro-batches. PyTorch gives up after 8, and then runs the rest without compiled code."""


def arrange(denoiser: Denoiser, run: Run) -> Execution:
    """Bring a student onto this process's device, in place, as fits the hardware.

    To be called once, after what learns is set and before the optimizer is made: sharding replaces
    the parameters.

    Args:
        denoiser: on the CPU, in float32.
        run: settings, place and device.

    Raises:
        ValueError: gradient checkpointing of a network that does not offer it.
    """
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in denoiser.parameters()]
    execution = choose_execution(
        run.training,
        num_parameters=sum(size for size, _ in sizes),
        num_trainable=sum(size for size, learns in sizes if learns),
        machine=machine_of(run),
        recomputable=can_recompute(denoiser),
    )
    if run.place.is_main:
        for name, reason in execution.reasons.items():
            run.reporter.info(f"{name}: {getattr(execution, name)} ({reason})")
    if run.device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = run.training.tf32
    recompute(denoiser, execution.gradient_checkpointing)
    if execution.compile:
        compile_student(denoiser)
    if execution.parallel == "fsdp":
        parallel.shard(denoiser, run.place, run.device, torch_dtype(run.training.dtype))
    denoiser.to(run.device)
    return execution


def machine_of(run: Run) -> Machine:
    """What decides, as rank 0 sees it: all processes must choose alike."""
    if run.device.type != "cuda":
        return Machine(run.place.num_processes)
    found = torch.cuda.get_device_properties(run.device)
    gpu_bytes = int(distributed.from_main(str(found.total_memory), run.device))
    return Machine(run.place.num_processes, gpu_bytes, (found.major, found.minor))


def compile_student(denoiser: Denoiser) -> None:
    """Compile a network's blocks, and with them their backward passes, in place.

    Block by block also where generation compiles a network whole: alike blocks share their code, so
    it takes minutes less, gradients are sent while earlier blocks are still computed, and hooks of
    sharding or gradient checkpointing stand around a block. What is compiled is `forward`, so that
    such hooks stay outside.
    """
    # DDP's own splitting of compiled graphs refuses gradient checkpointing, which may be turned on
    # later. Blocks send their gradients one by one without it.
    torch._dynamo.config.optimize_ddp = False
    torch._dynamo.config.recompile_limit = MAX_COMPILED
    for module in parallel.blocks_of(denoiser) or [denoiser]:
        module.forward = torch.compile(module.forward, dynamic=False)


def is_recomputing(denoiser: Denoiser) -> bool:
    """Whether blocks are computed again in the backward pass."""
    return bool(getattr(denoiser, "is_gradient_checkpointing", False))


def recompute(denoiser: Denoiser, wanted: bool) -> None:
    """Turn gradient checkpointing on or off, between two updates."""
    if wanted and not is_recomputing(denoiser):
        denoiser.enable_gradient_checkpointing()  # type: ignore[operator]
    elif is_recomputing(denoiser) and not wanted:
        denoiser.disable_gradient_checkpointing()  # type: ignore[operator]
