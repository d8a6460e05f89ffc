"""A LoRA for ComfyUI: each layer has a name that it looks for, and the file is the same LoRA."""

import copy
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from distillery.config.student import Lora
from distillery.config.teacher import Adapter, Teacher
from distillery.families.traced import Unknown
from distillery.student.lora import LORA_FILE, add_lora, save_lora
from distillery.student.lora_names import COMFYUI_FILE, NETWORKS, write_other_names
from distillery.teacher.adapter_files import read_weights
from distillery.teacher.adapters import adapt
from distillery.teacher.folder import PipelineFolder
from traced import ROWS
from traced.teachers import save_teacher

QKV = "to_q|to_k|to_v"
ADDED = "add_q_proj|add_k_proj|add_v_proj|to_add_out"
MLP = r"net\.0\.proj|net\.2"
EMBEDDERS = r"(timestep|text|guidance)_embedder\.linear_[12]"
OF_FLUX = (
    "(x|context)_embedder",
    rf"time_text_embed\.{EMBEDDERS}",
    r"norm_out\.linear",
    "proj_out",
    rf"transformer_blocks\.\d+\.attn\.({QKV}|to_out\.0|{ADDED})",
    rf"transformer_blocks\.\d+\.ff(_context)?\.({MLP}|linear_in|linear_out)",
    r"transformer_blocks\.\d+\.norm1(_context)?\.linear",
    rf"single_transformer_blocks\.\d+\.attn\.({QKV}|to_qkv_mlp_proj|to_out)",
    r"single_transformer_blocks\.\d+\.(proj_mlp|proj_out|norm\.linear)",
)
OF_WAN = (
    r"(text|time)_embedding\.[02]",
    r"time_projection\.1",
    r"head\.head",
    r"blocks\.\d+\.(self|cross)_attn\.[qkvo]",
    r"blocks\.\d+\.ffn\.[02]",
)
LOOKED_FOR = {
    "AuraFlowTransformer2DModel": (
        "context_embedder",
        r"time_step_proj\.linear_[12]",
        r"pos_embed\.proj",
        r"norm_out\.linear",
        "proj_out",
        rf"(joint|single)_transformer_blocks\.\d+\.attn\.({QKV}|to_out\.0|{ADDED})",
        r"(joint|single)_transformer_blocks\.\d+\.ff(_context)?\.(linear_[12]|out_projection)",
        r"(joint|single)_transformer_blocks\.\d+\.norm1(_context)?\.linear",
    ),
    "ChromaTransformer2DModel": OF_FLUX,
    "Flux2Transformer2DModel": OF_FLUX,
    "FluxTransformer2DModel": OF_FLUX,
    "Krea2Transformer2DModel": (
        r"img_in|time_mod_proj|text_fusion\.projector|final_layer\.linear",
        r"(time_embed|txt_in)\.linear_[12]",
        rf"(transformer_blocks|text_fusion\.(layerwise|refiner)_blocks)\.\d+\."
        rf"(attn\.({QKV}|to_gate|to_out\.0)|ff\.(gate|up|down))",
    ),
    "LTXVideoTransformer3DModel": (
        "patchify_proj|proj_out",
        r"adaln_single\.(emb\.timestep_embedder\.linear_[12]|linear)",
        r"caption_projection\.linear_[12]",
        rf"transformer_blocks\.\d+\.(attn[12]\.({QKV}|to_out\.0)|ff\.({MLP}))",
    ),
    "QwenImageTransformer2DModel": (
        r"img_in|txt_in|norm_out\.linear|proj_out",
        r"time_text_embed\.timestep_embedder\.linear_[12]",
        rf"transformer_blocks\.\d+\.attn\.({QKV}|to_out\.0|{ADDED})",
        rf"transformer_blocks\.\d+\.(img|txt)_(mod\.1|mlp\.({MLP}))",
    ),
    "SD3Transformer2DModel": (
        r"context_embedder|pos_embed\.proj|norm_out\.linear|proj_out",
        rf"time_text_embed\.{EMBEDDERS}",
        rf"transformer_blocks\.\d+\.attn2?\.({QKV}|to_out\.0|{ADDED})",
        rf"transformer_blocks\.\d+\.ff(_context)?\.({MLP})",
        r"transformer_blocks\.\d+\.norm1(_context)?\.linear",
    ),
    "SkyReelsV2Transformer3DModel": OF_WAN,
    "WanTransformer3DModel": OF_WAN,
    "ZImageTransformer2DModel": (
        r"all_x_embedder\.2-1|all_final_layer\.2-1\.(linear|adaLN_modulation\.1)",
        r"cap_embedder\.1|t_embedder\.mlp\.[02]",
        rf"(layers|context_refiner|noise_refiner)\.\d+\.attention\.({QKV}|to_out\.0)",
        r"(layers|context_refiner|noise_refiner)\.\d+\.(feed_forward\.w[123]|adaLN_modulation\.0)",
    ),
}
"""What ComfyUI looks for, by the network that Diffusers has: the keys of `flux_to_diffusers`,
`mmdit_to_diffusers`, `auraflow_to_diffusers`, `krea2_to_diffusers` and `z_image_to_diffusers` in
comfy/utils.py, and the linear layers of its own networks in comfy/ldm/{wan,lightricks,qwen_image}
(its repository at 17358c8, read on 2026-11-26)."""
OWN = ("LTXVideoTransformer3DModel", "SkyReelsV2Transformer3DModel", "WanTransformer3DModel")
"""It looks for its own names alone, after `diffusion_model.`; for the others after
`transformer.`."""
PIPELINES = {
    "AuraFlowTransformer2DModel": "AuraFlowPipeline",
    "ChromaTransformer2DModel": "ChromaPipeline",
    "Flux2Transformer2DModel": "Flux2Pipeline",
    "FluxTransformer2DModel": "FluxPipeline",
    "Krea2Transformer2DModel": "Krea2Pipeline",
    "LTXVideoTransformer3DModel": "LTXPipeline",
    "QwenImageTransformer2DModel": "QwenImagePipeline",
    "SD3Transformer2DModel": "StableDiffusion3Pipeline",
    "SkyReelsV2Transformer3DModel": "SkyReelsV2Pipeline",
    "WanTransformer3DModel": "WanPipeline",
    "ZImageTransformer2DModel": "ZImagePipeline",
}
RANK, ALPHA = 3, 6.0
"""A scale of 2 is exact, so it may be multiplied before the sum or after."""
BLOCKS = (
    "to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "to_add_out", "proj_mlp", "to_qkv_mlp_proj",
    "net.0.proj", "net.2", "linear_in", "linear_out", "w1", "w2", "w3",
)  # fmt: skip


