"""Adapter files of every dialect, with the change of weights that each means by its own numbers."""

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Dialect:
    """How a trainer names a family's layers.

    Attributes:
        family: module of tests/families that makes the teacher, or "wan".
        component: what it changes.
        layers: which of its layers, as a regular expression.
        stem: a layer's name in the file.
        matrices: the names of the first and the second.
        needs_alpha: known to the converter by its alphas alone.
    """

    family: str
    component: str
    layers: str
    stem: Callable[[str], str]
    matrices: tuple[str, str] = ("lora_down", "lora_up")
    needs_alpha: bool = False


def _flat(start: str) -> Callable[[str], str]:
    return lambda layer: start + layer.removeprefix("text_model.").replace(".", "_")


def _old(start: str) -> Callable[[str], str]:
    """The names of attention layers in the first files of Diffusers."""
    return lambda layer: start + re.sub(r"\.(to_\w+?)(\.0)?$", r".processor.\1_lora", layer)


def _wan(layer: str) -> str:
    """The authors' name of a layer of Wan."""
    name = layer.replace("attn1", "self_attn").replace("attn2", "cross_attn")
    name = re.sub(r"\.to_out\.0$", ".o", re.sub(r"\.to_([qkv])$", r".\1", name))
    return name.replace("ffn.net.0.proj", "ffn.0").replace("ffn.net.2", "ffn.2")


FLUX_PARTS = {
    "attn.to_out.0": "img_attn.proj",
    "attn.to_add_out": "txt_attn.proj",
    "ff.net.0.proj": "img_mlp.0",
    "ff.net.2": "img_mlp.2",
    "ff_context.net.2": "txt_mlp.2",
    "norm1.linear": "img_mod.lin",
}


def _flux(layer: str) -> str:
    """The authors' name of a layer of FLUX."""
    _, block, part = layer.split(".", 2)
    return f"double_blocks.{block}.{FLUX_PARTS[part]}"


ATTENTION = r".*\.attn[12]\.to_(q|k|v|out\.0)"
UNET = r".*(attn[12]\.to_(q|k|v|out\.0)|ff\.net\.(0\.proj|2)|resnets\.\d\.conv[12]|proj_in)"
TEXT = r".*(self_attn\.(q|k|v|out)_proj|mlp\.fc[12])"
WAN = r"blocks\.\d+\.(attn[12]\.to_(q|k|v|out\.0)|ffn\.net\.(0\.proj|2))"
FLUX = rf"transformer_blocks\.\d+\.({'|'.join(map(re.escape, FLUX_PARTS))})"
JOINT = r"transformer_blocks\.\d+\.attn\.(to_q|to_k|add_q_proj|to_out\.0)"
PEFT = ("lora_A", "lora_B")
OLD = ("down", "up")

