"""How hardware is used, by bytes and capability: what plan and trainer choose, and the plan."""

import re
from pathlib import Path
from typing import Any

import pytest

import runs
import tiny
from distillery.config.hardware import Hardware
from distillery.config.run import parse_config
from distillery.config.training import Training
from distillery.files import read_json
from distillery.pipeline import STAGES
from distillery.planning import plan as plan_stage
from distillery.planning.gpus import Gpus, plan_gpus
from distillery.planning.plan import make_plan
from distillery.planning.training import on_training
from distillery.training.execution import Machine, choose_execution, sharded_bytes, state_bytes
from runs import settings, summary
from training_phases import phases

GB = 10**9
H200, A100_40, RTX = 143_771 * 2**20, 40 * 2**30, 24 * 2**30
SDXL, WAN_14B, LORA = 2_567_463_684, 14_288_491_584, 20_000_000


def training(**changes: Any) -> Training:
    long = {"phases": phases(stored=80_000), "dtype": "bfloat16", "ema_half_life_samples": 0}
    return Training(**(tiny.TRAINING | long | changes))


@pytest.mark.parametrize(
    ("size", "learns", "machine", "changes", "expected"),
    [
        # (parallel, gradient checkpointing, compile)
        (SDXL, SDXL, Machine(1, H200), {}, ("none", False, True)),
        (SDXL, SDXL, Machine(4, H200), {}, ("ddp", False, True)),
        # The same name of a GPU says nothing: 40 GiB are too few for what fits 140.
        (SDXL, SDXL, Machine(4, A100_40), {}, ("fsdp", True, True)),
        (SDXL, SDXL, Machine(2, A100_40), {}, ("fsdp", True, True)),
        (SDXL, SDXL, Machine(1, A100_40), {}, ("none", True, True)),
        (WAN_14B, WAN_14B, Machine(4, H200), {}, ("fsdp", True, True)),
        (WAN_14B, LORA, Machine(4, H200), {}, ("ddp", False, True)),
        (SDXL, LORA, Machine(2, RTX), {}, ("ddp", False, True)),
        (SDXL, SDXL, Machine(2), {}, ("ddp", False, False)),
        (SDXL, SDXL, Machine(4, H200), {"parallel": "fsdp"}, ("fsdp", True, True)),
        (SDXL, SDXL, Machine(4, A100_40), {"parallel": "ddp"}, ("ddp", True, True)),
        (SDXL, SDXL, Machine(1, H200), {"parallel": "fsdp"}, ("none", False, True)),
        (SDXL, SDXL, Machine(1, H200), {"gradient_checkpointing": True}, ("none", True, True)),
        (SDXL, SDXL, Machine(1, RTX), {"gradient_checkpointing": False}, ("none", False, True)),
        (SDXL, SDXL, Machine(1, H200), {"compile": "never"}, ("none", False, False)),
        (SDXL, SDXL, Machine(1), {"compile": "always"}, ("none", False, True)),
        (SDXL, SDXL, Machine(1, H200), {"phases": phases(stored=8_000)}, ("none", False, False)),
        (LORA, LORA, Machine(1, H200), {}, ("none", False, False)),
    ],
)
def test_what_is_chosen(
    size: int,
    learns: int,
    machine: Machine,
    changes: dict[str, Any],
    expected: tuple[str, bool, bool],
) -> None:
    found = choose_execution(training(**changes), size, learns, machine)
    assert (found.parallel, found.gradient_checkpointing, found.compile) == expected
    assert set(found.reasons) == {"parallel", "gradient_checkpointing", "compile"}
    assert all(found.reasons.values())


def test_bytes_a_parameter() -> None:
    assert state_bytes(training(dtype="float32"), 100, 100) == 1600
    assert state_bytes(training(), 100, 100) == 1800
    assert state_bytes(training(ema_half_life_samples=64), 100, 100) == 2200
    assert state_bytes(training(), 100, 10) == 90 * 2 + 10 * 18
    assert state_bytes(training(dtype="float32"), 100, 10) == 90 * 4 + 10 * 16
    whole = state_bytes(training(), SDXL, SDXL)
    assert whole / 4 < sharded_bytes(training(), SDXL, SDXL, 4) < whole / 3