def looks_for(network: str, name: str) -> bool:
    start = "diffusion_model." if network in OWN else "transformer."
    return any(re.fullmatch(re.escape(start) + f"({one})", name) for one in LOOKED_FOR[network])


def layers_of(network: Any) -> list[str]:
    kinds = torch.nn.Linear | torch.nn.Conv2d
    return [name for name, module in network.named_modules() if isinstance(module, kinds)]


def test_what_is_looked_for_is_stated_of_each_network() -> None:
    assert NETWORKS.keys() == LOOKED_FOR.keys() == PIPELINES.keys()


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_comfyui_looks_for_each_name(network: str) -> None:
    """And has none for a layer that is said to have none."""
    transformer = ROWS[PIPELINES[network]].make().transformer
    assert type(transformer).__name__ == network
    layers = layers_of(transformer)
    named = {layer: NETWORKS[network].of(layer) for layer in layers}
    given = [name for name in named.values() if name is not None]
    assert len(set(given)) == len(given) > len(layers) / 2
    assert [name for name in given if not looks_for(network, name)] == []
    lacking = [layer for layer, name in named.items() if name is None]
    assert [layer for layer in lacking if looks_for(network, f"transformer.{layer}")] == []


@dataclass(frozen=True)
class Made:
    """A tiny pipeline's folder, its network without additions, and additions of random numbers."""

    folder: PipelineFolder
    network: Any
    lora: Path

    def fused(self, path: Path) -> dict[str, torch.Tensor]:
        """The network's weights with a file's additions, as a teacher's are."""
        network = copy.deepcopy(self.network)
        adapters = (Adapter(path=str(path)),)
        teacher = Teacher(path=str(self.folder.path), height=32, width=32, adapters=adapters)
        adapt({"transformer": network}, teacher, self.folder, fuse=True)
        return dict(network.state_dict())


