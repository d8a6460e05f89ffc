"""Teachers whose files say what cannot be: each is refused in one line that names the file."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import T5EncoderModel

from distillery.config.teacher import Teacher
from distillery.families import Size
from distillery.notes import refuse
from distillery.teacher.folder import find_teacher
from distillery.teacher.skeleton import load_skeleton, on_networks
from families import sd3, sdxl
from tiny import HEIGHT, WIDTH

WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture
def copy(teacher: Path, tmp_path: Path) -> Path:
    """A teacher that a test may damage."""
    return Path(shutil.copytree(teacher, tmp_path / "teacher"))


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; `...` takes one away."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: it for key, it in content.items() if it is not ...}))


def said(folder: Path) -> str:
    """Why the plan refuses a folder; "" where it does not."""
    try:
        found = find_teacher(Teacher(path=str(folder), height=HEIGHT, width=WIDTH))
        refuse(on_networks(found))
        found.family.latent_shape(load_skeleton(found), Size(HEIGHT, WIDTH))
    except (ValueError, OSError) as error:
        told = str(error)
        return told if "\n" not in told else "more than one line"
    return ""


LISTS: dict[str, Any] = {
    "other": ["diffusers", "AutoencoderKL"],
    "vae/../../evil": ["diffusers", "EvilScheduler"],
    "..": ["diffusers", "AutoencoderKL"],
    "": ["diffusers", "AutoencoderKL"],
    "vae": ["diffusers", "NoSuchModel"],
    "text_encoder": ["transformers", "NoSuchModel"],
    "tokenizer": ["transformers", 5],
    "scheduler": ["diffusers"],
    "transformer": [None, None],
    "transformer_2": [["diffusers"], "x"],
}


@pytest.mark.parametrize("name", LISTS)
def test_a_component_of_a_wrong_name_or_class(copy: Path, name: str) -> None:
    edit(copy / "model_index.json", **{name: LISTS[name]})
    if name == "other":
        shutil.copytree(copy / "vae", copy / name)
    assert str(copy / "model_index.json") in said(copy)
    assert name in said(copy)


@pytest.mark.parametrize("name", ["vae", "scheduler", "transformer", "tokenizer", "text_encoder"])
def test_a_component_that_is_not_named(copy: Path, name: str) -> None:
    edit(copy / "model_index.json", **{name: ...})
    assert f"names no {name}, which a WanPipeline needs" in said(copy)


def test_a_setting_that_the_class_does_not_know_is_ignored_as_by_diffusers(copy: Path) -> None:
    edit(copy / "model_index.json", new_setting=True)
    assert said(copy) == ""


def test_half_of_a_pair_is_refused(tmp_path: Path) -> None:
    sd3.make(tmp_path / "teacher")
    edit(tmp_path / "teacher" / "model_index.json", tokenizer_3=[None, None])
    assert "names one of tokenizer_3 and text_encoder_3" in said(tmp_path / "teacher")


NO_OBJECTS = ["[]", "[" * 100_000, "", '{"a":', "1" * 5000, "\0"]
FILES = [
    "transformer/config.json",
    "text_encoder/config.json",
    "scheduler/scheduler_config.json",
    f"transformer/{WEIGHTS}.index.json",
]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *[("model_index.json", content) for content in NO_OBJECTS],
        *[(file, content) for file in FILES for content in NO_OBJECTS[:2]],
    ],
)
def test_json_of_another_kind(copy: Path, file: str, content: str) -> None:
    (copy / file).write_text(content)
    told = said(copy)
    assert str(copy / file) in told
    assert "rm -r" not in told, "the workflow has not made it"


@pytest.mark.parametrize(
    ("component", "key"),
    [("transformer", "num_layers"), ("vae", "num_res_blocks"), ("text_encoder", "num_layers")],
)
def test_layers_without_end_are_refused_at_once(copy: Path, component: str, key: str) -> None:
    edit(copy / component / "config.json", **{key: 10**6})
    assert f"{copy / component / 'config.json'}: {key} is 1000000, and the weights" in said(copy)


@pytest.mark.parametrize(
    ("component", "change"),
    [
        ("transformer", {"num_layers": 3}),
        ("transformer", {"num_layers": 1}),
        ("transformer", {"ffn_dim": 96}),
        ("transformer", {"attention_head_dim": 24}),
        ("transformer", {"num_layers": "2"}),
        ("transformer", {"patch_size": None}),
        ("vae", {"z_dim": 8}),
        ("vae", {"dim_mult": [1, 1]}),
        ("text_encoder", {"num_layers": 2}),
        ("text_encoder", {"d_model": 64}),
        ("text_encoder", {"d_ff": 128}),
    ],
)
def test_weights_of_another_network(copy: Path, component: str, change: dict[str, Any]) -> None:
    edit(copy / component / "config.json", **change)
    assert str(copy / component) in said(copy)


@pytest.mark.parametrize("component", ["transformer", "vae", "text_encoder"])
def test_weights_that_lack_a_tensor_are_not_made_up(copy: Path, component: str) -> None:
    (path,) = (copy / component).glob("*.safetensors")
    tensors = load_file(path)
    largest = max(tensors, key=lambda name: tensors[name].numel())
    del tensors[largest]
    save_file(tensors, path, {"format": "pt"})
    assert f"{copy / component} is damaged: its weights lack" in said(copy)


def test_weights_that_are_whole_numbers(copy: Path) -> None:
    path = copy / "transformer" / WEIGHTS
    tensors = load_file(path)
    tensors["proj_out.weight"] = tensors["proj_out.weight"].to(torch.int8)
    save_file(tensors, path, {"format": "pt"})
    assert "proj_out.weight holds whole numbers (I8)" in said(copy)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"boundary_ratio": 0.9}, "has no transformer_2 for the steps below it"),
        ({"boundary_ratio": "0.9"}, "use 0 to 1, or null"),
        ({"boundary_ratio": 9}, "use 0 to 1, or null"),
        ({"expand_timesteps": True}, "its network takes a timestep for each token"),
        ({"boundary_ratio": 0}, ""),
        ({"boundary_ratio": None}, ""),
    ],
)
def test_networks_that_the_stock_call_needs(copy: Path, settings: dict[str, Any], why: str) -> None:
    edit(copy / "model_index.json", **settings)
    assert why in said(copy)
    assert bool(said(copy)) == bool(why)


@pytest.mark.parametrize("make", [sd3.make, sdxl.make], ids=["sd3", "sdxl"])
def test_whole_ones_are_accepted(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "teacher")
    assert said(tmp_path / "teacher") == ""


def test_a_link_anywhere_that_leads_nowhere(copy: Path) -> None:
    for file in ("vae/config.json", f"transformer/{WEIGHTS}", "text_encoder/extra.json"):
        path = copy / file
        before = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        path.symlink_to("../gone")
        assert f"{file} (a link to ../gone, which is not there)" in said(copy)
        path.unlink()
        if before is not None:
            path.write_bytes(before)
    (copy / "README.md").symlink_to("gone")
    assert said(copy) == ""


def add(component: Path, *names: str, prefix: str = "") -> None:
    """Put tensors into a component's weights, and a prefix before the names of those there."""
    (path,) = component.glob("*.safetensors")
    tensors = {prefix + name: tensor for name, tensor in load_file(path).items()}
    save_file(tensors | {name: torch.ones(3) for name in names}, path, {"format": "pt"})


