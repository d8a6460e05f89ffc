"""A student that is its teacher but for how the time changes its blocks, which alone is trained.

As in "MTEO" (arXiv:2603.22375), few steps are learned by the embeddings of time while the backbone
stays frozen. What learns is what the family names: the layers that embed the time, and what each
block adds to the embedding or makes of it. Their file has names and shapes of the network's own
`state_dict`, so `load_state_dict(weights, strict=False)` makes the student of its teacher.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save

from distillery.families import Family
from distillery.families.protocol import Denoiser
from distillery.model_folder import load_denoiser
from distillery.student.info import TIME_FILE


def time_embeddings_of(denoiser: Denoiser, family: Family) -> dict[str, torch.nn.Parameter]:
    """The parameters that turn the time into what the blocks do, by their names.

    Raises:
        ValueError: the family does not say which they are.
    """
    found = {
        name: parameter
        for name, parameter in denoiser.named_parameters()
        if any(f".{part}." in f".{name}." for part in family.time_embeddings)
    }
    if not found:
        raise ValueError(
            f"student.init is 'time_embeddings', and of a {type(denoiser).__name__} of the family "
            f"{family.name} it is not known which of its weights embed the time; use init: "
            "teacher, layers or lora"
        )
    return found


def save_time_embeddings(denoiser: Denoiser, folder: Path, family: Family) -> None:
    """Write what learns of a network, in float32."""
    tensors = {
        name: parameter.detach().float().contiguous()
        for name, parameter in time_embeddings_of(denoiser, family).items()
    }
    (folder / TIME_FILE).write_bytes(save(tensors, metadata={"format": "pt"}))


def has_time_embeddings(folder: Path) -> bool:
    """Whether of the student in a folder the time embeddings alone are trained."""
    return (folder / TIME_FILE).is_file()


def load_with_trainable(folder: Path, dtype: torch.dtype) -> Denoiser:
    """The untrained student in a folder, frozen in `dtype` but for what learns, in float32."""
    denoiser = load_denoiser(folder, dtype).requires_grad_(False)
    for name, value in load_file(folder / TIME_FILE).items():
        parameter = denoiser.get_parameter(name)
        parameter.data = value
        parameter.requires_grad_(True)
    return denoiser


def load_with_learned(folder: Path, base: Path, dtype: torch.dtype) -> Denoiser:
    """The trained student in a folder; the network in `base` has the frozen weights."""
    denoiser = load_denoiser(base, dtype)
    problems = denoiser.load_state_dict(load_file(folder / TIME_FILE), strict=False)
    assert not problems.unexpected_keys, "the file was written for this network"
    return denoiser
