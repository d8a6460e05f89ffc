"""Whether an adapter fits a network: each of its tensors has a place there, of the right shape.

PEFT and Diffusers say it in a line per tensor, and transformers drops what does not fit.
"""

from collections.abc import Iterable, Mapping

import torch

MAX_NAMED = 3
TIMES = "\N{MULTIPLICATION SIGN}"
TRAINED_ON_IT = "use one that was trained on this teacher"


def name_some(keys: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    names = sorted(keys)
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def check_fit(setting: str, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Check an adapter's tensors against the layers that they change.

    Args:
        setting: how messages begin.
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
    if len(own) != weight.dim() or getattr(layer, "groups", 1) != 1:
        return own
    if name.endswith(".lora_A.weight"):
        return own[0], *weight.shape[1:]
    if name.endswith(".lora_B.weight"):
        return weight.shape[0], *own[1:]
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
        model: the component.
    """
    from diffusers.utils import (
        convert_state_dict_to_diffusers,
        convert_state_dict_to_peft,
        convert_unet_state_dict_to_peft,
    )

    start = f"{prefix}."
    own = {
        key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)
    }
    if not hasattr(model, "load_lora_adapter"):
        own = convert_state_dict_to_peft(convert_state_dict_to_diffusers(own))
        flat = not hasattr(model, "text_model")
        return {key.removeprefix("text_model.") if flat else key: own[key] for key in own}
    if not any("lora_A" in key for key in own):
        own = convert_unet_state_dict_to_peft(own)
    return dict(own)


def check_all_loaded(
    setting: str, model: torch.nn.Module, adapter: str, names: Iterable[str]
) -> None:
    """Raise ValueError unless the model took each tensor of the file, and lacks none.

    Args:
        setting: how the message begins.
        model: with the adapter.
        adapter: its name there.
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
