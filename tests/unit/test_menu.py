"""Each shipped configuration is planned at released shapes; its head says what the plan says."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from checkout import REPOSITORY, load_script
from distillery.config.run import Config
from distillery.files import GIB
from distillery.planning.host import megabytes, on_requests
from distillery.planning.jobs import StageJobs
from distillery.planning.requests import Request
from distillery.teacher.memory import TIGHT

pytestmark = pytest.mark.slow
SHIPPED = sorted((REPOSITORY / "config").glob("*.yaml"))
NAMES = [path.stem for path in SHIPPED]
SUBMITTED = ("embeddings", "targets", "student", "training", "export", "samples")
"""Stages whose jobs a cluster gets."""


@pytest.fixture(scope="module")
def menu() -> ModuleType:
    return load_script("menu")


@pytest.fixture(scope="module")
def plans(menu: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All shipped configurations, planned once."""
    folder = tmp_path_factory.mktemp("menu")
    return {name: menu.plan_shipped(name, folder / "teachers", folder / name) for name in NAMES}


def test_the_menu_has_every_shipped_configuration(menu: ModuleType) -> None:
    assert sorted(menu.MENU) == NAMES


@pytest.mark.parametrize("path", SHIPPED, ids=NAMES)
def test_a_head_says_what_the_plan_says(
    menu: ModuleType, plans: dict[str, Any], path: Path
) -> None:
    text = path.read_text(encoding="utf-8")
    head = menu.head_of(path.stem, plans[path.stem])
    assert head in text, "run python tools/menu.py"
    assert menu.with_head(text, head) == text
    assert max(map(len, head.splitlines())) <= 100
    is_traced = plans[path.stem].config.teacher.trace is not None
    facts = ("memory", "calls") if is_traced else ("disk", "memory", "calls")
    assert all(f"#   {fact}" in head for fact in facts)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_menu_is_too_large_for_its_gpus(plans: dict[str, Any], name: str) -> None:
    found = plans[name]
    large = [line for line in found.plan["advice"] if "needs" in line or "need " in line]
    assert not large
    gpu = found.plan["planned_gpus"]["memory_bytes"]
    if gpu is not None:
        assert max(found.plan["memory"]["jobs"].values()) <= TIGHT * gpu
        if isinstance(found.config, Config) and not found.config.teacher.trace:
            assert found.plan["training"]["bytes_per_device"] <= TIGHT * gpu


def test_the_shapes_are_the_released_ones(plans: dict[str, Any]) -> None:
    """Numbers of parameters as their model cards give them, in billions."""
    expected = {
        "sdxl-4-steps": {"unet": 2.57, "text_encoder": 0.12, "text_encoder_2": 0.69},
        "flux-lora-4-steps": {"transformer": 11.9, "text_encoder_2": 4.76},
        "wan2.2-4-steps": {"transformer": 14.29, "transformer_2": 14.29, "text_encoder": 5.68},
    }
    for name, billions in expected.items():
        parameters = plans[name].plan["teacher"]["parameters"]
        assert {part: round(parameters[part] / 1e9, 2) for part in billions} == billions


def test_the_small_gpus_plan_is_for_24_gb_and_leaves_room(plans: dict[str, Any]) -> None:
    plan = plans["sdxl-24gb"].plan
    assert plan["planned_gpus"]["memory_bytes"] == 24 * GIB
    choices = {choice["setting"]: choice["value"] for choice in plan["training"]["choices"]}
    assert choices["gradient_checkpointing"] == "on"
    assert plan["student"]["trained_parameters"] < 0.1 * plan["student"]["num_parameters"]
    assert plan["training"]["bytes_per_device"] < 12 * GIB, "half of it is for activations"


def test_the_clusters_plan_is_for_the_gpus_that_it_names(plans: dict[str, Any]) -> None:
    plan = plans["sdxl-cluster"].plan
    assert plan["training"]["machine"]["world_size"] == 8
    assert {row["stage"]: row["jobs"] for row in plan["stages"]}["targets"] == 128
    assert {row["stage"]: row["gpus"] for row in plan["stages"]}["training"] == 8


def test_hours_are_calls_times_the_measured_rate(menu: ModuleType, plans: dict[str, Any]) -> None:
    """1.80 trajectories of 20 guided steps a second, 18.7 samples of the training."""
    head = menu.head_of("sdxl-4-steps", plans["sdxl-4-steps"])
    calls = plans["sdxl-4-steps"].plan["work"]["teacher_calls"]
    assert f"targets {calls / 40 / 1.8 / 3600:.2g} (rate of" in head
    assert f"training {1_280_000 / 18.7 / 3600:.2g}" in head
    lora = menu.head_of("sdxl-my-lora-4-steps", plans["sdxl-my-lora-4-steps"])
    assert "targets" in lora.partition("hours")[2]
    assert "training" not in lora.partition("hours")[2], "nobody measured a LoRA's"


def test_a_stale_head_is_replaced_and_nothing_else(menu: ModuleType) -> None:
    text = "# schema\n# what it is\nrun: a\n# a comment\n"
    old = menu.with_head(text, "# Planned with 3 prompts\n#   disk 1\n#   calls 2\n")
    assert old.startswith("# schema\n# what it is\n#\n# Planned with 3")
    new = menu.with_head(old, "# Planned with 4 prompts\n#   disk 9\n")
    assert (
        new
        == "# schema\n# what it is\n#\n# Planned with 4 prompts\n#   disk 9\nrun: a\n# a comment\n"
    )


def requested() -> dict[str, Request]:
    """What profiles/slurm asks for."""
    profile = yaml.safe_load((REPOSITORY / "profiles/slurm/config.yaml").read_text())
    own, default = profile["set-resources"], profile["default-resources"]
    asked = {name: default | own.get(name, {}) for name in (*SUBMITTED, "training_before_round")}
    tries = 1 + profile["retries"]
    return {name: Request(it["mem_mb"], it["runtime"], tries) for name, it in asked.items()}


def test_the_clusters_profile_has_room_for_sdxl(plans: dict[str, Any]) -> None:
    """A checkpoint's copy was measured as 41 GB (docs/log.md), the training as 95 H200-hours."""
    plan = plans["sdxl-cluster"].plan
    jobs, needs = [StageJobs(**row) for row in plan["stages"]], plan["host_bytes"]
    assert needs["training"] > 41e9
    head = (REPOSITORY / "config/sdxl-cluster.yaml").read_text()
    hours = float(re.search(r"training (\d+)", head)[1])  # type: ignore[index]
    training = next(row for row in jobs if row.stage == "training")
    assert training.gpus == 8
    time = {"stages": [{"stage": "training", "gpu_s": hours * 3600}]}
    assert not list(on_requests(requested(), needs, time, jobs))
    assert set(SUBMITTED) <= needs.keys()
    for stage in SUBMITTED:
        small = requested() | {stage: Request(megabytes(needs[stage]) - 1001, 10_000, 4)}
        (note,) = map(str, on_requests(small, needs, time, jobs))
        assert note.startswith(f"{stage} asks the cluster for mem_mb: ")
        wanted = re.search(r"\{mem_mb: (\d+)\}", note)
        assert wanted is not None
        small[stage] = Request(int(wanted[1]), 10_000, 4)
        assert not list(on_requests(small, needs, time, jobs))
    short = requested() | {"training": Request(128_000, 120, 4)}
    (note,) = map(str, on_requests(short, needs, time, jobs))
    assert "takes about 713 minutes and is given 480 (runtime: 120, started 4 times" in note
    assert not list(on_requests(short, needs, {}, jobs)), "nothing is known of times"
