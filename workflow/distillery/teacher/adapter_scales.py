"""Files whose alphas Diffusers 0.42 hands to the wrong layers.

What was computed with such a file before each layer had its own scale is of another teacher, so it
needs another recipe. All other files keep theirs.
"""

from collections.abc import Mapping
from math import isclose
from typing import Any

import torch

from distillery.teacher.adapter_fit import peft_names
from distillery.teacher.folder import PipelineFolder

CLOSE = 1e-4
"""Of a layer's strength: far above the rounding of float32."""
SEEN_BY_RANK = (".q_proj", ".k_proj", ".v_proj", ".out_proj", ".fc1", ".fc2")
"""Layers of a text encoder of which Diffusers reads the rank."""


def misread(
    tensors: Mapping[str, torch.Tensor],
    converted: Mapping[str, torch.Tensor],
    folder: PipelineFolder,
) -> frozenset[str]:
    """Prefixes of the components in which Diffusers scales some layer otherwise than the file.

    Args:
        tensors: of the file, with its alphas.
        converted: the same in Diffusers' names, each as strong as the file says.
    """
    from diffusers.configuration_utils import FrozenDict

    given = [value for name, value in tensors.items() if name.endswith(".alpha")]
    prefixes = frozenset(name.partition(".")[0] for name in converted)
    if not given:
        return frozenset()
    if any((alpha < 0).any() for alpha in given):
        return prefixes  # Some converters halve and double for ever at these.
    try:
        theirs, *alphas, _ = folder.pipeline_class.lora_state_dict(
            {name: value.clone() for name, value in tensors.items()},
            unet_config=FrozenDict(folder.denoiser_config),
            return_alphas=True,
            return_lora_metadata=True,
        )
    except Exception:
        return frozenset()  # No earlier release read it either.
    return frozenset(
        prefix
        for prefix in prefixes
        if _differ(
            _strengths(theirs, (alphas[0] if alphas else None) or {}, prefix),
            _strengths(converted, {}, prefix),
        )
    )


def _differ(theirs: Mapping[str, float], right: Mapping[str, float]) -> bool:
    """Whether some layer of both is stronger in one."""
    return any(
        not isclose(theirs[layer], right[layer], rel_tol=CLOSE)
        for layer in theirs.keys() & right.keys()
    )


def _strengths(
    tensors: Mapping[str, torch.Tensor], alphas: Mapping[str, Any], prefix: str
) -> dict[str, float]:
    """By layer, the norms of its pair times the scale that Diffusers and PEFT give it."""
    from diffusers.utils.peft_utils import get_peft_kwargs
    from peft.utils.other import get_pattern_key

    is_text = prefix.startswith("text_encoder")
    named = peft_names(tensors, prefix, is_text)
    ups = {name: value for name, value in named.items() if "lora_B" in name and value.dim() > 1}
    ranks = {
        (name if is_text else f"^{name}"): value.shape[1]
        for name, value in ups.items()
        if not is_text or name.partition(".lora_B")[0].endswith(SEEN_BY_RANK)
    }
    if not ranks:
        return {}
    own = {
        name.removeprefix(f"{prefix}."): alpha
        for name, alpha in alphas.items()
        if name.startswith(f"{prefix}.")
    }
    config = get_peft_kwargs(ranks, own, named, is_unet=not is_text)
    strengths = {}
    for name, up in ups.items():
        layer = name.partition(".lora_B")[0]
        down = named[name.replace("lora_B", "lora_A")]
        rank = config["rank_pattern"].get(get_pattern_key(config["rank_pattern"], layer))
        alpha = config["alpha_pattern"].get(get_pattern_key(config["alpha_pattern"], layer))
        scale = float(config["lora_alpha"] if alpha is None else alpha) / (rank or config["r"])
        strengths[layer] = float(down.norm() * up.norm()) * scale
    return strengths