DIALECTS = {
    "sdxl-kohya": Dialect("sdxl", "unet", UNET, _flat("lora_unet_")),
    "sdxl-diffusers": Dialect("sdxl", "unet", UNET, "unet.{}".format, PEFT),
    "sdxl-dotted": Dialect("sdxl", "unet", UNET, "unet.{}.lora".format, OLD),
    "sdxl-old": Dialect("sdxl", "unet", ATTENTION, _old("unet."), OLD),
    "sdxl-bare": Dialect("sdxl", "unet", UNET, "{}".format, PEFT),
    "sdxl-text-kohya": Dialect("sdxl", "text_encoder", TEXT, _flat("lora_te1_text_model_")),
    "sdxl-text-2-kohya": Dialect("sdxl", "text_encoder_2", TEXT, _flat("lora_te2_text_model_")),
    "sdxl-text-diffusers": Dialect(
        "sdxl", "text_encoder", TEXT, "text_encoder.text_model.{}.lora_linear_layer".format, OLD
    ),
    "sd15-kohya": Dialect("sd15", "unet", UNET, _flat("lora_unet_")),
    "sd15-text-kohya": Dialect("sd15", "text_encoder", TEXT, _flat("lora_te_text_model_")),
    "flux-kohya": Dialect(
        "flux_dev", "transformer", FLUX, lambda it: _flat("lora_unet_")(_flux(it))
    ),
    "flux-comfy": Dialect(
        "flux_dev", "transformer", FLUX, lambda it: f"diffusion_model.{_flux(it)}"
    ),
    "flux-comfy-peft": Dialect(
        "flux_dev", "transformer", FLUX, lambda it: f"diffusion_model.{_flux(it)}", PEFT
    ),
    "flux-diffusers": Dialect("flux_dev", "transformer", FLUX, "transformer.{}".format, PEFT),
    "flux-diffusers-kohya": Dialect("flux_dev", "transformer", FLUX, "transformer.{}".format),
    "flux-bare": Dialect("flux_dev", "transformer", FLUX, "{}".format, PEFT),
    "flux-text-kohya": Dialect("flux_dev", "text_encoder", TEXT, _flat("lora_te1_text_model_")),
    "flux-t5-diffusers": Dialect(
        "flux_dev", "text_encoder_2", r".*SelfAttention\.[qv]", "text_encoder_2.{}".format, PEFT
    ),
    "wan-comfy": Dialect("wan", "transformer", WAN, lambda it: f"diffusion_model.{_wan(it)}"),
    "wan-comfy-peft": Dialect(
        "wan", "transformer", WAN, lambda it: f"diffusion_model.{_wan(it)}", PEFT
    ),
    "wan-musubi": Dialect("wan", "transformer", WAN, lambda it: _flat("lora_unet_")(_wan(it))),
    "wan-diffusers": Dialect("wan", "transformer", WAN, "transformer.{}".format, PEFT),
    "wan-comfy-diffusers": Dialect("wan", "transformer", WAN, "diffusion_model.{}".format, PEFT),
    "wan-bare": Dialect("wan", "transformer", WAN, "{}".format, PEFT),
    "qwen-musubi": Dialect("qwen_image", "transformer", JOINT, _flat("lora_unet_")),
    "qwen-comfy": Dialect("qwen_image", "transformer", JOINT, "diffusion_model.{}".format),
    "qwen-diffusers": Dialect("qwen_image", "transformer", JOINT, "transformer.{}".format, PEFT),
    "qwen-bare": Dialect("qwen_image", "transformer", JOINT, "{}".format, PEFT),
    "sd3-diffusers": Dialect("sd3", "transformer", JOINT, "transformer.{}".format, PEFT),
}


@dataclass
class LoraFile:
    """A file's tensors, and what they add to the weights of its component."""

    tensors: Tensors = field(default_factory=dict)
    change: Tensors = field(default_factory=dict)

    def add(
        self, dialect: Dialect, layer: str, weight: torch.Tensor, rank: int,
        alpha: float | None, dtype: torch.dtype, seed: int,
    ) -> None:  # fmt: skip
        """One more layer; the change is that of the numbers as they are stored."""
        generator = torch.Generator().manual_seed(seed)
        ones = [1, 1] if weight.dim() == 4 else []
        down = torch.randn(rank, *weight.shape[1:], generator=generator).mul(0.2).to(dtype)
        up = torch.randn(len(weight), rank, *ones, generator=generator).mul(0.2).to(dtype)
        stem = dialect.stem(layer)
        self.tensors[f"{stem}.{dialect.matrices[0]}.weight"] = down
        self.tensors[f"{stem}.{dialect.matrices[1]}.weight"] = up
        scale = 1.0
        if alpha is not None:
            # Diffusers' files of the old form have the alpha at the layer itself.
            end = stem.removesuffix(".lora").removesuffix(".lora_linear_layer")
            self.tensors[f"{end}.alpha"] = torch.tensor(alpha)
            scale = alpha / rank
        product = up.float().flatten(1) @ down.float().flatten(1)
        self.change[f"{layer}.weight"] = scale * product.view(weight.shape)


def random_file(
    dialect: Dialect, weights: Mapping[str, torch.Tensor], draw: random.Random
) -> LoraFile:
    """Some layers, each with a rank; alphas of all, of some, or of none."""
    names = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
    layers = [name for name in names if re.fullmatch(dialect.layers, name)]
    assert layers, dialect
    chosen = draw.sample(layers, draw.randint(1, min(len(layers), 12)))
    dtype = draw.choice(
        [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn,
         torch.float8_e5m2]
    )  # fmt: skip
    share = draw.choice([0.0, 0.5, 1.0, 1.0])
    ranks = draw.choice([[4], [1, 2, 3, 5]])
    alphas = draw.choice([[1.0], [4.0, 1.0], [0.5, 2.0, 8.0, -1.0, 3.3]])
    file = LoraFile()
    for number, layer in enumerate(chosen):
        alpha = draw.choice(alphas) if draw.random() < share else None
        rank, seed = draw.choice(ranks), draw.randrange(2**31) + number
        file.add(dialect, layer, weights[f"{layer}.weight"], rank, alpha, dtype, seed)
    return file
