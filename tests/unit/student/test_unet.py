"""Smaller UNets: what is kept is the teacher's, and plain Diffusers loads it."""

import copy
import json
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from diffusers import UNet2DConditionModel

from distillery.config.student import Unet
from distillery.files import read_json
from distillery.model_folder import METADATA, save_denoiser
from distillery.student.unet import down_pairs, shrink_unet, up_pairs
from families.made import made_teacher
from families.sdxl import CASE as SDXL_CASE
from runs import make_run

TEXT_FEATURES = 12


@pytest.fixture(scope="module")
def teacher() -> UNet2DConditionModel:
    """As SDXL in small: no attention at the first level, most layers at the last; 3 pairs there."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        unet = UNet2DConditionModel(
            sample_size=8,
            block_out_channels=(8, 16, 24),
            layers_per_block=[2, 2, 3],
            norm_num_groups=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=(2, 4, 4),
            transformer_layers_per_block=(1, 2, 4),
            cross_attention_dim=TEXT_FEATURES,
            use_linear_projection=True,
        )
    return unet.eval()


def shrink(teacher: UNet2DConditionModel, rule: Any = "even", **keep: Any) -> UNet2DConditionModel:
    student = copy.deepcopy(teacher)
    shrink_unet(student, Unet.model_validate_json(json.dumps(keep)), rule)
    return student


@torch.no_grad()
def output(unet: torch.nn.Module) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    noisy = torch.randn(2, 4, 8, 8, generator=generator)
    embeds = torch.randn(2, 5, TEXT_FEATURES, generator=generator)
    found = unet(noisy, torch.tensor([999, 250]), encoder_hidden_states=embeds, return_dict=False)
    assert isinstance(found[0], torch.Tensor)
    return found[0]


NESTED = {
    "transformer_layers_per_block": [1, [1, 2], [3, 4, 1]],
    "reverse_transformer_layers_per_block": [[1, 2, 3, 4], [2, 1, 1], 1],
}
KEEPS: list[dict[str, Any]] = [
    {"layers_per_block": [2, 1, 2]},
    {"layers_per_block": 1, "mid_block": "none"},
    {"transformer_layers_per_block": [1, 1, 3]},
    NESTED,
    {"layers_per_block": [1, 1, 1], "transformer_layers_per_block": 2, "mid_block": "resnet"},
]


@pytest.mark.parametrize("keep", KEEPS, ids=str)
def test_plain_diffusers_loads_the_same_network(
    teacher: UNet2DConditionModel, keep: dict[str, Any], tmp_path: Path
) -> None:
    student = shrink(teacher, **keep)
    save_denoiser(student, tmp_path)
    loaded, info = UNet2DConditionModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert torch.equal(output(loaded), output(student))
    assert not torch.equal(output(student), output(teacher))
    assert student.num_parameters() < teacher.num_parameters()


@pytest.mark.parametrize(
    "keep",
    [{"layers_per_block": [2, 2, 3]}, {"transformer_layers_per_block": [1, 2, 4]}],
    ids=str,
)
def test_dropping_nothing_is_the_teacher(
    teacher: UNet2DConditionModel, keep: dict[str, Any], tmp_path: Path
) -> None:
    save_denoiser(shrink(teacher, **keep), tmp_path)
    assert torch.equal(output(UNet2DConditionModel.from_pretrained(tmp_path)), output(teacher))


def test_a_mid_block_below_a_stage_without_attention_keeps_its_layers(tmp_path: Path) -> None:
    """As in Stable Diffusion 1.5; Diffusers takes their number from that stage's entry."""
    with torch.random.fork_rng(devices=[]):
        unet = UNet2DConditionModel(
            sample_size=8,
            block_out_channels=(8, 16),
            layers_per_block=2,
            norm_num_groups=4,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            attention_head_dim=4,
            transformer_layers_per_block=(1, 3),
            cross_attention_dim=TEXT_FEATURES,
        ).eval()
    student = shrink(unet, layers_per_block=1)
    save_denoiser(student, tmp_path)
    loaded = UNet2DConditionModel.from_pretrained(tmp_path)
    assert len(loaded.mid_block.attentions[0].transformer_blocks) == 3
    assert torch.equal(output(loaded), output(student))


@pytest.mark.parametrize(
    ("num_pairs", "num_kept", "down", "up"),
    [
        (2, 1, (0,), (0, 2)),  # BK-SDM
        (2, 2, (0, 1), (0, 1, 2)),
        (3, 1, (0,), (0, 3)),
        (3, 2, (0, 2), (0, 2, 3)),
        (4, 3, (0, 2, 3), (0, 1, 3, 4)),
        (1, 1, (0,), (0, 1)),
    ],
)
def test_up_pairs_answer_the_down_pairs(
    num_pairs: int, num_kept: int, down: tuple[int, ...], up: tuple[int, ...]
) -> None:
    assert down_pairs(num_pairs, num_kept) == down
    assert up_pairs(num_pairs, num_kept) == up


def assert_same(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    left, right = ours.state_dict(), theirs.state_dict()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in right)