def test_the_frozen_network_of_a_finish_is_whole_on_each_device() -> None:
    """12 billion parameters on eight GPUs of 48 GiB: it does not fit, though a part of it would."""
    size, machine = 12 * 10**9, Machine(8, 48 * GB)
    plain, finish = (
        choose_execution(training(**changes), size, size, machine)
        for changes in ({}, {"phases": phases(stored=56, adversarial=8)})
    )
    assert finish.parallel == plain.parallel == "fsdp"
    assert finish.bytes_per_device == plain.bytes_per_device + 2 * size
    assert finish.bytes_per_device / 2**30 == pytest.approx(54.2, abs=0.1)
    (line,) = map(str, on_training(training(), finish, machine, "teacher"))
    assert "training needs 54.2 GiB on each GPU" in line


def test_a_student_is_dealt_out_within_a_node() -> None:
    settings = training(parallel="fsdp")
    found = [
        choose_execution(settings, SDXL, SDXL, machine).bytes_per_device
        for machine in (Machine(4, H200), Machine(8, H200), Machine(8, H200, num_nodes=2))
    ]
    assert found[1] < found[0] == found[2]


def test_a_network_that_cannot_recompute() -> None:
    machine = Machine(1, A100_40)
    assert not choose_execution(training(), SDXL, SDXL, machine, False).gradient_checkpointing
    with pytest.raises(ValueError, match="gradient_checkpointing is true and the student's"):
        choose_execution(training(gradient_checkpointing=True), SDXL, SDXL, machine, False)


def test_online_targets_of_a_student_that_must_be_sharded_are_refused() -> None:
    """Where sizes decide, the settings alone do not show it; plan and training both ask here."""
    online, machine = training(phases=phases(online=64)), Machine(4, H200)
    with pytest.raises(ValueError, match="has online and the student is to be trained with"):
        choose_execution(online, WAN_14B, WAN_14B, machine)
    assert choose_execution(online, SDXL, SDXL, machine).parallel == "ddp"


def gpu(memory_bytes: int, capability: str = "9.0") -> dict[str, Any]:
    named = {"uuid": "GPU-a", "index": 0, "name": "NVIDIA A100"}
    return named | {"memory_bytes": memory_bytes, "capability": capability}


def test_the_smallest_gpu_and_the_oldest_decide() -> None:
    here, names = Hardware(), ("NVIDIA A100",)
    assert plan_gpus(here, []) == Gpus()
    assert plan_gpus(here, [gpu(H200), gpu(RTX, "8.9")]) == Gpus(2, RTX, (8, 9), names=names)
    assert plan_gpus(here, [gpu(H200, "10.0"), gpu(H200)]) == Gpus(2, H200, (9, 0), names=names)
    assert plan_gpus(here, [gpu(H200, "")]) == Gpus(1, H200, names=names)


def test_gpus_elsewhere_go_by_their_name() -> None:
    """Those of this machine do not count; of a name that is not known neither does its age."""
    for text in ("H100-80GB x 4", "H100-80GB \u00d7 4", "H100-80GBx4"):
        there = plan_gpus(Hardware(gpu=text), [gpu(RTX, "8.9")])
        assert there == Gpus(4, 80 * 2**30, (9, 0), names=("H100",))
    assert plan_gpus(Hardware(gpu="RTX 4090-24GB"), []) == Gpus(
        1, 24 * 2**30, (8, 9), names=("RTX 4090",)
    )
    assert plan_gpus(Hardware(gpu="X1-8GB"), [], 2, 2) == Gpus(2, 8 * 2**30, None, 2, ("X1",))


@pytest.mark.parametrize("text", ["H100", "80GB", "H100-80", "H100-80GB x 0", "H100-80GB x", ""])
def test_a_gpu_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write a name, its memory and a number, such as H100-80"):
        Hardware(gpu=text)


@pytest.mark.parametrize("other", [{"num_gpus": 2}, {"gpu_memory_gib": 40.0}])
def test_gpus_are_described_once(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="both describe the planned GPUs; remove one of the keys"):
        Hardware(gpu="H100-80GB", **other)


def test_the_gpus_that_jobs_will_get_decide_not_those_here() -> None:
    there = Hardware(num_gpus=8, gpu_memory_gib=80.0)
    assert plan_gpus(there, []) == Gpus(8, 80 * 2**30)
    assert plan_gpus(there, [gpu(RTX)]) == Gpus(8, 80 * 2**30)
    assert plan_gpus(there, [], 2) == Gpus(2, 80 * 2**30), "Snakemake's word, where it has one"
    assert plan_gpus(Hardware(gpu_memory_gib=80.0), []) == Gpus()
    assert plan_gpus(Hardware(), [gpu(H200)] * 4, 2).count == 2
    assert plan_gpus(Hardware(), [gpu(H200)] * 4, 0).count == 4
    unknown = plan_gpus(Hardware(), [], 2)
    assert unknown == Gpus(2)
    assert unknown.is_unknown


