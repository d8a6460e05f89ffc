"""A student that is its teacher plus low-rank additions; only these are trained and stored.

Their file in a student's folder has the names and the metadata that Diffusers gives a LoRA, so
`pipeline.load_lora_weights(folder)` reads it. Before the training it adds zero, and the weights
beside it are the student.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from distillery.config.student import Lora
from distillery.families import Family
from distillery.families.protocol import Denoiser
from distillery.model_folder import full_disk_as_os_error, load_denoiser
from distillery.teacher.adapters import cast

LORA_FILE = "pytorch_lora_weights.safetensors"
"""The name that Diffusers looks for."""
ADAPTER = "student"
METADATA = "lora_adapter_metadata"
"""Where Diffusers keeps an adapter's configuration in the header of its file."""


def pipeline_class(family: Family) -> Any:
    """The Diffusers class of a family's pipeline; Diffusers ships no types."""
    import diffusers

    return getattr(diffusers, family.pipeline_classes[0])


def check_lora(denoiser: Denoiser, lora: Lora, family: Family) -> None:
    """Raise ValueError unless each target is a layer of the network that can hold the rank.

    Args:
        denoiser: of the teacher, on any device.
    """
    name = family.pipeline_classes[0]
    if not hasattr(pipeline_class(family), "save_lora_weights"):
        raise ValueError(
            f"student.init is 'lora': Diffusers loads no LoRA into a {name}; use init: teacher or "
            "layers"
        )
    for target in lora.targets:
        matched = dict(_matched(denoiser, target))
        if not matched:
            raise ValueError(
                f"student.lora.targets has {target!r}, and no layer of the teacher's "
                f"{family.denoisers[0]} ends so; there are {', '.join(_ends(denoiser))}"
            )
        for layer, module in matched.items():
            _check_layer(layer, module, target, lora.rank)


def count_lora(denoiser: Denoiser, lora: Lora) -> int:
    """Numbers in the additions to a network that `check_lora` has passed."""
    layers = {
        name: module for target in lora.targets for name, module in _matched(denoiser, target)
    }
    return sum(lora.rank * sum(_sides(module)) for module in layers.values())


def _sides(module: torch.nn.Module) -> tuple[int, int]:
    """Outputs and inputs of a layer as a matrix; a convolution's inputs are those of its window."""
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return weight.shape[0], weight[0].numel()


def _check_layer(name: str, module: torch.nn.Module, target: str, rank: int) -> None:
    """Raise ValueError for a layer that takes no LoRA, or none of this rank."""
    if not _takes_lora(module):
        raise ValueError(
            f"student.lora.targets has {target!r}, and {name} is a {type(module).__name__}: only "
            "linear layers and plain convolutions get low-rank additions"
        )
    sides = _sides(module)
    if rank > min(sides):
        raise ValueError(
            f"student.lora.rank is {rank}, and {name} is {sides[0]} x {sides[1]}: use at most "
            f"{min(sides)}, or leave {target!r} out of student.lora.targets"
        )


def _takes_lora(module: torch.nn.Module) -> bool:
    is_plain = isinstance(module, torch.nn.Conv2d) and module.groups == 1
    return is_plain or isinstance(module, torch.nn.Linear)


def _matched(denoiser: Denoiser, target: str) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules that PEFT would give an addition: of this name, or with this end of a name."""
    for name, module in denoiser.named_modules():
        if name == target or name.endswith(f".{target}"):
            yield name, module


def _ends(denoiser: Denoiser) -> list[str]:
    """What targets can be called: the last part of layers' names, with the one before a number."""
    ends = set()
    for name, module in denoiser.named_modules():
        if _takes_lora(module):
            *before, last = name.split(".")
            ends.add(f"{before[-1]}.{last}" if last.isdigit() and before else last)
    return sorted(ends)


def add_lora(denoiser: Denoiser, lora: Lora, seed: int) -> None:
    """Put additions that are zero beside a network's weights, in place, and freeze the weights.

    The first factor is random (Kaiming, as PEFT does it), the same for the same seed; the second
    is zero, so the network computes what it did.
    """
    config = {
        "r": lora.rank,
        "lora_alpha": lora.rank if lora.alpha is None else lora.alpha,
        "target_modules": list(lora.targets),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _add_adapter(denoiser, config)


def _add_adapter(denoiser: Denoiser, config: Mapping[str, Any]) -> None:
    """Put in additions by a configuration, in float32 whatever the weights' type.

    PEFT freezes everything else.
    """
    from peft import LoraConfig

    denoiser.add_adapter(LoraConfig(**config), ADAPTER)  # type: ignore[operator]
    for parameter in denoiser.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def save_lora(denoiser: Denoiser, folder: Path, family: Family) -> None:
    """Write a network's additions as Diffusers writes them; the folder is made if need be."""
    from peft import get_peft_model_state_dict

    peft_config: Any = denoiser.peft_config[ADAPTER]  # type: ignore[index]
    # PEFT's whole configuration has sets, whose order differs between processes, and versions.
    config = {
        "r": peft_config.r,
        "lora_alpha": peft_config.lora_alpha,
        "target_modules": sorted(peft_config.target_modules),
    }
    tensors = get_peft_model_state_dict(denoiser, adapter_name=ADAPTER)
    prefix = family.denoisers[0]
    options = {
        f"{prefix}_lora_layers": {name: value.contiguous() for name, value in tensors.items()},
        f"{prefix}_lora_adapter_metadata": config,
    }
    with full_disk_as_os_error(folder / LORA_FILE):
        pipeline_class(family).save_lora_weights(folder, weight_name=LORA_FILE, **options)
        _keep_one_key(folder / LORA_FILE)


def _keep_one_key(path: Path) -> None:
    """Keep only the adapter's configuration in the header: safetensors writes several keys in an
    order that changes from call to call, and files that only their owner may read."""
    with safe_open(path, framework="pt") as file:
        metadata = {METADATA: file.metadata()[METADATA]}
    content = save(load_file(path), metadata=metadata)
    path.unlink()
    path.write_bytes(content)


def read_config(path: Path) -> dict[str, Any]:
    """An adapter's configuration, as `save_lora` wrote it: `r`, `lora_alpha`, `target_modules`."""
    with safe_open(path, framework="pt") as file:
        config = json.loads(file.metadata()[METADATA])
    return {name.partition(".")[2]: value for name, value in config.items()}


def has_lora(folder: Path) -> bool:
    """Whether the student in a folder is trained by its additions alone."""
    return (folder / LORA_FILE).is_file()


def load_with_lora(folder: Path, base: Path, dtype: torch.dtype) -> Denoiser:
    """The student in a folder with its additions beside the frozen weights.

    Args:
        base: folder of the network that has these.
        dtype: of the frozen weights; the additions are float32.
    """
    from peft import set_peft_model_state_dict

    denoiser = load_denoiser(base, dtype)
    _add_adapter(denoiser, read_config(folder / LORA_FILE))
    tensors = load_file(folder / LORA_FILE)
    own = {name.partition(".")[2]: value for name, value in tensors.items()}
    problems: Any = set_peft_model_state_dict(denoiser, own, adapter_name=ADAPTER)
    assert not problems.unexpected_keys, "the file was written for this network"
    return denoiser


def load_fused(folder: Path, base: Path, dtype: torch.dtype) -> Denoiser:
    """The same as one network; the additions are fused in float32."""
    whole = load_with_lora(folder, base, torch.float32)
    whole.fuse_lora(safe_fusing=True)  # type: ignore[operator]
    whole.unload_lora()  # type: ignore[operator]
    cast(whole, dtype)
    return whole
