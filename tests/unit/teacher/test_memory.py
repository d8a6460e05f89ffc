"""The memory that weights take, known before they are loaded; what to do where it is too much."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from diffusers import DiffusionPipeline

from distillery.config.parsing import parse
from distillery.config.run import parse_config
from distillery.config.teacher import Teacher
from distillery.files import GIB
from distillery.pipeline import STAGES
from distillery.planning import plan as plan_stage
from distillery.planning.plan import make_plan
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.memory import (
    Memory,
    choose_preset,
    estimate,
    on_memory,
    preset_path,
    summarise_memory,
)
from runs import settings, summary

GPU = {"uuid": "GPU-a", "index": 0, "name": "any", "memory_bytes": 24 * GIB}


def section(folder: Path | str = "teacher", **changes: Any) -> Teacher:
    fields = {"path": str(folder), "dtype": "bfloat16", "height": 32, "width": 32}
    return parse(Teacher, fields | changes, "test")


def measured(teacher: Path, **changes: Any) -> Memory:
    return estimate(section(teacher, **changes), PipelineFolder(teacher), None)


def test_components_in_the_types_they_are_loaded_in(teacher: Path) -> None:
    counts = PipelineFolder(teacher).parameters
    found = measured(teacher, vae_dtype="float32")
    assert found.components == {
        "text_encoder": counts["text_encoder"] * 2,
        "transformer": counts["transformer"] * 2,
        "vae": counts["vae"] * 4,
    }
    assert found.gpu is None
    assert measured(teacher, vae_dtype="bfloat16").components["vae"] == counts["vae"] * 2


def test_gpus_of_which_nothing_is_known_have_no_preset(teacher: Path) -> None:
    folder = PipelineFolder(teacher)
    assert estimate(section(teacher), folder, 10**9).preset is not None
    assert estimate(section(teacher), folder, None, is_unknown=True).preset is None


def test_the_estimate_is_what_is_loaded(teacher: Path) -> None:
    pipeline = DiffusionPipeline.from_pretrained(teacher)
    found = measured(teacher, dtype="float32").components
    for name, size in found.items():
        tensors = getattr(pipeline, name).state_dict().values()
        shared = {tensor.data_ptr(): tensor.numel() for tensor in tensors}
        assert size == sum(shared.values()) * 4


def test_what_lies_on_one_gpu_at_once(teacher: Path) -> None:
    found = {
        name: measured(teacher, **changes)
        for name, changes in (
            ("none", {}),
            ("model", {"offload": "model"}),
            ("sequential", {"offload": "sequential"}),
            ("two", {"num_gpus": 2}),
        )
    }
    sizes = found["none"].components
    generating = {name: memory.jobs["targets and samples"] for name, memory in found.items()}
    assert found["none"].jobs["embeddings"] == sizes["text_encoder"]
    assert generating["none"] == sizes["transformer"] + sizes["vae"]
    assert generating["model"] == max(sizes["transformer"], sizes["vae"])
    assert generating["sequential"] < generating["model"]
    assert generating["two"] == sizes["vae"] + sizes["transformer"] // 2


@pytest.mark.parametrize(
    ("weights", "gpu", "preset"),
    [
        (12, 24, "large"),
        (13, 24, "medium"),
        (19, 24, "medium"),
        (20, 24, "small"),
        (1, None, "cpu"),
    ],
)
def test_presets_go_by_bytes(weights: int, gpu: int | None, preset: str) -> None:
    assert choose_preset(weights * GIB, gpu and gpu * GIB) == preset


def memory(denoiser: float, vae: float = 0.0, gpu: int | None = 24) -> Memory:
    """Sizes in GiB."""
    sizes = {"transformer": int(denoiser * GIB), "vae": int(vae * GIB)}
    return Memory(sizes, {"targets and samples": sum(sizes.values())}, gpu and gpu * GIB, "small")


@pytest.mark.parametrize(
    ("changes", "found", "advice"),
    [
        ({}, memory(12), []),
        ({}, memory(19), []),
        ({"dtype": "float32"}, memory(28), ["set teacher.dtype: bfloat16"]),
        ({}, memory(18, 4), ["need 22.0 GiB .* has 24.0 GiB: set teacher.offload: model"]),
        ({}, memory(28), ["set teacher.num_gpus: 2, or 1 with offload: sequential"]),
        ({}, memory(54), ["set teacher.num_gpus: 3, or 1 with offload: sequential"]),
        ({"num_gpus": 2}, memory(28), ["set teacher.num_gpus: 3, or 1 with offload: sequential"]),
        (
            {"offload": "model"},
            memory(28),
            ["sequential, or none with num_gpus: 2"],
        ),
        ({"num_gpus": 2}, memory(40), ["set teacher.num_gpus: 5, or 1 with offload: sequential"]),
        (
            {"offload": "model"},
            replace(memory(28, 22), jobs={"targets": 28 * GIB}),
            ["sequential, or none with num_gpus: 3"],
        ),
        ({"offload": "sequential"}, memory(28), ["use a larger GPU"]),
        ({}, memory(28, gpu=None), []),
        ({"offload": "model"}, memory(28, gpu=None), ["offload is model and this machine has no"]),
        ({"num_gpus": 4}, memory(28, gpu=None), ["num_gpus is 4 and this machine has no GPU"]),
    ],
)
def test_advice(changes: dict[str, Any], found: Memory, advice: list[str]) -> None:
    import re

    given = [*map(str, on_memory(section(**changes), found))]
    assert len(given) == len(advice)
    assert all(re.search(pattern, line) for pattern, line in zip(advice, given, strict=True))


def test_the_plan_says_it(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = plan_stage.describe_hardware()
    small = GPU | {"memory_bytes": 100_000}
    monkeypatch.setattr(plan_stage, "describe_hardware", lambda: described | {"gpus": [small]})
    make_plan(STAGES, parse_config(settings(tmp_path, teacher), "tiny"), tmp_path / "plan.json")
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert set(plan["memory"]) == {"components", "jobs", "gpu", "preset"}
    assert plan["memory"]["gpu"] == 100_000
    assert plan["memory"]["preset"] == "small"
    assert any("set teacher.dtype: bfloat16 (docs/memory.md)" in line for line in plan["advice"])
    assert summarise_memory(plan["memory"]) in summary(plan)


def test_a_preset_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert preset_path("cpu").is_file()
    monkeypatch.chdir(Path(__file__).parents[3])
    assert preset_path("cpu") == Path("config/presets/cpu.yaml")
