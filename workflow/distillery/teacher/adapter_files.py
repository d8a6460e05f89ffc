"""An adapter's file, read and checked: its tensors for the teacher's networks, and what they are.

Diffusers drops some parts of a file without a word, and scales some layers otherwise than the file
says. Here the first is an error, and each layer has its own scale.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from distillery.teacher.adapter_fit import name_some
from distillery.teacher.adapter_names import convert, dialect_of
from distillery.teacher.adapter_pairs import (
    find_pairs,
    fold_scales,
    read_metadata,
    read_tensors,
    without_effect,
)
from distillery.teacher.folder import PipelineFolder


@dataclass(frozen=True)
class Facts:
    """What a plan and a recipe say of an adapter's file.

    Attributes:
        used: how many of its tensors arrive in the networks.
        zero: how many have no effect: zeros, and the partners of zeros. No others are left out.
        changes_nothing: whether that is all of them, or its scales are zero.
    """

    used: int
    zero: int
    changes_nothing: bool


@dataclass(frozen=True)
class Weights:
    """What an adapter's file holds, in Diffusers' names.

    Attributes:
        tensors: float32, by names that begin with their component's; each layer's own alpha / rank
            is in them.
        metadata: the configuration of PEFT that newer files carry, which scales them, else None.
        dialect: whose names the file has.
        facts: what is told of it.
    """

    tensors: Mapping[str, torch.Tensor]
    metadata: Mapping[str, Any] | None
    dialect: str
    facts: Facts


_KNOWN: dict[tuple[Any, ...], Facts] = {}
"""Of files that this process has read: a plan asks again, and a file may have a gigabyte."""


def read_weights(path: Path, folder: PipelineFolder) -> Weights:
    """Read an adapter's file through the teacher's pipeline class, and check its numbers.

    Raises:
        ValueError: the pipeline takes no adapters, the file is none, it is not finite, or a part
            of it would be left out.
    """
    if not hasattr(folder.pipeline_class, "lora_state_dict"):
        raise ValueError(
            f"teacher.adapters: Diffusers loads none into a {folder.class_name}; leave them out"
        )
    tensors, metadata = read_tensors(path), read_metadata(path)
    dora = [key for key in tensors if "dora_scale" in key]
    if dora:
        raise ValueError(
            f"teacher.adapters: {path} has DoRA scales as {dora[0]}, which Diffusers drops: "
            "convert it to PEFT's format (lora_magnitude_vector)"
        )
    pairs = list(find_pairs(tensors))
    _check_kind(path, tensors, metadata)
    folded = fold_scales(path, tensors, pairs)
    zero = without_effect(tensors, folded, pairs)
    converted, account = convert(path, tensors, folded, pairs, zero, folder)
    _check_converted(path, converted)
    idle = account.used == 0 or _has_zero_scale(metadata)
    facts = Facts(account.used, account.zero, idle)
    _KNOWN[_stamp(path, folder)] = facts
    return Weights(_with_all_biases(converted), metadata, dialect_of(tensors), facts)


def facts_of(path: Path, folder: PipelineFolder) -> Facts:
    """What a plan says of an adapter's file; raises as `read_weights`."""
    return _KNOWN.get(_stamp(path, folder)) or read_weights(path, folder).facts


def _stamp(path: Path, folder: PipelineFolder) -> tuple[Any, ...]:
    """What a file is known by while a process runs."""
    status = path.stat()
    return path.resolve(), status.st_size, status.st_mtime_ns, str(folder.path)


def _has_zero_scale(metadata: Mapping[str, Any] | None) -> bool:
    """Whether the configuration of PEFT multiplies all with zero."""
    alphas = []
    for key, value in (metadata or {}).items():
        if key.endswith("lora_alpha"):
            alphas.append(value)
        elif key.endswith("alpha_pattern") and isinstance(value, dict):
            alphas += value.values()
    return bool(alphas) and not any(alphas)


def _check_kind(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any] | None
) -> None:
    """Raise ValueError for a file that is no adapter, or whose scales are not in it, or twice."""
    foreign = [key for key in tensors if "lora" not in key]
    if not any("lora" in key for key in tensors):
        raise ValueError(
            f"teacher.adapters: {path} is no LoRA or DoRA: it holds "
            f"{name_some(foreign) or 'nothing'}"
        )
    if metadata and any(key.endswith(".alpha") for key in tensors):
        raise ValueError(
            f"teacher.adapters: {path} gives its scales twice, as tensors (*.alpha) and in its "
            "header (lora_adapter_metadata): remove one of them"
        )


def _check_converted(path: Path, converted: Mapping[str, torch.Tensor]) -> None:
    """Raise ValueError for tensors that belong to no adapter, or overflow with their scale."""
    foreign = [key for key in converted if "lora" not in key]
    if foreign or not converted:
        raise ValueError(
            f"teacher.adapters: {path} is no LoRA or DoRA: it holds "
            f"{name_some(foreign) or 'nothing'}"
        )
    peft = [key for key in converted if "base_model.model." in key]
    if peft:
        raise ValueError(
            f"teacher.adapters: {path} has PEFT's own names ({name_some(peft)}), whose scales are "
            "in the adapter_config.json beside it: load it with PEFT and save it with Diffusers' "
            "save_lora_weights, which writes both into one file"
        )
    bad = [key for key, value in converted.items() if not value.isfinite().all()]
    if bad:
        raise ValueError(
            f"teacher.adapters: {path} is not finite in {name_some(bad)}: its alphas are too large"
        )


def _with_all_biases(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """With zeros for the biases that a file leaves out: PEFT wants all of a component or none."""
    biased = {key.partition(".")[0] for key in tensors if key.endswith("lora_B.bias")}
    ups = [key for key in tensors if key.endswith("lora_B.weight")]
    zeros = {
        f"{key.removesuffix('weight')}bias": tensors[key].new_zeros(tensors[key].shape[0])
        for key in ups
        if key.partition(".")[0] in biased
    }
    return {**tensors, **{key: value for key, value in zeros.items() if key not in tensors}}
