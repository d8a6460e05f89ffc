"""An adapter's file as it is on disk: its numbers in float32, its pairs, each with its own scale.

A layer's change is `scale * alpha / rank * up @ down`; without an alpha, `scale * up @ down`.
Converters of libraries apply alphas each in its own way, and some to the wrong layers. So each
`down` takes its own alpha / rank before any converter sees the file.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from distillery.teacher.adapter_fit import name_some

UPS = {
    "lora_down": "lora_up",
    "lora_A": "lora_B",
    "lora.down": "lora.up",
    "lora_linear_layer.down": "lora_linear_layer.up",
    "down": "up",
}
"""The first matrix of a pair in each dialect, and the second."""
DOWN = re.compile(
    r"(?P<stem>.+?)(?P<dot>[._])"
    rf"(?P<down>{'|'.join(map(re.escape, UPS))})(?P<rest>(\.\w+)?\.weight)$"
)
OTHER_KINDS = {"hada_": "LoHa", "lokr_": "LoKr", "oft_": "OFT", "boft_": "BOFT", "glora": "GLoRA"}
"""Parts of names by which adapters of other kinds are known."""
MAGNITUDE = ".lora_magnitude_vector"
"""What a DoRA has beside a layer's pair."""
TEXT_KEYS = ("text_encoder", "lora_te")
"""How names of a text encoder's tensors begin, in Diffusers' format and in kohya's."""
METADATA = "lora_adapter_metadata"
"""The entry of a file's header that holds the configuration of PEFT, as Diffusers writes it."""


@dataclass(frozen=True)
class Pair:
    """The names of one layer's tensors; those behind `up` may be missing.

    Attributes:
        layer: what they begin with.
        down: the first matrix, rank times what the layer takes.
        mid: a core between both, of convolutions.
        alpha: the numerator of the layer's scale.
        bias: what `up` adds to, under the scale too.
        is_dora: whether magnitudes are beside it, which change the layer without the pair too.
    """

    layer: str
    down: str
    up: str
    mid: str | None
    alpha: str | None
    bias: str | None
    is_dora: bool

    @property
    def names(self) -> set[str]:
        """All that the pair has."""
        return {name for name in (self.down, self.up, self.mid, self.alpha) if name}


def has_text(path: Path) -> bool:
    """Whether an adapter's file changes a text encoder."""
    try:
        with safe_open(path, framework="pt") as file:
            return any(name.startswith(TEXT_KEYS) for name in file.keys())  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"teacher.adapters: {path} is damaged ({error}): copy or download it again; if it is "
            "tiny, fetch it with git lfs pull"
        ) from error


def has_one_scale(path: Path) -> bool:
    """Whether a file's header says that all layers have the same alpha and rank, or no alpha."""
    has_text(path)
    with safe_open(path, framework="pt") as file:
        names = list(file.keys())
        alphas = [name for name in names if name.endswith(".alpha")]
        pairs = list(find_pairs(names)) if alphas else []
        ranks = {tuple(file.get_slice(pair.down).get_shape())[:1] for pair in pairs}
        values = {tuple(file.get_tensor(alpha).flatten().tolist()) for alpha in alphas}
    return not alphas or (len(alphas) == len(pairs) and len(ranks) == len(values) == 1)


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """A file's tensors in float32, whatever float type they are stored in.

    Raises:
        ValueError: the file is damaged, holds integers or an adapter of another kind, or numbers
            that are not finite.
    """
    has_text(path)
    try:
        stored = load_file(path)
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(
            f"teacher.adapters: {path} cannot be read ({error}): save it in float32, float16 or "
            "bfloat16"
        ) from error
    for part, kind in OTHER_KINDS.items():
        found = [key for key in stored if part in key]
        if found:
            raise ValueError(
                f"teacher.adapters: {path} is a {kind} ({name_some(found)}), and only LoRA and "
                "DoRA are put in: merge it into the teacher with the program that made it, and "
                "give that as teacher.path"
            )
    empty = [key for key, value in stored.items() if value.numel() == 0]
    if empty:
        raise ValueError(
            f"teacher.adapters: {path} has no numbers in {name_some(empty)}: it was spoiled when "
            "it was trained or converted; use another one"
        )
    whole = [key for key, value in stored.items() if not _is_number(key, value)]
    if whole:
        types = ", ".join(sorted({str(stored[key].dtype).rpartition(".")[2] for key in whole}))
        raise ValueError(
            f"teacher.adapters: {path} holds {types} in {name_some(whole)}: such numbers mean "
            "nothing without their scale; use the file in float32, float16, bfloat16 or float8"
        )
    tensors = {key: value.float() for key, value in stored.items()}
    bad = [key for key, value in tensors.items() if not value.isfinite().all()]
    if bad:
        raise ValueError(
            f"teacher.adapters: {path} is not finite in {name_some(bad)}: it was spoiled when it "
            "was trained or converted; use another one"
        )
    return tensors