def test_the_pairs_kept_are_the_teachers(teacher: UNet2DConditionModel) -> None:
    student = shrink(teacher, layers_per_block=[1, 1, 2])
    kept = {
        "down_blocks.0.resnets": [0],
        "down_blocks.1.resnets": [0],
        "down_blocks.1.attentions": [0],
        "down_blocks.2.resnets": [0, 2],
        "down_blocks.2.attentions": [0, 2],
        "up_blocks.0.resnets": [0, 2, 3],
        "up_blocks.0.attentions": [0, 2, 3],
        "up_blocks.1.resnets": [0, 2],
        "up_blocks.1.attentions": [0, 2],
        "up_blocks.2.resnets": [0, 2],
    }
    for name, pairs in kept.items():
        blocks: Any = teacher.get_submodule(name)
        assert_same(student.get_submodule(name), torch.nn.ModuleList([blocks[i] for i in pairs]))
    for name in ("conv_in", "time_embedding", "mid_block", "down_blocks.1.downsamplers"):
        assert_same(student.get_submodule(name), teacher.get_submodule(name))


def test_the_transformer_layers_kept_follow_the_rule(teacher: UNet2DConditionModel) -> None:
    theirs: Any = teacher.up_blocks[0].attentions[1].transformer_blocks
    for rule, layers in (("even", [0, 3]), ("first", [0, 1]), ("ends", [0, 3]), ("last", [2, 3])):
        student = shrink(teacher, rule, transformer_layers_per_block=2)
        ours = student.up_blocks[0].attentions[1].transformer_blocks
        assert_same(ours, torch.nn.ModuleList([theirs[i] for i in layers]))


def test_a_smaller_mid_block_is_the_teachers_first_resnet(teacher: UNet2DConditionModel) -> None:
    student = shrink(teacher, mid_block="resnet")
    assert student.config.mid_block_type == "UNetMidBlock2D"
    assert_same(student.mid_block.resnets, teacher.mid_block.resnets[:1])
    assert shrink(teacher, mid_block="none").config.mid_block_type is None


@pytest.mark.parametrize(
    ("keep", "problem"),
    [
        ({"layers_per_block": 3}, r"is \[3, 3, 3\]: the teacher's down stages have \[2, 2, 3\]"),
        ({"layers_per_block": [1, 1]}, "give one number for each stage"),
        ({"transformer_layers_per_block": [1, 2]}, "has 2 entries: give one for each of 3 stages"),
        (NESTED | {"transformer_layers_per_block": [1, [1], [1, 1, 1]]}, "a stage of 2 transform"),
        (NESTED | {"transformer_layers_per_block": [1, [1, 9], 1]}, "has 2 layers; use 1 to 2"),
        (NESTED | {"reverse_transformer_layers_per_block": [1, 1]}, "reverse_.* has 2 entries"),
    ],
)
def test_what_the_teacher_does_not_have(
    teacher: UNet2DConditionModel, keep: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        shrink(teacher, **keep)


SDXL: dict[str, Any] = {
    "cross_attention_dim": 2048,
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "attention_head_dim": (5, 10, 20),
    "transformer_layers_per_block": (1, 2, 10),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}


@pytest.mark.parametrize(
    ("shape", "keep", "billions"),
    [
        ({"cross_attention_dim": 768}, {"layers_per_block": 1}, 0.58),
        ({"cross_attention_dim": 768}, {"layers_per_block": 1, "mid_block": "none"}, 0.48),
        (
            SDXL,
            {
                "transformer_layers_per_block": [1, [2, 2], [4, 4]],
                "reverse_transformer_layers_per_block": [[4, 4, 10], [2, 1, 1], 1],
                "mid_block": "resnet",
            },
            1.33,
        ),
    ],
    ids=["bk-sdm-base", "bk-sdm-small", "as-ssd-1b"],
)
def test_published_sizes(shape: dict[str, Any], keep: dict[str, Any], billions: float) -> None:
    """BK-SDM's U-Nets have 0.58 and 0.48 to 0.49 billion parameters, SSD-1B's has 1.3."""
    with torch.device("meta"):
        unet = diffusers.UNet2DConditionModel(**shape)
    shrink_unet(unet, Unet.model_validate_json(json.dumps(keep)), "even")
    assert round(unet.num_parameters() / 1e9, 2) == billions


def test_a_smaller_unet_is_trained_exported_and_called(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """From the configuration to an image of the stock pipeline."""
    teacher = made_teacher(tmp_path_factory, SDXL_CASE)
    keep = {"mid_block": "resnet", "transformer_layers_per_block": 1}
    size = {"height": SDXL_CASE.height, "width": SDXL_CASE.width, "max_sequence_length": None}
    student = {"steps": 2, "init": "layers", "unet": keep}
    run = make_run(tmp_path, teacher, teacher=size, student=student)
    run.encode("train")
    run.all_targets()
    folder = run.train_and_export()
    pipeline = diffusers.DiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    assert pipeline.unet.config.mid_block_type == "UNetMidBlock2D"
    call = read_json(folder / METADATA)["call"]["arguments"]
    assert pipeline("a dog", **call).images[0].size == (SDXL_CASE.width, SDXL_CASE.height)
    trained = (folder / "unet/diffusion_pytorch_model.safetensors").read_bytes()
    initial = run.folder / "student/initial/diffusion_pytorch_model.safetensors"
    assert trained != initial.read_bytes()
