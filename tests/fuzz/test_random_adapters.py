"""Random LoRA files of every dialect: the change that the file means, or a refusal by name."""

import copy
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import families
from distillery.config.teacher import Adapter, Teacher
from distillery.teacher.adapters import adapt, check_adapters, teacher_hash
from distillery.teacher.folder import PipelineFolder
from fuzzing import seeds
from lora_files import DIALECTS, Dialect, Tensors, random_file
from tiny import make_tiny_wan

NAMES = sorted(DIALECTS)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Dialect], tuple[Path, Any]]:
    """A dialect's teacher, and the component that it changes; each is made once."""
    root = tmp_path_factory.mktemp("teachers")

    @cache
    def pipeline(family: str) -> Any:
        from diffusers import DiffusionPipeline

        make = make_tiny_wan if family == "wan" else getattr(families, family).make
        make(root / family)
        return DiffusionPipeline.from_pretrained(root / family)

    return lambda dialect: (
        root / dialect.family,
        getattr(pipeline(dialect.family), dialect.component),
    )


def spoil_nothing(tensors: Tensors, draw: random.Random) -> None:
    """The file stays as it is."""


def spoil_half(tensors: Tensors, draw: random.Random) -> None:
    del tensors[draw.choice([name for name in tensors if name.endswith(".weight")])]


def spoil_shape(tensors: Tensors, draw: random.Random) -> None:
    name = draw.choice([name for name in tensors if name.endswith(".weight")])
    shape = draw.choice([(3, 7), (7,), (0, 4), (), (2, 3, 4, 5)])
    tensors[name] = torch.ones(shape)


def spoil_number(tensors: Tensors, draw: random.Random) -> None:
    name = draw.choice(sorted(tensors))
    tensors[name] = torch.full(tensors[name].shape, draw.choice([float("nan"), float("inf")]))


def spoil_type(tensors: Tensors, draw: random.Random) -> None:
    name = draw.choice([name for name in tensors if name.endswith(".weight")])
    dtype = draw.choice([torch.int8, torch.int64, torch.bool, torch.complex64])
    tensors[name] = torch.ones(tensors[name].shape).to(dtype)


def spoil_extra(tensors: Tensors, draw: random.Random) -> None:
    """A part that no converter carries, or one of another kind of adapter."""
    begin = draw.choice(
        ["lora_unet_x", "lora_te3_encoder_block_0", "text_encoders.t5xxl.transformer.encoder.0",
         "diffusion_model.blocks.0.norm3", "diffusion_model.patch_embedding", "transformer.pos",
         "diffusion_model.double_blocks.0.img_attn.norm.query_norm", "foreign", "lora_te1_x",
         "unet.x", "diffusion_model.time_projection.1", "text_model.embeddings.position_embedding",
         "base_model.model.x", next(iter(tensors)).rpartition(".lora")[0]]
    )  # fmt: skip
    end = draw.choice(
        ["diff", "diff_b", "diff_m", "alpha", "lora_down.weight", "lora_A.weight", "hada_w1_a",
         "weight", "weight_scale", "set_weight", "dora_scale", "lokr_w1", "reshape_weight"]
    )  # fmt: skip
    tensors.setdefault(f"{begin}.{end}", torch.ones(draw.choice([(), (4,), (4, 4)])))


def add_zeros(tensors: Tensors, draw: random.Random) -> None:
    """Parts that have no effect; they may be there, and may be refused, and change nothing."""
    extra: Tensors = {}
    spoil_extra(extra | tensors, draw)
    probe = dict(tensors)
    spoil_extra(probe, draw)
    tensors.update({name: torch.zeros(4, 4) for name in probe.keys() - tensors.keys()})


SPOILS = {
    "nothing": spoil_nothing,
    "zeros": add_zeros,
    "half": spoil_half,
    "shape": spoil_shape,
    "number": spoil_number,
    "type": spoil_type,
    "extra": spoil_extra,
}
MUST_FAIL = ("half", "shape", "number", "type", "extra")


def put_in(model: Any, teacher: Teacher, folder: PipelineFolder, name: str) -> str:
    """Adapt a model; what is refused, as the plan refuses it too."""
    told = []
    # Numbers of a sum are not known on the meta device.
    plan = {name: copy.deepcopy(model).to("meta")}
    steps = [lambda: check_adapters(plan, lambda _: plan[name], teacher, folder)]
    if not hasattr(model, "load_lora_adapter"):
        steps = [lambda: check_adapters({}, lambda _: plan[name], teacher, folder)]
    steps.append(lambda: adapt({name: model}, teacher, folder, fuse=True))
    for step in steps:
        try:
            step()
            told.append("")
        except ValueError as error:
            told.append(str(error))
    # Loading leaves out what changes other components.
    assert told[0] or not told[1], told
    return told[0]


@pytest.mark.parametrize("seed", seeds(40))
def test_a_lora_changes_what_it_says_or_is_refused_by_name(
    seed: int, base: Callable[[Dialect], tuple[Path, Any]], tmp_path: Path
) -> None:
    draw = random.Random(seed)
    name = NAMES[seed % len(NAMES)]
    dialect = DIALECTS[name]
    path, model = base(dialect)
    before = model.state_dict()
    file = random_file(dialect, before, draw)
    spoil = "nothing" if seed < len(NAMES) else draw.choice(list(SPOILS))
    tensors = dict(file.tensors)
    SPOILS[spoil](tensors, draw)
    lora = tmp_path / "it.safetensors"
    save_file(tensors, lora)
    scale = draw.choice([1.0, 0.5, -2.0])
    adapters = (Adapter(path=str(lora), scale=scale),)
    teacher = Teacher(path=str(path), height=32, width=32, dtype="float32", adapters=adapters)
    folder = PipelineFolder(path)
    adapted = copy.deepcopy(model)
    refused = put_in(adapted, teacher, folder, dialect.component)
    if refused:
        assert spoil != "nothing", (name, refused)
        assert refused.startswith("teacher.adapters: ")
        assert str(lora) in refused
        assert "\n" not in refused
        return
    assert spoil not in MUST_FAIL, (name, spoil, sorted(tensors.keys() - file.tensors.keys()))
    teacher_hash(teacher, folder)
    after = adapted.state_dict()
    assert after.keys() == before.keys()
    for key, value in before.items():
        expected = value + scale * file.change.get(key, torch.zeros(()))
        torch.testing.assert_close(after[key], expected, atol=2e-5, rtol=1e-4, msg=f"{name} {key}")
