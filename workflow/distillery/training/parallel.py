"""The student as the loop runs it: compiled, recomputed, and on several devices.

Each device has a copy (DDP), or a part (FSDP). Either way the gradients of all processes are
*summed*: the loop divides each sample's loss by the global batch size, so a sample counts the
same on every process.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from distillery.families.protocol import Denoiser
from distillery.teacher.loading import torch_dtype
from distillery.training.distributed import RankInfo, machine_of
from distillery.training.execution import (
    Execution,
    choose_execution,
    supports_checkpointing,
)

# A run is made from ways to learn, which need these functions. Quoted and not `from __future__`:
# DDP looks at the types of its hooks.
if TYPE_CHECKING:
    from distillery.training.run import Run

Tensor = TypeVar("Tensor", bound=torch.Tensor)
BLOCK_ELEMENTS = 1 << 26
"""Of gradients that are summed at once: 256 MB."""
CONVOLUTIONAL = "ResnetBlock2D"
"""The half of a UNet's blocks that Diffusers does not list as repeated."""


def blocks_of(denoiser: Denoiser) -> list[nn.Module]:
    """The repeated blocks of a Diffusers network, by the class names that it lists itself."""
    repeated = getattr(denoiser, "_repeated_blocks", None)
    names = [*(repeated or getattr(denoiser, "_no_split_modules", None) or []), CONVOLUTIONAL]
    return [module for module in denoiser.modules() if type(module).__name__ in names]


def shard(denoiser: Denoiser, ranks: RankInfo, device: torch.device, dtype: torch.dtype) -> None:
    """Deal the parameters out over the processes of a node, in place (FSDP2, Zhao et al. 2023,
    arXiv:2304.11277): each block's, and the rest's, are gathered while they are computed with.

    Gathered in `dtype`, summed in float32. Inputs are not cast: autocast does that where it is
    right, and a timestep of 999 in bfloat16 would be 1000.

    Args:
        denoiser: on the CPU or the device; its parameters become float32 `DTensor`s on the device.
        ranks: of this process; there are at least two.
    """
    # We change no output in place, which is what it warns of at every forward pass.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    mesh = _mesh(ranks, device)
    policy = MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for module in (*blocks_of(denoiser), denoiser):
        # The root too gives its weights back after each forward pass: one that no backward pass
        # follows would else leave weights behind that the next update makes old.
        sharded = fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)


def _mesh(ranks: RankInfo, device: torch.device) -> DeviceMesh:
    """Over all processes; on several nodes dealt out within each, whose links are the fast ones,
    and copied from node to node (HSDP)."""
    if ranks.num_nodes == 1:
        return init_device_mesh(device.type, (ranks.world_size,))
    return DeviceMesh(device.type, torch.tensor(ranks.nodes), mesh_dim_names=("copies", "parts"))


def is_sharded(denoiser: nn.Module) -> bool:
    """Whether each process holds other parts of the parameters."""
    return isinstance(denoiser, FSDPModule)


class _Copy(DistributedDataParallel):
    """One process's copy of a network, which still says what network it is."""

    @property
    def config(self) -> object:
        """Of the Diffusers network inside: families look at it."""
        return self.module.config


def wrap(
    model: nn.Module, ranks: RankInfo, device: torch.device, leaves_out: bool = False
) -> nn.Module:
    """The model as the loop calls it: gradients of all processes are *summed* by its backward.

    Args:
        leaves_out: whether some parameters get no gradient, for which DDP would wait.
    """
    if ranks.world_size == 1 or is_sharded(model):
        return model
    wrapped = _Copy(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        find_unused_parameters=leaves_out,
    )
    wrapped.register_comm_hook(
        None, _sum_gradients if device.type == "cuda" else _sum_gradients_in_order
    )
    return wrapped


def keeps_gradients(model: nn.Module) -> bool:
    """Whether gradients lie in DDP's buckets, where they must stay: once given up, the next ones
    would be made beside the buckets and take as much memory again."""
    return isinstance(model, DistributedDataParallel)


