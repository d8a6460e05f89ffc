"""The student as the loop runs it: recomputed, compiled, sharded, as `execution` decides."""

import torch

from distillery.families import Family
from distillery.families.protocol import Denoiser
from distillery.teacher.loading import torch_dtype
from distillery.training import distributed, parallel
from distillery.training.execution import Execution, Machine, can_recompute, choose_execution
from distillery.training.run import Run

MAX_COMPILED = 64
"""Variants of one function: sizes of micro-batches and widths of blocks. PyTorch gives up after 8,
and then runs all blocks of the class without compiled code."""


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
    if execution.gradient_checkpointing:
        denoiser.enable_gradient_checkpointing()  # type: ignore[operator]
    if execution.compile:
        compile_student(denoiser, run.dataset.family, execution)
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


def compile_student(denoiser: Denoiser, family: Family, execution: Execution) -> None:
    """Compile a network's forward pass, and with it the backward pass, in place.

    By its repeated blocks, or whole where the family's work is not all in them. Whole is not
    possible where hooks stand around the blocks, of sharding or of gradient checkpointing; the
    blocks then. What is compiled is `forward`, so that such hooks stay outside.
    """
    # DDP's own splitting of compiled graphs refuses gradient checkpointing, which may be turned on
    # later, and cuts a large network into hundreds. Without it, blocks still send their gradients
    # one by one; a student compiled whole sends them at the end.
    torch._dynamo.config.optimize_ddp = False
    torch._dynamo.config.recompile_limit = MAX_COMPILED
    whole = not family.compiles_by_block and not (
        execution.gradient_checkpointing or execution.parallel == "fsdp"
    )
    blocks = parallel.blocks_of(denoiser)
    for module in [denoiser] if whole or not blocks else blocks:
        module.forward = torch.compile(module.forward, dynamic=False)