def _is_number(name: str, tensor: torch.Tensor) -> bool:
    """Whether a tensor has values that mean themselves: floats, and an alpha of any real type."""
    is_alpha = name.endswith(".alpha") and not tensor.is_complex()
    return tensor.is_floating_point() or is_alpha


def read_metadata(path: Path) -> dict[str, Any] | None:
    """The configuration of PEFT in a file's header, or None."""
    with safe_open(path, framework="pt") as file:
        text = (file.metadata() or {}).get(METADATA)
    try:
        found = json.loads(text) if text else None
        if found is not None and not isinstance(found, dict):
            raise ValueError(f"it is a {type(found).__name__}")
    except ValueError as error:
        raise ValueError(
            f"teacher.adapters: {METADATA} in the header of {path} is no JSON object ({error}): "
            "save the adapter again with Diffusers' save_lora_weights"
        ) from error
    return found


def find_pairs(names: Iterable[str]) -> Iterator[Pair]:
    """The pairs of a file, of whatever dialect; a half of one is none."""
    names = dict.fromkeys(names)
    doras = {name.partition(MAGNITUDE)[0] for name in names if MAGNITUDE in name}
    for name in names:
        found = DOWN.match(name)
        if found is None:
            continue
        stem, dot, down, rest = found.group("stem", "dot", "down", "rest")
        up = f"{stem}{dot}{UPS[down]}{rest}"
        if up not in names:
            continue
        mid = f"{stem}{dot}lora_mid{rest}"
        bias = f"{up.removesuffix('weight')}bias"
        own = down.rpartition(".")[0]
        alphas = [f"{stem}.alpha", f"{name}.alpha"]
        alphas += [f"{stem}{dot}{own}.alpha"] if own else []
        yield Pair(
            stem,
            name,
            up,
            mid if mid in names else None,
            next((alpha for alpha in alphas if alpha in names), None),
            bias if bias in names else None,
            stem in doras,
        )


def scale_of(path: Path, pair: Pair, tensors: Mapping[str, torch.Tensor]) -> float:
    """A layer's alpha / rank, or 1 without an alpha.

    Raises ValueError for a rank of 0, and an alpha that is not one number.
    """
    down = tensors[pair.down]
    rank = down.shape[0] if down.dim() else 0
    if rank == 0:
        raise ValueError(
            f"teacher.adapters: {path} has a layer of rank 0, {pair.down}: remove that layer"
        )
    if pair.alpha is None:
        return 1.0
    alpha = tensors[pair.alpha]
    if alpha.numel() != 1:
        raise ValueError(
            f"teacher.adapters: {path} has {alpha.numel()} numbers in {pair.alpha}: an alpha is "
            "one number"
        )
    return alpha.item() / rank


def fold_scales(
    path: Path, tensors: Mapping[str, torch.Tensor], pairs: list[Pair]
) -> dict[str, torch.Tensor]:
    """The file without alphas and cores: each `down` has its own in it.

    Raises ValueError as `scale_of`.
    """
    folded = {name: value for name, value in tensors.items() if not name.endswith(".alpha")}
    for pair in pairs:
        scale = scale_of(path, pair, tensors)
        if pair.mid and _has_core(tensors, pair):
            down, mid = folded[pair.down], folded.pop(pair.mid)
            folded[pair.down] = torch.einsum("rskl,si->rikl", mid, down.flatten(1))
        if scale != 1.0:
            folded[pair.down] = folded[pair.down] * scale
            if pair.bias:
                folded[pair.bias] = folded[pair.bias] * scale
    return folded


def _has_core(tensors: Mapping[str, torch.Tensor], pair: Pair) -> bool:
    """Whether the shapes are those of a convolution with a core: 1 x 1, k x k, 1 x 1."""
    down, mid = tensors[pair.down], tensors[pair.mid or ""]
    return (
        mid.dim() == down.dim() == 4
        and down.shape[2:] == (1, 1)
        and mid.shape[1] == down.shape[0]
        and mid.shape[0] == tensors[pair.up].shape[1 if tensors[pair.up].dim() > 1 else 0]
    )


def without_effect(
    tensors: Mapping[str, torch.Tensor], folded: Mapping[str, torch.Tensor], pairs: list[Pair]
) -> set[str]:
    """Names of the tensors that change nothing: zeros, and pairs whose product is zero."""
    zero = {name for name, value in tensors.items() if not value.any() and MAGNITUDE not in name}
    for pair in pairs:
        product = folded[pair.down].any() and folded[pair.up].any()
        if not product and not pair.is_dora:
            zero |= pair.names
    taken = {pair.alpha for pair in pairs}
    for alpha in [name for name in tensors if name.endswith(".alpha") and name not in taken]:
        stem = alpha.removesuffix("alpha")
        beside = [name for name in tensors if name.startswith(stem) and name != alpha]
        if beside and zero.issuperset(beside):
            zero.add(alpha)
    return zero
