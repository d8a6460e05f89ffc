"""Vision models: their features against the network's own forward, and what is refused."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoImageProcessor, AutoModel, ViTMAEConfig

from distillery.measures.vision import check_vision_model, embed_images, load_vision_model
from judging import CPU, PROMPTS, Code, draw, make_dino, make_judge, make_resnet, make_siglip

SETTING = "evaluation.vision_models.other"
MAKERS = {
    "clip": (make_judge, 16),
    "dino": (make_dino, 8),
    "siglip": (make_siglip, 8),
    "resnet": (make_resnet, 12),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vision")
    for name, (make, _) in MAKERS.items():
        make(folder / name)
    return folder


@pytest.fixture
def dino(folders, tmp_path):
    """A copy to damage."""
    return shutil.copytree(folders / "dino", tmp_path / "dino")


def forward(name, model, pixels):
    """What each kind of network calls the features of an image, from its own parts."""
    if name == "clip":
        return model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output)
    if name == "siglip":
        return model.vision_model(pixel_values=pixels).pooler_output
    states = model(pixel_values=pixels).last_hidden_state
    return states.mean(dim=(2, 3)) if name == "resnet" else states[:, 0]


@pytest.mark.parametrize("name", MAKERS)
def test_features_are_the_networks_own(name, folders):
    images = [draw(prompt, 1) for prompt in PROMPTS[:3]]
    found = embed_images(load_vision_model(SETTING, str(folders / name), CPU), images)
    processor = AutoImageProcessor.from_pretrained(folders / name, backend="pil")
    model = AutoModel.from_pretrained(folders / name).eval()
    for image, row in zip(images, found, strict=True):
        with torch.no_grad():
            expected = forward(name, model, processor(image, return_tensors="pt").pixel_values)
        assert row == pytest.approx(expected[0].double().numpy(), abs=1e-5)


@pytest.mark.parametrize("name", MAKERS)
def test_the_plan_knows_the_number_of_features_without_reading_weights(name, folders, tmp_path):
    folder = shutil.copytree(folders / name, tmp_path / name)
    (folder / "model.safetensors").write_bytes(b"not read")
    assert check_vision_model(SETTING, str(folder)) == MAKERS[name][1]


@pytest.mark.parametrize("use", [check_vision_model, lambda *it: load_vision_model(*it, CPU)])
@pytest.mark.parametrize("path", ["resources/demo/nothing", "./dino", "/nowhere", "dino/v2.bin"])
def test_a_missing_folder_is_named(use, path):
    with pytest.raises(ValueError, match=f"^{SETTING} is '{path}': there is no such folder"):
        use(SETTING, path)


def test_folders_that_hold_no_vision_model_are_refused_in_a_line(dino, tmp_path):
    assert "no weights" in refused(dino, lambda: (dino / "model.safetensors").unlink())
    config = dino / "config.json"
    kinds = {"model_type": "unheard_of"}, {"model_type": "bert", "hidden_size": 8}
    for kind in kinds:
        config.write_text(json.dumps(kind))
        assert refused(dino)
    (dino / "preprocessor_config.json").unlink()
    assert "with its image processor" in refused(dino)
    assert "with its image processor" in refused(tmp_path)


def test_a_network_that_needs_a_text_gives_no_features(dino):
    config = {"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2}
    (dino / "config.json").write_text(json.dumps(config))
    assert "a BertModel, which gives no features of an image alone" in refused(dino)


def test_a_network_that_pools_nothing_gives_no_features(dino):
    """Only states of patches: which of them would be the image's features?"""
    config = ViTMAEConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=16)
    config.save_pretrained(dino)
    assert "a ViTMAEModel, which gives no features of an image alone" in refused(dino)


def refused(folder, change=lambda: None):
    """The message for a folder, which is one line."""
    change()
    with pytest.raises(ValueError, match=SETTING) as caught:
        check_vision_model(SETTING, str(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_weights_that_are_missing_are_not_random(dino):
    weights = load_file(dino / "model.safetensors")
    del weights["layernorm.weight"]
    save_file(weights, dino / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"weights lack 1 tensors \(layernorm.weight, …\)"):
        load_vision_model(SETTING, str(dino), CPU)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.safetensors", "cannot be loaded as a vision model"),
        ("pytorch_model.bin", "cannot be loaded as a vision model"),
        ("pytorch_model.bin of code", "a pickle of more than tensors, which could run code"),
    ],
)
def test_damaged_weights_are_told_in_a_line(dino, name, message):
    (dino / "model.safetensors").unlink()
    if name.endswith("code"):
        torch.save({"a": Code()}, dino / "pytorch_model.bin")
    else:
        (dino / name).write_bytes(b"junk" * 10)
    with pytest.raises(ValueError, match=message) as caught:
        load_vision_model(SETTING, str(dino), CPU)
    assert "\n" not in str(caught.value)