def noted(folder: Path) -> str:
    """What the plan doubts of a folder's weights."""
    found = find_teacher(Teacher(path=str(folder), height=HEIGHT, width=WIDTH))
    notes = list(on_networks(found))
    refuse(notes)
    return "; ".join(map(str, notes))


@pytest.mark.parametrize("component", ["transformer", "vae", "text_encoder"])
def test_a_tensor_that_no_network_knows_is_a_doubt(copy: Path, component: str) -> None:
    assert noted(copy) == ""
    add(copy / component, "foo.weight")
    assert f"{copy / component}: its weights have 1 tensors" in noted(copy)
    assert "such as foo.weight" in noted(copy)


def test_fewer_layers_of_text_encoders_are_refused(tmp_path: Path) -> None:
    """Transformers would leave the others out; its names of CLIP's tensors have no prefix."""
    folder = tmp_path / "teacher"
    sd3.make(folder)
    encoder = T5EncoderModel.from_pretrained(folder / "text_encoder_3")
    encoder.config.num_layers = 2
    T5EncoderModel(encoder.config).save_pretrained(folder / "text_encoder_3")
    add(folder / "text_encoder", "text_model.embeddings.position_ids", prefix="text_model.")
    add(folder / "text_encoder_3", "decoder.block.0.layer.0.SelfAttention.q.weight")
    assert noted(folder) == "", "what releases have beside"
    for name, key in (("text_encoder", "num_hidden_layers"), ("text_encoder_3", "num_layers")):
        config = json.loads((folder / name / "config.json").read_text())
        edit(folder / name / "config.json", **{key: config[key] - 1})
        assert f"{folder / name} is damaged: its weights have " in said(folder)
        edit(folder / name / "config.json", **{key: config[key]})


@pytest.mark.parametrize("component", ["transformer", "vae", "text_encoder"])
def test_a_tensor_under_another_name_is_lacking(copy: Path, component: str) -> None:
    (path,) = (copy / component).glob("*.safetensors")
    tensors = load_file(path)
    name = next(name for name in tensors if "norm" in name)
    tensors["other"] = tensors.pop(name)
    save_file(tensors, path, {"format": "pt"})
    assert f"{copy / component} is damaged: its weights lack 1 tensors" in said(copy)


def test_names_that_old_releases_give_to_attention_are_known(tmp_path: Path) -> None:
    """The VAE of Stable Diffusion 1.5."""
    folder = tmp_path / "teacher"
    sdxl.make(folder)
    (path,) = (folder / "vae").glob("*.safetensors")
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    tensors = load_file(path)
    for name in list(tensors):
        for new, former in old.items():
            if f".{new}." in name:
                tensors[name.replace(new, former)] = tensors.pop(name)
    save_file(tensors, path, {"format": "pt"})
    assert any(".proj_attn." in name for name in tensors)
    assert noted(folder) == ""


def test_a_folder_in_place_of_weights(copy: Path) -> None:
    path = copy / "transformer" / WEIGHTS
    path.unlink()
    path.mkdir()
    assert f"{path} is a folder, a file of weights is needed" in said(copy)


def test_training_timesteps_without_end_are_refused_at_once(copy: Path) -> None:
    edit(copy / "scheduler" / "scheduler_config.json", num_train_timesteps=10**6)
    assert "num_train_timesteps is 1,000,000, at most 100,000" in said(copy)


@pytest.mark.parametrize("component", ["transformer", "text_encoder"])
def test_weights_that_were_saved_quantised(copy: Path, component: str) -> None:
    packing = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    edit(copy / component / "config.json", quantization_config=packing)
    assert said(copy).startswith(f"{copy / component} holds quantised weights (bitsandbytes): the")
    edit(copy / component / "config.json", quantization_config=None)
    assert said(copy) == ""