def _sum_gradients(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """All-reduce without the division by the number of processes."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])  # type: ignore[no-any-return]


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum gradients over all processes, in place, of a network that DDP does not wrap.

    A process without gradients, which had no samples, gets the others'. In blocks, each of which is
    copied once.
    """
    for block in in_blocks(parameters, torch.numel, BLOCK_ELEMENTS):
        for parameter in block:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if not dist.is_initialized():
            continue
        gradients = [parameter.grad for parameter in block if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        total = flat if flat.is_cuda else _sum_in_order(flat)
        if flat.is_cuda:
            dist.all_reduce(total)
        sums = torch.split(total, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, sums, strict=True):
            gradient.copy_(part.view_as(gradient))


def in_blocks(
    tensors: Iterable[Tensor], size_of: Callable[[Tensor], int], most: int
) -> Iterator[list[Tensor]]:
    """Tensors in their order, as many at a time as fill a block, or one that is larger."""
    block: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if block and size + size_of(tensor) > most:
            yield block
            block, size = [], 0
        block.append(tensor)
        size += size_of(tensor)
    if block:
        yield block


def _sum_gradients_in_order(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """`_sum_in_order` of a bucket of DDP."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(_sum_in_order(bucket.buffer()))
    return future


def _sum_in_order(buffer: torch.Tensor) -> torch.Tensor:
    """The sum over ranks 0, 1, 2, ..., always in this order.

    A ring reduces each part of a bucket in another order, and DDP regroups its buckets after the
    first update: with three processes a resumed run would differ from an undisturbed one in the
    last bits. On a CPU, where bytes are promised, the order is worth the memory.
    """
    parts = [torch.empty_like(buffer) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, buffer)
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total


@contextlib.contextmanager
def synchronising(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Whether backward passes prepared in here sum the gradients over the processes.

    It must surround the forward pass too: DDP decides there (setting it after `backward`
    synchronises the wrong micro-batch). A sharded model sums after every micro-batch, for there is
    no room for the whole gradient of all parameters.
    """
    if wanted or not isinstance(model, DistributedDataParallel):
        yield
    else:
        with model.no_sync():
            yield


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> torch.Tensor:
    """Scale gradients to a global norm of `max_norm` at most; returns the norm () before."""
    return full_tensor(nn.utils.clip_grad_norm_(parameters, max_norm))


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor on each process; all must call this together for a sharded one."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This process's part of `value`, if `like` is sharded and of the same shape, else `value`.

    Every process gives the whole value; nothing is sent.
    """
    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    return distribute_tensor(
        value.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )


@torch.no_grad()
def load_full(target: torch.Tensor, value: torch.Tensor) -> None:
    """Write a whole value into a tensor, sharded or not; every process gives the value."""
    target.copy_(shard_like(value, target))


@torch.no_grad()
def gather_denoiser(denoiser: Denoiser, ranks: RankInfo) -> None:
    """Make a sharded network of rank 0 whole again, in place and on the CPU, to be written.

    All processes must take part; one parameter is gathered at a time. On the other processes the
    network is of no more use. One that is not sharded stays as it is.
    """
    if not is_sharded(denoiser):
        return
    for module in denoiser.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            whole = full_tensor(parameter)
            if ranks.is_main:
                setattr(module, name, nn.Parameter(whole.cpu(), parameter.requires_grad))
    for module in denoiser.modules():
        if ranks.is_main and isinstance(module, FSDPModule):
            # `fully_shard` made a class of (FSDPModule, the network's own).
            module.__class__ = type(module).__bases__[1]


MAX_COMPILED = 256
"""Variants of one function: widths of blocks (12 of SDXL's residual ones) times sizes of
micro-batches. PyTorch gives up after 8, and then runs the rest without compiled code."""


def arrange(denoiser: Denoiser, run: "Run") -> Execution:
    """Bring a student onto this process's device, in place, as fits the hardware.

    To be called once, after what learns is set and before the optimizer is made: sharding replaces
    the parameters.

    Args:
        denoiser: on the CPU, in float32.

    Raises:
        ValueError: gradient checkpointing of a network that does not offer it.
    """
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in denoiser.parameters()]
    execution = choose_execution(
        run.training,
        num_parameters=sum(size for size, _ in sizes),
        num_trainable=sum(size for size, learns in sizes if learns),
        machine=machine_of(run.ranks, run.device),
        supports_checkpointing=supports_checkpointing(denoiser),
    )
    if run.ranks.is_main:
        for name, reason in execution.reasons.items():
            run.reporter.info(f"{name}: {getattr(execution, name)} ({reason})")
    if run.device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = run.training.tf32
    set_checkpointing(denoiser, execution.gradient_checkpointing)
    if execution.compile:
        compile_student(denoiser)
    if execution.parallel == "fsdp":
        shard(denoiser, run.ranks, run.device, torch_dtype(run.training.dtype))
    denoiser.to(run.device)
    return execution


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
    for module in blocks_of(denoiser) or [denoiser]:
        module.forward = torch.compile(module.forward, dynamic=False)


def uses_checkpointing(denoiser: Denoiser) -> bool:
    """Whether blocks are computed again in the backward pass."""
    return bool(getattr(denoiser, "is_gradient_checkpointing", False))


def set_checkpointing(denoiser: Denoiser, wanted: bool) -> None:
    """Turn gradient checkpointing on or off, between two updates."""
    if wanted and not uses_checkpointing(denoiser):
        denoiser.enable_gradient_checkpointing()  # type: ignore[operator]
    elif uses_checkpointing(denoiser) and not wanted:
        denoiser.disable_gradient_checkpointing()  # type: ignore[operator]
