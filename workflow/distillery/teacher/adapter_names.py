"""An adapter's file under the names of the teacher's networks: what is used, and what is not.

The converters of Diffusers know the names of many trainers. Some parts they drop without a word,
some they meet with an exception. Each tensor is followed through them here, so what does not arrive
is known by what happens, not by a list of names.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from distillery.teacher.adapter_fit import name_some, shorten
from distillery.teacher.adapter_pairs import Pair
from distillery.teacher.folder import PipelineFolder

COMPONENT = ("unet", "transformer", "transformer_2", "text_encoder", "text_encoder_2")
"""First parts of Diffusers' names; a name without one is of the denoiser."""
DIALECTS = {
    "lora_unet_": "kohya's names, lora_unet_*",
    "lora_te": "kohya's names, lora_te*",
    "lora_transformer_": "kohya's names, lora_transformer_*",
    "base_model.model.": "PEFT's own names, base_model.model.*",
    "diffusion_model.": "ComfyUI's names, diffusion_model.*",
    "text_encoders.": "ComfyUI's names, text_encoders.*",
    "model.diffusion_model.": "a checkpoint's names, model.diffusion_model.*",
    "double_blocks.": "XLabs' names, double_blocks.*",
    "single_blocks.": "XLabs' names, single_blocks.*",
    **{f"{name}.": f"Diffusers' names, {name}.*" for name in COMPONENT},
}
"""How the names of each trainer begin."""
MERGE = (
    "use a file without that part, or merge the adapter into the teacher with the program that "
    "made it and give that as teacher.path"
)


FOREIGN = re.compile(
    r"diffusion_model\.|lora_unet_|base_model\.|lora_down|lora_up|^transformer\.transformer\."
)
"""What no name of Diffusers has: the converter did not know it."""
MUSUBI_WAN = re.compile(r"^lora_unet_blocks_(\d+)_(self_attn|cross_attn|ffn)_(\w+)\.")


@dataclass(frozen=True)
class Account:
    """What became of a file's tensors: each is used, or has no effect, or is left out.

    Attributes:
        used: how many arrive in the teacher's networks.
        zero: how many have no effect: zeros, and the partners of zeros.
        left_out: names of the others.
    """

    used: int
    zero: int
    left_out: tuple[str, ...]


