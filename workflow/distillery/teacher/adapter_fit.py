"""Whether an adapter fits a network: each of its tensors has a place there, of the right shape.

PEFT and Diffusers say it in a line per tensor, and transformers drops what does not fit.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch

MAX_NAMED = 3
TIMES = "\N{MULTIPLICATION SIGN}"
TRAINED_ON_IT = "use one that was trained on this teacher"


MAX_SHOWN = 300
"""Characters of a library's own message, which may have a name for each tensor."""


def shorten(error: Exception) -> str:
    """The beginning of an error's message, in one line."""
    text = " ".join(str(error).split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} …"


def name_some(keys: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    names = sorted(keys)
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def check_fit(setting: str, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Check an adapter's tensors against the layers that they change.

    Args:
        model: the network; other adapters may be in it already.
        tensors: under PEFT's names, see `in_peft_names`.

    Raises:
        ValueError: some have no place in the network, or another shape than its layers.
    """
    layers = dict(model.named_modules())
    strange = [name for name in tensors if _layer_of(name) not in layers]
    if strange:
        raise ValueError(
            f"{setting}: {len(strange)} of its {len(tensors)} tensors do not: the model has no "
            f"place for {name_some(strange)}; {TRAINED_ON_IT}"
        )
    wrong = {}
    for name, tensor in tensors.items():
        shape = _shape_there(name, tensor, layers[_layer_of(name)])
        if tuple(tensor.shape) != shape:
            wrong[name] = f"which is {_shown(tensor.shape)} and would have to be {_shown(shape)}"
    if wrong:
        first = min(wrong)
        raise ValueError(
            f"{setting}: {len(wrong)} of its {len(tensors)} tensors do not, first {first}, "
            f"{wrong[first]}; {TRAINED_ON_IT}"
        )
    _check_pairs(setting, layers, tensors)


def _check_pairs(
    setting: str, layers: Mapping[str, torch.nn.Module], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Raise ValueError for half of a pair, two ranks in one, or a bias that a layer has not."""
    unbiased = [
        name
        for name in tensors
        if name.endswith(".lora_B.bias") and getattr(layers[_layer_of(name)], "bias", 0) is None
    ]
    if unbiased:
        raise ValueError(
            f"{setting}: the layers of {name_some(unbiased)} have no bias that it could change; "
            f"{TRAINED_ON_IT}"
        )
    for one, other in (("A", "B"), ("B", "A")):
        lacking = {
            name.replace(f".lora_{one}.", f".lora_{other}.")
            for name in tensors
            if name.endswith(f".lora_{one}.weight")
        } - tensors.keys()
        if lacking:
            raise ValueError(f"{setting}: the file lacks {name_some(lacking)}; {TRAINED_ON_IT}")
    for name, up in tensors.items():
        down = tensors.get(name.replace(".lora_B.", ".lora_A."), up)
        if name.endswith(".lora_B.weight") and tuple(up.shape[1:2]) != tuple(down.shape[:1]):
            raise ValueError(
                f"{setting}: {name} is {_shown(up.shape)}, which does not go with the rank of its "
                f"lora_A, {_shown(down.shape)}; {TRAINED_ON_IT}"
            )


def _layer_of(name: str) -> str:
    """The name of the layer that an adapter's tensor changes."""
    return name.partition(".lora_")[0]


def _shape_there(name: str, tensor: torch.Tensor, layer: torch.nn.Module) -> tuple[int, ...]:
    """The shape that a tensor needs; its own where PEFT has to judge of it."""
    own = tuple(tensor.shape)
    layer = getattr(layer, "base_layer", layer)
    if not isinstance(layer, torch.nn.Linear | torch.nn.Conv2d):
        return own
    weight = layer.weight
    if getattr(layer, "groups", 1) != 1:
        return own
    rank = own[0] if own else 1
    if name.endswith(".lora_A.weight"):
        return rank, *weight.shape[1:]
    if name.endswith(".lora_B.weight"):
        return weight.shape[0], *(own[1:] if len(own) == weight.dim() else [rank])
    return own


def _shown(shape: Iterable[int]) -> str:
    """A shape as people write it: 2 × 24."""
    return f" {TIMES} ".join(str(size) for size in shape)


def in_peft_names(
    tensors: Mapping[str, torch.Tensor], prefix: str, model: torch.nn.Module
) -> dict[str, torch.Tensor]:
    """A component's tensors under the names that PEFT gives them in the model.

    Args:
        tensors: of the whole adapter, in Diffusers' names.
        prefix: the beginning of the component's.
    """
    from diffusers.utils import convert_unet_state_dict_to_peft

    start = f"{prefix}."
    own = {
        key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)
    }
    if not hasattr(model, "load_lora_adapter"):
        without = "" if hasattr(model, "text_model") else "text_model."
        return {_text_name(key).removeprefix(without): value for key, value in own.items()}
    # As Diffusers does, which looks at the first name alone.
    return dict(own if "lora_A" in next(iter(own), "") else convert_unet_state_dict_to_peft(own))


def _text_name(name: str) -> str:
    """PEFT's name of a text encoder's tensor, from that of any age of Diffusers."""
    for old in ("q", "k", "v", "out"):
        name = name.replace(f".to_{old}_lora.", f".{old}_proj.lora.")
        name = name.replace(f".to_{old}.lora_mag", f".{old}_proj.lora_mag")
    name = name.replace(".lora_linear_layer.", ".lora.")
    return name.replace(".lora.down.", ".lora_A.").replace(".lora.up.", ".lora_B.")


def config_of(named: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The configuration of PEFT in which each layer's alpha is its rank, so its scale is 1."""
    ranks = {
        _layer_of(name): value.shape[1]
        for name, value in named.items()
        if name.endswith(".lora_B.weight") and value.dim() > 1
    }
    usual = Counter(ranks.values()).most_common(1)[0][0] if ranks else 1
    others = {f"^{re.escape(layer)}": rank for layer, rank in ranks.items() if rank != usual}
    return {
        "r": usual,
        "lora_alpha": usual,
        "rank_pattern": others,
        "alpha_pattern": dict(others),
        "target_modules": sorted({_layer_of(name) for name in named}),
        "use_dora": any("lora_magnitude_vector" in name for name in named),
        "lora_bias": any(name.endswith("lora_B.bias") for name in named),
    }


def check_all_loaded(
    setting: str, model: torch.nn.Module, adapter: str, names: Iterable[str]
) -> None:
    """Raise ValueError unless the model took each tensor of the file, and lacks none.

    Args:
        setting: how the message begins.
        names: of the file's tensors, as PEFT has them.
    """
    from peft import get_peft_model_state_dict

    taken, given = set(get_peft_model_state_dict(model, adapter_name=adapter)), set(names)
    if taken == given:
        return
    strange, lacking = name_some(given - taken), name_some(taken - given)
    problems = [f"the model has no place for {strange}"] if strange else []
    problems += [f"the file lacks {lacking}"] if lacking else []
    raise ValueError(f"{setting}: {'; '.join(problems)}; {TRAINED_ON_IT}")