def planned(
    folder: Path,
    teacher: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: list[dict[str, Any]],
    previews: int = 0,
    **changes: Any,
) -> tuple[dict[str, Any], str]:
    described = plan_stage.describe_hardware() | {"gpus": gpus}
    monkeypatch.setattr(plan_stage, "describe_hardware", lambda: described)
    drawn = {"every_samples": previews}
    config = parse_config(settings(folder, teacher, training=changes, previews=drawn), "tiny")
    make_plan(STAGES, config, folder / "plan.json")
    plan = read_json(folder / "plan.json")
    return plan, summary(plan)


def choices(plan: dict[str, Any]) -> dict[str, str]:
    return {choice["setting"]: choice["value"] for choice in plan["training"]["choices"]}


def test_the_plan_on_gpus(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = {"phases": phases(stored=12), "global_batch_size": 12, "log_every_samples": 12}
    base |= {"save_every_samples": 12, "dtype": "bfloat16"}
    plan, text = planned(tmp_path, teacher, monkeypatch, [gpu(H200)] * 4, **base)
    assert choices(plan) == {
        "processes": "4",
        "parallel": "ddp",
        "micro_batch_size": "3 at most",
        "gradient_checkpointing": "off",
        "compile": "off",
        "dtype": "bfloat16",
        "tf32": "on",
        "optimizer": "fused AdamW",
        "attention": "SDPA",
    }
    machine = {"world_size": 4, "gpu_bytes": H200, "capability": [9, 0], "num_nodes": 1}
    assert plan["training"]["machine"] == machine
    counted = plan["student"]["num_parameters"]
    assert plan["training"]["bytes_per_device"] == counted * 18
    assert all(choice["reason"] in text for choice in plan["training"]["choices"])
    assert "without activations" in text


def test_the_plan_on_a_cpu(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = planned(tmp_path, teacher, monkeypatch, [], micro_batch_size=2)
    found = choices(plan)
    assert found["processes"] == "2"
    assert found["micro_batch_size"] == "2"
    assert (found["tf32"], found["optimizer"]) == ("off", "AdamW")


def test_more_gpus_than_samples_in_an_update_are_noted(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for num_gpus, is_told in ((8, False), (9, True)):
        plan, _ = planned(tmp_path, teacher, monkeypatch, [gpu(H200)] * num_gpus)
        told = [line for line in plan["advice"] if "training.global_batch_size is 8" in line]
        assert len(told) == is_told


def test_the_teachers_own_gpus_are_taken_from_the_training(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    online = {"phases": phases(online=64), "teacher_residence": "own_gpus"}
    plan, text = planned(tmp_path, teacher, monkeypatch, [gpu(H200)] * 4, **online)
    assert plan["training"]["machine"]["world_size"] == 3
    assert "teacher of online targets is: own_gpus (as set)" in text
    # Three GPUs learn, half a step and three passes each, while the fourth waits; then it answers.
    cost = plan["training"]["teacher"]["places"]["own_gpus"]["cost"]
    assert cost == pytest.approx(4 * (3.5 / 3 + 4) / 3)
    with pytest.raises(ValueError, match=r"the teacher takes 1 .* of the 1 GPUs"):
        planned(tmp_path, teacher, monkeypatch, [gpu(H200)], **online)


def test_the_plan_on_gpus_that_are_too_small_or_too_old(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = gpu(50_000, "7.5")
    plan, _ = planned(tmp_path, teacher, monkeypatch, [old, old], dtype="bfloat16")
    assert choices(plan)["parallel"] == "fsdp"
    assert choices(plan)["tf32"] == "off"
    advice = "\n".join(plan["advice"])
    assert "compute capability 7.5 only imitates: write float32" in advice
    assert re.search(r"training needs \d+\.\d MiB on each GPU .* a GPU has 48\.8 KiB", advice)
    assert "use more GPUs, keep fewer blocks" in advice


def test_products_are_in_tf32_from_ampere_on(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older ones: `test_the_plan_on_gpus_that_are_too_small_or_too_old`."""
    plan, _ = planned(tmp_path, teacher, monkeypatch, [gpu(H200, "8.0")], dtype="bfloat16")
    assert choices(plan)["tf32"] == "on"
    assert not [line for line in plan["advice"] if "only imitates" in line]


def test_previews_that_the_training_would_refuse_are_refused(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = [gpu(H200), gpu(H200)]
    planned(tmp_path, teacher, monkeypatch, gpus, previews=0, parallel="fsdp")
    planned(tmp_path, teacher, monkeypatch, gpus, previews=8, parallel="ddp")
    with pytest.raises(ValueError, match=r"no process can draw alone: set previews\.every_samp"):
        planned(tmp_path, teacher, monkeypatch, gpus, previews=8, parallel="fsdp")


def test_gpus_elsewhere_of_which_nothing_is_known(teacher: Path, tmp_path: Path) -> None:
    """As on the head node of a cluster: nothing is planned as if jobs ran on its CPU."""
    config = parse_config(settings(tmp_path, teacher), "tiny")
    make_plan(STAGES, config, tmp_path / "plan.json", num_gpus=2)
    plan = read_json(tmp_path / "plan.json")
    assert choices(plan) == {"processes": "2"}
    assert any(
        line.startswith("2 GPUs will train, and none of them is here: name them as hardware.gpu")
        for line in plan["advice"]
    )
    text = summary(plan)
    assert "planned for 2 GPU of unknown memory" in text
    assert "preset" not in text
    assert "no GPU" not in text.replace("here no GPU", "")


def test_gpus_elsewhere_that_are_described(teacher: Path, tmp_path: Path) -> None:
    hardware = {"num_gpus": 4, "gpu_memory_gib": 80}
    plan = runs.planned(settings(tmp_path, teacher, hardware=hardware), tmp_path)
    assert choices(plan)["processes"] == "4"
    assert choices(plan)["parallel"] == "ddp"
    assert plan["memory"]["preset"] == "large"
    assert "planned for 4 GPU of 80.0 GiB" in summary(plan)


def test_a_training_is_too_large_from_four_fifths_of_a_gpu_on(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`share`: of a GPU's memory, in the weights' states times 1.25 squared over it."""
    counted = planned(tmp_path, teacher, monkeypatch, [gpu(H200)])[0]
    assert not [line for line in counted["advice"] if "training needs" in line]
    for share, is_told in ((1.2, False), (1.3, True)):
        memory = int(counted["training"]["bytes_per_device"] / share * 1.5625)
        plan, _ = planned(tmp_path, teacher, monkeypatch, [gpu(memory)])
        assert bool([line for line in plan["advice"] if "training needs" in line]) == is_told


def test_a_loras_additions_count(teacher: Path, tmp_path: Path) -> None:
    """By hand: two blocks of self- and cross-attention with to_q, to_k, to_v and to_out each."""
    lora = {"init": "lora", "lora": {"rank": 2}, "steps": 2}
    plan = runs.planned(settings(tmp_path, teacher, student=lora), tmp_path)
    features = read_json(teacher / "transformer/config.json")
    width = features["num_attention_heads"] * features["attention_head_dim"]
    additions = features["num_layers"] * 2 * 4 * 2 * (width + width)
    whole = plan["student"]["teacher_parameters"]
    assert plan["student"]["trained_parameters"] == additions
    assert plan["training"]["bytes_per_device"] == whole * 4 + additions * 16


@pytest.mark.parametrize(
    ("init", "num_gpus", "changes", "remedy"),
    [
        ("teacher", 1, {}, "use several GPUs, keep fewer blocks"),
        ("teacher", 2, {}, "use more GPUs, keep fewer blocks"),
        ("teacher", 2, {"parallel": "ddp"}, "set training.parallel: fsdp, keep fewer blocks"),
        ("lora", 1, {}, "use several GPUs, or GPUs of more memory"),
        ("lora", 2, {}, "use more GPUs, or GPUs of more memory"),
        ("lora", 2, {"parallel": "ddp"}, "set training.parallel: fsdp, or GPUs of more memory"),
    ],
)
def test_the_remedy_is_none_that_is_taken(
    init: str, num_gpus: int, changes: dict[str, Any], remedy: str
) -> None:
    machine = Machine(num_gpus, 10 * GB, (9, 0))
    learns = LORA if init == "lora" else WAN_14B
    chosen = choose_execution(training(**changes), WAN_14B, learns, machine)
    (line,) = map(str, on_training(training(**changes), chosen, machine, init))
    assert line.rpartition("GiB: ")[2].startswith(remedy)
