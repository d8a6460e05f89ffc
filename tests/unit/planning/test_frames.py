"""The plan of clips: what may not be is refused at once, what is made is counted."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from distillery.config.teacher import Teacher
from distillery.families import Size
from distillery.planning.page import TIMES
from distillery.student.usage import student_code
from distillery.teacher import skeleton
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.loading import load_teacher
from families import CASES
from families.made import made_teacher
from runs import CPU, planned, settings

WAN, SDXL = (next(case for case in CASES if case.name == name) for name in ("wan", "sdxl"))


@pytest.fixture(scope="module")
def wan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_teacher(tmp_path_factory, WAN)


def plan_of(teacher: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    return planned(settings(folder, teacher, teacher=changes), folder)


def test_a_clip_is_told_and_takes_its_room(wan: Path, tmp_path: Path) -> None:
    image = plan_of(wan, tmp_path / "image")
    clip = plan_of(wan, tmp_path / "clip", num_frames=9, fps=6)
    assert image["latent_shape"] == [4, 1, 4, 4]
    assert clip["latent_shape"] == [4, 3, 4, 4]
    page = " ".join(json.dumps(clip, ensure_ascii=False).split())
    assert f"32 {TIMES} 32 pixels, 9 frames, 6 a second (1.5 s); latents 4 {TIMES} 3" in page
    states = [plan["work"]["trajectory_bytes"] for plan in (image, clip)]
    assert states[1] == 3 * states[0]


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"num_frames": 8}, r"teacher\.num_frames is 8: this model makes 1 and 4 more.*use 9"),
        ({"num_frames": 2}, r"teacher\.num_frames is 2: this model makes 1 and 4 more.*use 5"),
        ({"fps": 24}, r"teacher\.fps is 24, and a sample is a single image"),
        ({"num_frames": 0}, r"num_frames"),
    ],
)
def test_what_may_not_be(wan: Path, tmp_path: Path, changes: dict[str, int], refused: str) -> None:
    with pytest.raises(ValueError, match=refused):
        plan_of(wan, tmp_path, **changes)


@pytest.mark.parametrize(
    ("name", "most", "more"), [("height", 512, 16), ("width", 512, 16), ("num_frames", 125, 4)]
)
def test_a_size_ends_where_the_networks_positions_do(
    wan: Path, tmp_path: Path, name: str, most: int, more: int
) -> None:
    """Of 32 patches each way, as the network itself does."""
    size = {"height": 32, "width": 32, "num_frames": 1, name: most}
    teacher = Teacher(path=str(wan), dtype="float32", **size)
    found = find_teacher(teacher)
    pipeline = load_teacher(teacher, found, CPU)
    shape = list(found.family.latent_shape(pipeline, Size.of(teacher)))
    network = pipeline.transformer
    inputs = {
        "timestep": torch.ones(1),
        "encoder_hidden_states": torch.zeros(1, 1, network.config.text_dim),
    }
    with torch.no_grad():
        network(torch.zeros(1, *shape), **inputs)
        shape[["num_frames", "height", "width"].index(name) + 1] += 1 if name == "num_frames" else 2
        with pytest.raises(RuntimeError):
            network(torch.zeros(1, *shape), **inputs)
    refused = rf"teacher\.{name} is {most + more}: this model's positions end at {most}; use at"
    with pytest.raises(ValueError, match=refused):
        plan_of(wan, tmp_path, **{name: most + more})


def test_a_family_of_images_makes_no_clips(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    teacher = made_teacher(tmp_path_factory, SDXL)
    size = {**SDXL.in_call, "max_sequence_length": None}
    with pytest.raises(ValueError, match="StableDiffusionXLPipeline makes single images"):
        plan_of(teacher, tmp_path, num_frames=9, **size)


def test_a_vae_decodes_in_tiles_where_it_can(
    wan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card's code asks for them too."""
    for tiling in (False, True):
        teacher = Teacher(path=str(wan), height=32, width=32, vae_tiling=tiling)
        found = find_teacher(teacher)
        assert load_teacher(teacher, found, CPU, all_but_vae(found)).vae.use_tiling == tiling
    assert plan_of(wan, tmp_path, vae_tiling=True)
    call = {"dtypes": {"default": "float32"}, "absent": {}, "cast_latents": False, "arguments": {}}
    code = student_code(call | {"image": "images[0]", "vae_tiling": True})
    assert "pipeline.vae.enable_tiling()" in code
    monkeypatch.setattr(skeleton, "skeleton_of", lambda _folder, _name: torch.nn.Module())
    with pytest.raises(ValueError, match=r"teacher\.vae_tiling is true: this VAE cannot"):
        skeleton.check_options(teacher, found)


def all_but_vae(found: PipelineFolder) -> tuple[str, ...]:
    return tuple(name for name in found.components if name not in ("vae", "scheduler"))