class Traced(torch.Tensor):
    """A tensor that knows the names of those that it was computed from."""

    sources: frozenset[str]

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute as usual, and mark each result with the sources of all arguments."""
        result = super().__torch_function__(  # type: ignore[no-untyped-call]
            function, types, args, kwargs or {}
        )
        given = [*_traced(args), *_traced(tuple((kwargs or {}).values()))]
        sources = frozenset[str]().union(*(tensor.sources for tensor in given))
        for tensor in _traced(result):
            tensor.sources = getattr(tensor, "sources", frozenset()) | sources
        return result


def _traced(value: Any) -> Iterator[Traced]:
    """All traced tensors in arguments or results."""
    if isinstance(value, Traced):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _traced(item)


def trace(name: str, tensor: torch.Tensor) -> Traced:
    """The same numbers, marked with a name."""
    traced = tensor.as_subclass(Traced)
    traced.sources = frozenset({name})
    return traced


def dialect_of(names: Mapping[str, Any]) -> str:
    """Whose names a file has, as far as it is known."""
    found = [
        what for begin, what in DIALECTS.items() if any(name.startswith(begin) for name in names)
    ]
    return " and ".join(found) or f"names of an unknown trainer, {name_some(names)}"


def convert(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    folded: Mapping[str, torch.Tensor],
    pairs: list[Pair],
    zero: set[str],
    folder: PipelineFolder,
) -> tuple[dict[str, torch.Tensor], Account]:
    """A file's tensors under Diffusers' names, each as strong as the file says.

    Some converters fail without an alpha, others take one as the mark of a dialect, and some fail
    at zeros that nobody needs. So the file is tried in each of these ways.

    Args:
        tensors: all that it holds.
        folded: what has the scales in it, of `fold_scales`.
        zero: names of what has no effect.

    Raises:
        ValueError: a part with effect would be left out, or the converter fails.
    """
    carriers = {name: pair.down for pair in pairs for name in (pair.alpha, pair.mid) if name}
    paired = {name for pair in pairs for name in pair.names}
    marked = {
        name: trace(name, value)
        for name, value in folded.items()
        if name not in zero or name in paired
    }
    spellings = _spellings(marked or dict(folded), pairs, zero)
    read, failures = _try_each(spellings, folder, partial(_account, tensors, carriers, zero))
    beginning = f"teacher.adapters: {path} ({dialect_of(tensors)})"
    if not read:
        failure = f"{type(failures[0]).__name__} {shorten(failures[0])}".strip()
        raise ValueError(
            f"{beginning} could not be converted for a {folder.class_name}: {failure}; "
            "use one that was trained on this teacher, in Diffusers' format or one that Diffusers "
            "converts"
        ) from failures[0]
    converted, account = min(read, key=lambda it: len(it[1].left_out))
    if account.left_out:
        left = account.left_out
        raise ValueError(
            f"{beginning}: {len(left)} of its {len(tensors)} tensors, {name_some(left)}, would be "
            f"left out of this {folder.class_name}, and they are not zero; {MERGE}"
        )
    return {key: value.as_subclass(torch.Tensor) for key, value in converted.items()}, account


def _try_each(
    spellings: Iterable[Mapping[str, torch.Tensor]],
    folder: PipelineFolder,
    account: Callable[[dict[str, Traced]], Account],
) -> tuple[list[tuple[dict[str, Traced], Account]], list[Exception]]:
    """What Diffusers makes of each spelling until nothing is left out, and how it fails."""
    failures: list[Exception] = []
    read: list[tuple[dict[str, Traced], Account]] = []
    unknown: list[tuple[dict[str, Traced], Account]] = []
    for spelled in spellings:
        try:
            converted = _through(folder, spelled)
        except Exception as error:
            failures.append(error)
            continue
        if any("lora" not in name or FOREIGN.search(name) for name in converted):
            unknown.append((converted, account(converted)))
            continue
        read.append((converted, account(converted)))
        if not read[-1][1].left_out:
            break
    # Where nothing fails, the converter has no word for it, and the networks have.
    return read if failures else read or unknown, failures


def _spellings(
    folded: Mapping[str, torch.Tensor], pairs: list[Pair], zero: set[str]
) -> Iterator[dict[str, torch.Tensor]]:
    """Ways to write the same file, one of which its converter may understand."""
    alphas = {
        pair.alpha or f"{pair.layer}.alpha": (pair, torch.tensor(float(len(folded[pair.down]))))
        for pair in pairs
        if pair.alpha or "lora_down" in pair.down
    }
    yield dict(folded)
    yield {**folded, **{name: rank for name, (_, rank) in alphas.items()}}
    needed = {name: value for name, value in folded.items() if name not in zero}
    if 0 < len(needed) < len(folded):
        yield needed
        yield {**needed, **{key: rank for key, (it, rank) in alphas.items() if it.down in needed}}
    needed = needed or dict(folded)
    for respell in (_as_kohya, _as_peft, _without_start, _as_comfy_wan):
        spelled = {respell(name): value for name, value in needed.items()}
        if len(spelled) == len(needed) and spelled.keys() != needed.keys():
            yield spelled


def _as_kohya(name: str) -> str:
    """ComfyUI's name with the matrices called as kohya calls them."""
    return name.replace(".lora_A.", ".lora_down.").replace(".lora_B.", ".lora_up.")


def _as_peft(name: str) -> str:
    """Any name with the matrices called as PEFT calls them."""
    return name.replace(".lora_down.", ".lora_A.").replace(".lora_up.", ".lora_B.")


def _without_start(name: str) -> str:
    """Diffusers' name without what ComfyUI puts before it."""
    return _as_peft(name).removeprefix("model.").removeprefix("diffusion_model.")


def _as_comfy_wan(name: str) -> str:
    """ComfyUI's name of a block's layer of Wan, from musubi's: the converter of those wants all."""
    return MUSUBI_WAN.sub(
        lambda found: f"diffusion_model.blocks.{found[1]}.{found[2]}.{found[3]}.", name
    )


def _through(folder: PipelineFolder, file: Mapping[str, torch.Tensor]) -> dict[str, Traced]:
    """What the pipeline's converter makes of a file; names without a component are the denoiser's.

    Raises whatever the converter raises.
    """
    from diffusers.configuration_utils import FrozenDict

    converted: dict[str, Traced] = folder.pipeline_class.lora_state_dict(
        dict(file),
        unet_config=FrozenDict(folder.denoiser_config),
        return_alphas=True,
        return_lora_metadata=True,
    )[0]
    start = folder.family.denoisers[0]
    return {
        name if name.partition(".")[0] in COMPONENT else f"{start}.{name}": value
        for name, value in converted.items()
    }


def _account(
    tensors: Mapping[str, torch.Tensor],
    carriers: Mapping[str, str],
    zero: set[str],
    converted: Mapping[str, Traced],
) -> Account:
    """What became of each tensor of a file.

    Args:
        tensors: all that it holds.
        carriers: where alphas and cores went.
        zero: names of what has no effect.
    """
    arrived = frozenset[str]().union(
        *(getattr(value, "sources", frozenset()) for value in converted.values())
    )
    rest = [name for name in tensors if name not in zero]
    left = [name for name in rest if carriers.get(name, name) not in arrived]
    return Account(len(rest) - len(left), len(zero), tuple(sorted(left)))