def make(name: str, path: Path, alpha: float, targets: tuple[str, ...]) -> Made:
    save_teacher(name, path / "teacher")
    folder = PipelineFolder(path / "teacher", is_traced=True)
    network = ROWS[name].make().transformer
    changed = copy.deepcopy(network)
    ends = [f".{layer}" for layer in layers_of(network)]
    kept = tuple(it for it in targets if any(end.endswith(f".{it}") for end in ends))
    add_lora(changed, Lora(rank=RANK, alpha=alpha, targets=kept), seed=0)
    generator = torch.Generator().manual_seed(1)
    for value in changed.parameters():
        if value.requires_grad:
            value.data = torch.randn(value.shape, generator=generator)
    family = Unknown(folder.components)
    family.pipeline_classes = (folder.class_name,)
    save_lora(changed, path / "lora", family)
    return Made(folder, network, path / "lora" / LORA_FILE)


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_the_file_for_comfyui_holds_the_same_additions(network: str, tmp_path: Path) -> None:
    """Bit for bit, as the reader of a teacher's adapters finds them: names, factors and scale."""
    made = make(PIPELINES[network], tmp_path, ALPHA, BLOCKS)
    assert write_other_names(made.lora, network) == COMFYUI_FILE
    path = made.lora.with_name(COMFYUI_FILE)
    tensors = load_file(path)
    alphas = {name: value for name, value in tensors.items() if name.endswith(".alpha")}
    assert {float(value) for value in alphas.values()} == {ALPHA}
    assert {name.removesuffix(".alpha") for name in alphas} == {
        name.partition(".lora_")[0] for name in tensors.keys() - alphas.keys()
    }
    theirs = read_weights(path, made.folder).tensors
    ours = read_weights(made.lora, made.folder).tensors
    assert theirs.keys() == ours.keys()
    for name, value in ours.items():
        scale = ALPHA / RANK if ".lora_A." in name else 1.0
        assert torch.equal(theirs[name], value * scale), name
    expected, found = made.fused(made.lora), made.fused(path)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    plain = made.network.state_dict()
    assert sum(not torch.equal(found[name], plain[name]) for name in plain) == len(alphas)


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_nothing_is_written_where_comfyui_reads_diffusers_file(
    network: str, tmp_path: Path
) -> None:
    """It knows nothing of the header, whose alpha has to be the rank then."""
    made = make(PIPELINES[network], tmp_path, RANK, ("to_q",))
    expected = COMFYUI_FILE if network in OWN else LORA_FILE
    assert write_other_names(made.lora, network) == expected
    assert made.lora.with_name(COMFYUI_FILE).is_file() == (network in OWN)


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("Flux2Pipeline", ("to_q", "double_stream_modulation_img.linear")),
        ("HunyuanVideoPipeline", ("to_q",)),
        ("SanaPipeline", ("to_q",)),
    ],
)
def test_a_part_of_it_is_not_written(name: str, targets: tuple[str, ...], tmp_path: Path) -> None:
    """A LoRA that lacks a layer is another one, and would look like a student that draws badly."""
    made = make(name, tmp_path, ALPHA, targets)
    assert write_other_names(made.lora, type(made.network).__name__) is None
    assert not made.lora.with_name(COMFYUI_FILE).exists()
