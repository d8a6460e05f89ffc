"""Put adapters into a model: load them in float32, check that all of them fits, fuse, cast.

Diffusers only warns when names in a file match nothing in the model, and leaves what it did not
find at random values. Here both are errors. Its `load_lora_weights` needs every component of a
pipeline; these functions call what it calls, one component at a time, since no job loads them all.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from distillery.config.teacher import Adapter, Teacher
from distillery.files import read_json
from distillery.teacher.adapters import (
    MAX_NAMED,
    Weights,
    choose_components,
    find_adapter,
    name_some,
    read_weights,
)
from distillery.teacher.find import INDEX, family_in


def adapt(
    components: Mapping[str, torch.nn.Module], teacher: Teacher, folder: Path, fuse: bool
) -> None:
    """Load the teacher's adapters into some of its components, in place.

    Args:
        components: by name, in float32; others that an adapter changes are skipped. On the
            meta device whether everything fits is found out just as well.
        teacher: section of the configuration.
        folder: of the teacher.
        fuse: add them to the weights; otherwise they stay beside them, active.

    Raises:
        ValueError: an adapter does not match, or the sum is not finite.
    """
    family = family_in(folder)
    loaded: dict[str, dict[str, float]] = {name: {} for name in components}
    for number, adapter in enumerate(teacher.adapters):
        weights = read_weights(find_adapter(adapter), folder)
        for name, prefix in choose_components(adapter, weights, folder, family).items():
            if name in components:
                _load(components[name], f"adapter_{number}", prefix, weights, adapter, folder)
                loaded[name][f"adapter_{number}"] = adapter.scale
    for name, scales in loaded.items():
        if scales:
            _activate(components[name], scales, fuse)


def _load(
    model: torch.nn.Module,
    name: str,
    prefix: str,
    weights: Weights,
    adapter: Adapter,
    folder: Path,
) -> None:
    """Load one adapter into one component under a name, and check that all of it fits."""
    import diffusers

    is_denoiser = hasattr(model, "load_lora_adapter")
    options: dict[str, Any] = {
        "prefix": prefix,
        "network_alphas": weights.alphas,
        "metadata": weights.metadata,
        "adapter_name": name,
        "low_cpu_mem_usage": is_denoiser,
    }
    try:
        if is_denoiser:
            model.load_lora_adapter(dict(weights.tensors), **options)  # type: ignore[operator]
        else:
            pipeline = getattr(diffusers, read_json(folder / INDEX)["_class_name"])
            pipeline.load_lora_into_text_encoder(
                dict(weights.tensors), text_encoder=model, **options
            )
    except (RuntimeError, ValueError, KeyError) as error:
        raise ValueError(
            f"teacher.adapters: {adapter.path} does not fit the teacher's {prefix}: "
            f"{_first_problems(error)}"
        ) from error
    _check_all_loaded(model, name, prefix, weights, adapter)


def _first_problems(error: Exception) -> str:
    """PyTorch names each tensor of another size, of hundreds on a line of its own; here a few."""
    heading, *lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    more = f" and {len(lines) - MAX_NAMED} more" if len(lines) > MAX_NAMED else ""
    return " ".join([heading, *lines[:MAX_NAMED]]) + more


def _check_all_loaded(
    model: torch.nn.Module, name: str, prefix: str, weights: Weights, adapter: Adapter
) -> None:
    """Raise ValueError unless the model took each tensor of the file, and lacks none."""
    from peft import get_peft_model_state_dict

    found = set(get_peft_model_state_dict(model, adapter_name=name))
    given = _in_peft_names(weights, prefix, model)
    if found == given:
        return
    strange, lacking = name_some(given - found), name_some(found - given)
    problems = [f"the model has no place for {strange}"] if strange else []
    problems += [f"the file lacks {lacking}"] if lacking else []
    raise ValueError(
        f"teacher.adapters: {adapter.path} does not fit the teacher's {prefix}: "
        f"{'; '.join(problems)}; use an adapter that was trained on this model"
    )


def _in_peft_names(weights: Weights, prefix: str, model: torch.nn.Module) -> set[str]:
    """The names of a component's tensors as PEFT has them in the model."""
    from diffusers.utils import (
        convert_state_dict_to_diffusers,
        convert_state_dict_to_peft,
        convert_unet_state_dict_to_peft,
    )

    start = f"{prefix}."
    own = {
        key.removeprefix(start): value
        for key, value in weights.tensors.items()
        if key.startswith(start)
    }
    if not hasattr(model, "load_lora_adapter"):
        own = convert_state_dict_to_peft(convert_state_dict_to_diffusers(own))
        flat = not hasattr(model, "text_model")
        return {key.removeprefix("text_model.") if flat else key for key in own}
    if not any("lora_A" in key for key in own):
        own = convert_unet_state_dict_to_peft(own)
    return set(own)


def _activate(model: torch.nn.Module, scales: Mapping[str, float], fuse: bool) -> None:
    """Switch a component's adapters on with their scales; fused ones become part of its weights."""
    from diffusers.loaders.lora_base import fuse_text_encoder_lora, set_adapters_for_text_encoder
    from diffusers.utils import recurse_remove_peft_layers

    set_adapters_for_text_encoder(list(scales), model, list(scales.values()))
    if not fuse:
        return
    try:
        fuse_text_encoder_lora(model, safe_fusing=True, adapter_names=list(scales))
    except ValueError as error:
        raise ValueError(
            f"teacher.adapters: with scales {list(scales.values())} the weights of "
            f"{type(model).__name__} are not finite ({error}): lower them, or leave an adapter out"
        ) from error
    recurse_remove_peft_layers(model)
    # A model that seems to have an adapter would save that alone.
    del model.peft_config
    model._hf_peft_config_loaded = False  # type: ignore[assignment]


def cast(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast a float32 model in place as Diffusers would have loaded it in another type.

    What the model's class keeps in float32 stays so, and adapters beside the weights too: a DoRA
    divides by norms that overflow in float16, and the image is black.
    """
    kept = set(getattr(model, "_keep_in_fp32_modules", None) or ())
    stored = model.state_dict(keep_vars=True)
    tensors = dict(stored) if kept else {**stored, **dict(model.named_buffers())}
    for name, tensor in tensors.items():
        stays = "lora_" in name or kept & set(name.split("."))
        if tensor.is_floating_point() and not stays:
            tensor.data = tensor.data.to(dtype)
