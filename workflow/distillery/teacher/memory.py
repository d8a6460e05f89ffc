"""How much memory weights take, before anything is loaded, and what to set where it is too much.

Weights only: activations grow with the image and the batch, and are not estimated.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Literal

from distillery.config.section import Dtype
from distillery.config.teacher import Teacher
from distillery.files import readable
from distillery.notes import Note, doubt
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.quantization import PACKED_BYTES

ITEM_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
ROOMY, TIGHT = 0.5, 0.8
"""Shares of a GPU's memory that weights may take: up to the first batches are large, up to the
second there is room for small ones. Rules of thumb, not measured."""
Preset = Literal["large", "medium", "small", "cpu"]
PRESETS = Path("config/presets")
"""One file each, to be given as a further `--configfile`."""


@dataclass(frozen=True)
class Memory:
    """Bytes of weights.

    Attributes:
        components: of the teacher, each in the type in which it computes.
        jobs: on one GPU at once, in the stages that run the teacher.
        gpu: all memory of the smallest GPU that jobs get; None without one, or if not known.
        preset: what fits there, whatever the configuration says; None if it is not known.
    """

    components: dict[str, int]
    jobs: dict[str, int]
    gpu: int | None
    preset: Preset | None


def estimate(
    teacher: Teacher, folder: PipelineFolder, gpu: int | None, is_unknown: bool = False
) -> Memory:
    """The memory that a run's weights take.

    Args:
        gpu: memory of the smallest GPU; None without one.
        is_unknown: whether there are GPUs whose memory is not known.
    """
    family = folder.family
    components = {name: loaded_bytes(teacher, folder, name) for name in folder.sizes}
    texts = [name for name in components if name in family.text_components]
    others = [name for name in components if name not in family.text_components]
    plain = teacher.model_copy(update={"offload": "none", "num_gpus": 1})
    parts = [texts, others]
    jobs = {
        "embeddings": on_one_gpu(teacher, folder, texts),
        "targets and samples": on_one_gpu(teacher, folder, others),
    }
    if folder.is_traced:  # its calls are watched whole
        parts.append([*texts, *others])
        jobs["signature"] = on_one_gpu(teacher, folder, parts[-1])
    largest = max(on_one_gpu(plain, folder, names) for names in parts)
    return Memory(
        components=components,
        jobs=jobs,
        gpu=gpu,
        preset=None if is_unknown else choose_preset(largest, gpu),
    )


def item_bytes(teacher: Teacher, component: str) -> int:
    """Bytes of one number of a component."""
    return ITEM_BYTES[teacher.vae_dtype if component == "vae" else teacher.dtype]


def loaded_bytes(teacher: Teacher, folder: PipelineFolder, name: str) -> int:
    """Bytes of a component's weights where they compute, packed ones as they are packed."""
    size, item = folder.sizes[name], item_bytes(teacher, name)
    if teacher.quantization is None or name not in folder.denoisers:
        return size.num_parameters * item
    packed = ceil(size.packable * PACKED_BYTES[teacher.quantization])
    return (size.num_parameters - size.packable) * item + packed


def on_one_gpu(teacher: Teacher, folder: PipelineFolder, names: Iterable[str]) -> int:
    """Bytes of weights that lie on the fullest GPU at once, with the configuration's placement.

    Args:
        names: those that a job loads.
    """
    whole = {name: loaded_bytes(teacher, folder, name) for name in names}
    if teacher.offload == "model":
        return max(whole.values(), default=0)
    if teacher.offload == "sequential":
        sizes = folder.sizes
        tensors = (sizes[name].largest * item_bytes(teacher, name) for name in whole)
        return max(tensors, default=0)
    # The VAE stays whole on the first GPU.
    split = sum(size for name, size in whole.items() if name != "vae")
    return whole.get("vae", 0) + -(-split // teacher.num_gpus)


def choose_preset(weights: int, gpu: int | None) -> Preset:
    """Which file of `PRESETS` fits, by bytes and not by a GPU's name.

    Args:
        weights: of the largest job without offloading, on one GPU.
        gpu: memory of the smallest GPU, None without one.
    """
    if gpu is None:
        return "cpu"
    if weights <= ROOMY * gpu:
        return "large"
    return "medium" if weights <= TIGHT * gpu else "small"


def on_memory(teacher: Teacher, memory: Memory) -> Iterator[Note]:
    """What to set where weights will not fit this machine's GPUs, or count on GPUs it lacks."""
    if memory.preset is None:
        return
    if memory.gpu is None:
        yield from _without_gpu(teacher)
        return
    stage, need = max(memory.jobs.items(), key=lambda item: item[1])
    is_plain = teacher.quantization is None and teacher.dtype != "float32"
    packing = ", or pack the weights with teacher.quantization"
    if need > TIGHT * memory.gpu:
        yield doubt(
            f"{stage} need {readable(need)}",
            f" for the teacher's weights alone, a GPU has {readable(memory.gpu)}",
            f"{_remedy(teacher, memory)}{packing * (is_plain and stage != 'embeddings')} "
            "(docs/memory.md)",
        )


def _without_gpu(teacher: Teacher) -> Iterator[Note]:
    """Settings that count on a GPU."""
    if teacher.offload == "none" and teacher.num_gpus == 1:
        return
    key = "num_gpus" if teacher.num_gpus > 1 else "offload"
    yield doubt(
        f"teacher.{key} is {getattr(teacher, key)}",
        " and this machine has no GPU: jobs that run here would stop",
        "fine on a cluster whose nodes have them",
    )


def _remedy(teacher: Teacher, memory: Memory) -> str:
    """The next setting to try, from the one that costs least time to the one that costs most."""
    assert memory.gpu is not None
    if teacher.dtype == "float32":
        return "set teacher.dtype: bfloat16"
    if teacher.offload == "sequential":
        return "use a larger GPU"
    largest = max(memory.components.values())
    if teacher.offload == "none" and teacher.num_gpus == 1 and largest <= TIGHT * memory.gpu:
        return "set teacher.offload: model"
    # The VAE is not dealt out, and text encoders have gone when the denoiser comes: about right.
    whole = max(memory.jobs.values()) * teacher.num_gpus
    if teacher.offload == "model":
        whole = sum(memory.components.values())
    num_gpus = max(teacher.num_gpus + 1, ceil(whole / (TIGHT * memory.gpu)))
    if teacher.offload == "none":
        return f"set teacher.num_gpus: {num_gpus}, or 1 with offload: sequential"
    return f"set teacher.offload: sequential, or none with num_gpus: {num_gpus}"


def summarise_memory(memory: Mapping[str, Any]) -> str:
    """What weights take, in one line of the plan."""
    stages = ", ".join(f"{name} {readable(size)}" for name, size in memory["jobs"].items())
    gpu = f"a GPU has {readable(memory['gpu'])}, " if memory["gpu"] else ""
    preset = f"; {gpu}preset {preset_path(memory['preset'])}" if memory["preset"] else ""
    return f"{stages}{preset}"


def preset_path(preset: str) -> Path:
    """A preset's file: in the working folder, else in the checkout that holds this code."""
    path = PRESETS / f"{preset}.yaml"
    checked_out = Path(__file__).resolve().parents[3] / path
    return path if path.is_file() or not checked_out.is_file() else checked_out
