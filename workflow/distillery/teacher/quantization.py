"""The weights of the teacher's networks in fewer bits, where they only run; the student never is.

The large matrices are packed after adapters are fused, so that these are of full precision, and are
unpacked layer by layer while they compute. What is small or sensitive stays as it is: embeddings of
time, text and image, norms, convolutions and the last layer.
"""

from importlib.metadata import PackageNotFoundError, version

import torch
from torch.nn import functional as F

from distillery.config.teacher import Quantization, Teacher
from distillery.teacher.weights import is_of_block

PACKED_BYTES: dict[Quantization, float] = {"int8": 1.0, "nf4": 0.516}
"""Of a weight, its share of the scales included."""
PACKAGES: dict[Quantization, str] = {"nf4": "bitsandbytes"}
"""That pack, where it is not this module."""


class Int8Linear(torch.nn.Module):
    """A linear layer whose weights are whole numbers of 8 bits with one scale per output."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        """Round each weight to the nearest of 255 numbers up to the largest of its row."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.data
        scale = (weight.abs().amax(dim=1, keepdim=True).float() / 127).to(weight.dtype)
        scale = scale.clamp_min(torch.finfo(weight.dtype).tiny)
        packed = (weight.float() / scale.float()).round().clamp(-127, 127).to(torch.int8)
        self.weight = torch.nn.Parameter(packed, requires_grad=False)
        self.scale = torch.nn.Parameter(scale, requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) to (..., out); the weights are unpacked first, since sums of unscaled numbers
        overflow in float16."""
        return F.linear(x, torch.mul(self.weight, self.scale), self.bias)


def _nf4(linear: torch.nn.Linear, dtype: torch.dtype) -> torch.nn.Module:
    """A linear layer of QLoRA's NormalFloat (Dettmers et al. 2023), 4 bits; packed when it first
    moves to a device."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    packed = Linear4bit(
        linear.in_features,
        linear.out_features,
        linear.bias is not None,
        compute_dtype=dtype,
        quant_type="nf4",
        device="meta",
    )
    packed.weight = Params4bit(linear.weight.data, requires_grad=False, quant_type="nf4")
    packed.bias = linear.bias
    assert isinstance(packed, torch.nn.Module)
    return packed


def quantise(
    network: torch.nn.Module, method: Quantization, dtype: torch.dtype, device: torch.device
) -> None:
    """Pack a network's large matrices in place, layer by layer; it stays on the CPU.

    Args:
        network: in `dtype`, in which it computes.
        device: that packs them: a GPU takes seconds for what a CPU takes minutes.
    """
    kept = set(getattr(network, "_keep_in_fp32_modules", None) or ())
    for name, module in list(network.named_modules()):
        is_packed = is_of_block(name) and not kept & set(name.split("."))
        if isinstance(module, torch.nn.Linear) and is_packed:
            module.requires_grad_(False)
            if method == "int8":
                packed: torch.nn.Module = Int8Linear(module.to(device))
            else:
                packed = _nf4(module, dtype).to(device)
            parent, _, own = name.rpartition(".")
            setattr(network.get_submodule(parent), own, packed.to("cpu"))


def how_quantised(teacher: Teacher) -> dict[str, str] | None:
    """What the packed weights depend on: the method, and its package with the version.

    Raises ValueError where the package is not installed.
    """
    method = teacher.quantization
    if method is None:
        return None
    package = PACKAGES.get(method)
    try:
        return {"method": method} | ({package: version(package)} if package else {})
    except PackageNotFoundError as missing:
        raise ValueError(
            f"teacher.quantization is {method!r}: the package that packs so is missing: "
            f"pip install {package}"
        ) from missing
