"""Where a pipeline's weights lie while it works, and which kernels its attention takes."""

from collections.abc import Iterable, Mapping

import torch

from distillery.config.section import Dtype
from distillery.config.teacher import Teacher
from distillery.families.protocol import Denoiser, Pipeline
from distillery.files import GIB

HALF_ONLY = ("flash", "sage", "aiter", "cudnn")
"""Parts of the names of attention backends whose kernels take no float32."""


def place(pipeline: Pipeline, teacher: Teacher, device: torch.device) -> Pipeline:
    """Move a pipeline that was loaded on the CPU to where the configuration wants it.

    Offload before any `.to(device)`: a pipeline that was whole on the GPU has needed its memory.

    Raises:
        ValueError: there are too few GPUs, or the networks do not fit on them.
    """
    check_devices(teacher, device)
    if teacher.offload == "model":
        pipeline.enable_model_cpu_offload(device=device)
    elif teacher.offload == "sequential":
        pipeline.enable_sequential_cpu_offload(device=device)
    elif teacher.num_gpus > 1:
        spread(pipeline, teacher.num_gpus, device)
    else:
        pipeline.to(device)
    return pipeline


def check_devices(teacher: Teacher, device: torch.device) -> None:
    """Raise ValueError unless this job has the GPUs that the configuration counts on."""
    if device.type != "cuda" and teacher.offload != "none":
        raise ValueError(
            f"teacher.offload is {teacher.offload!r} and this job has no GPU, so all weights are "
            "in the host's memory anyway: set offload: none"
        )
    num_visible = torch.cuda.device_count() if device.type == "cuda" else 0
    if num_visible < teacher.num_gpus > 1:
        raise ValueError(
            f"teacher.num_gpus is {teacher.num_gpus} and this job sees {num_visible}: set "
            f"num_gpus: {max(num_visible, 1)}, or give the job more (on a cluster by the profile's "
            "set-resources)"
        )


def spread(pipeline: Pipeline, num_gpus: int, device: torch.device) -> None:
    """Spread the networks that can be split over the first GPUs; the rest goes to `device`.

    Diffusers' own `device_map="balanced"` gives whole components to GPUs, so the denoiser, by far
    the largest, would still have to fit on one. The VAE stays whole: `decode` is no `forward`, and
    hooks move only the inputs of `forward`.
    """
    from accelerate import dispatch_model

    for name, model in pipeline.components.items():
        if not isinstance(model, torch.nn.Module):
            continue
        blocks = list(getattr(model, "_no_split_modules", None) or ())
        if name == "vae" or not blocks:
            model.to(device)
            continue
        free = {index: torch.cuda.mem_get_info(index)[0] for index in range(num_gpus)}
        places = plan_blocks(model, balance(model, free, blocks), blocks)
        dispatch_model(model, places, main_device=device)


def balance(
    model: torch.nn.Module, free: Mapping[int, int], blocks: Iterable[str]
) -> dict[int, int]:
    """Bytes that each GPU may take of a model so that they share it evenly.

    Args:
        free: bytes on each GPU.
        blocks: classes whose modules stay whole. Room for the largest comes on top: accelerate
            leaves that much free on the first GPU, and on the others a block may stick out.
    """
    from accelerate.utils import compute_module_sizes

    sizes, whole = compute_module_sizes(model), set(blocks)
    largest = max(
        sizes[name]
        for name, part in model.named_modules()
        if name in sizes and (type(part).__name__ in whole or not any(part.children()))
    )
    share = -(-sizes[""] // len(free)) + largest
    *others, last = free
    return {index: min(free[index], share) for index in others} | {last: free[last]}


def plan_blocks(
    model: torch.nn.Module, memory: Mapping[int, int], blocks: Iterable[str]
) -> dict[str, int]:
    """Which GPU gets which part of a model.

    Args:
        memory: bytes that each GPU may take.
        blocks: classes whose modules stay whole.

    Raises ValueError if it does not fit.
    """
    from accelerate import infer_auto_device_map

    gpu_of_part: dict[str, int] = infer_auto_device_map(
        model, max_memory=dict(memory), no_split_module_classes=list(blocks)
    )
    outside = [name for name, place in gpu_of_part.items() if place not in memory]
    if outside:
        sizes = ", ".join(f"{size / GIB:.2f}" for size in memory.values())
        raise ValueError(
            f"{type(model).__name__} does not fit on {len(memory)} GPUs with {sizes} GiB for it: "
            f"{len(outside)} parts remain; raise teacher.num_gpus, or use teacher.offload with "
            "num_gpus: 1"
        )
    return gpu_of_part


def check_attention(denoiser: Denoiser, name: str, dtype: Dtype) -> None:
    """Raise ValueError unless a denoiser's attention can take the kernels of this name.

    Denoisers with Diffusers' older attention processors silently ignore the setting.

    Args:
        denoiser: on any device.
        name: of Diffusers' attention backend.
        dtype: of the denoiser when it computes.
    """
    from diffusers.models.attention_dispatch import AttentionBackendName

    known = [backend.value for backend in AttentionBackendName]
    if name not in known:
        raise ValueError(f"teacher.attention is {name!r}: Diffusers knows {', '.join(known)}")
    if dtype == "float32" and any(part in name for part in HALF_ONLY):
        raise ValueError(
            f"teacher.attention is {name!r} with dtype: float32: its kernels take bfloat16 and "
            "float16 alone; set dtype: bfloat16 or attention: native"
        )
    processors = [getattr(module, "processor", None) for module in denoiser.modules()]
    if not any(hasattr(processor, "_attention_backend") for processor in processors):
        raise ValueError(
            f"teacher.attention is {name!r}: the attention of {type(denoiser).__name__} always "
            "calls PyTorch's own and would ignore it; set attention: null"
        )


def lacking_for_attention(name: str) -> str | None:
    """What the kernels of a known name lack on this machine, in Diffusers' words; None: nothing."""
    from diffusers.models import attention_dispatch

    backend = attention_dispatch.AttentionBackendName(name)
    try:
        attention_dispatch._check_attention_backend_requirements(backend)
    except RuntimeError as error:
        return str(error).rstrip(".")
    return None


def set_attention(denoiser: Denoiser, name: str, dtype: Dtype) -> None:
    """Let a denoiser's attention take the kernels of this name; arguments as of `check_attention`.

    Raises ValueError where it cannot: see there, or a package is missing.
    """
    check_attention(denoiser, name, dtype)
    try:
        denoiser.set_attention_backend(name)  # type: ignore[operator]
    except (RuntimeError, ImportError, OSError) as error:
        raise ValueError(f"teacher.attention is {name!r}: {error}") from error
