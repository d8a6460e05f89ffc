"""Packed weights where the teacher runs: what is packed, what they take, and what they change."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from safetensors.torch import load_file

import single_files as layouts
from adapters import make_adapter
from distillery.config.jobs import freeze
from distillery.config.teacher import Teacher
from distillery.pipeline import STAGES
from distillery.planning.plan import make_plan
from distillery.teacher import quantization
from distillery.teacher.adapters import denoiser_hash, teacher_hash, text_hash
from distillery.teacher.folder import find_teacher
from distillery.teacher.loading import load_adapted, load_teacher, unpacked_of
from distillery.teacher.memory import estimate, loaded_bytes
from distillery.teacher.quantization import Int8Linear, quantise
from distillery.teacher.rounding import in_float32
from distillery.telemetry import read_events
from families import flux_dev, made, sdxl, wan
from families.case import FamilyCase
from runs import Run, family_run, make_run, summary
from training_phases import phases

CPU = torch.device("cpu")
METHODS = ("int8", "nf4")
LIMITS = {"int8": 0.02, "nf4": 0.2}
"""Of a layer's relative error for normally distributed weights."""


def need(method: str) -> None:
    if method == "nf4":
        pytest.importorskip("bitsandbytes")


def section(case: FamilyCase, path: Path, **others: Any) -> Teacher:
    size = {"height": case.height, "width": case.width, "num_frames": case.num_frames}
    return Teacher(path=str(path), **size, **others)


def bytes_of(network: torch.nn.Module) -> int:
    """Of a network's weights, with the scales that bitsandbytes keeps beside them."""
    total = 0
    for parameter in network.parameters():
        total += parameter.nbytes
        state = getattr(parameter, "quant_state", None)
        total += 0 if state is None else state.absmax.nbytes
    return total


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_layer_of_eight_bits(dtype: torch.dtype) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        linear = torch.nn.Linear(512, 64).to(dtype)
        x = 100 * torch.randn(3, 512).to(dtype)
    linear.weight.data[5] = 0
    packed = Int8Linear(linear)
    with torch.no_grad():
        exact, found = linear(x), packed(x)
    assert found.dtype == dtype
    assert found.isfinite().all(), "127 times as large sums would overflow in float16"
    assert torch.equal(found[:, 5], exact[:, 5])
    assert (found - exact).float().norm() < 0.01 * exact.float().norm()
    assert packed.weight.abs().amax() == 127
    steps = packed.scale.float() / 2
    worst = (packed.weight * packed.scale.float() - linear.weight.float()).abs()
    assert (worst <= steps * 1.01).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", [flux_dev.CASE, sdxl.CASE, wan.CASE], ids=lambda it: it.name)
def test_what_is_packed_and_what_it_takes(
    case: FamilyCase, method: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    need(method)
    folder = made.made_teacher(tmp_path_factory, case)
    plain, teacher = section(case, folder), section(case, folder, quantization=method)
    found = find_teacher(teacher)
    name, absent = found.denoisers[0], tuple(found.family.text_components)
    before = getattr(load_teacher(plain, found, CPU, absent), name)
    after = getattr(load_teacher(teacher, found, CPU, absent), name)
    num_packed = 0
    for layer, module in before.named_modules():
        packed = after.get_submodule(layer)
        is_of_block = any(part.isdigit() for part in layer.split("."))
        if isinstance(module, torch.nn.Linear) and is_of_block:
            assert type(packed).__name__ == {"int8": "Int8Linear", "nf4": "Linear4bit"}[method]
            assert packed.weight.dtype == {"int8": torch.int8, "nf4": torch.uint8}[method]
            num_packed += module.weight.numel()
        else:
            assert type(packed) is type(module)
    assert num_packed == found.sizes[name].packable
    # Without the scales of rows of 32 numbers, and what Wan keeps in float32.
    saved = [loaded_bytes(it, found, name) for it in (plain, teacher)]
    assert saved[0] - saved[1] == pytest.approx(bytes_of(before) - bytes_of(after), rel=0.2)
    for part in found.components.keys() - {name}:
        if part in found.sizes:
            assert loaded_bytes(plain, found, part) == loaded_bytes(teacher, found, part)


def test_a_network_that_is_packed_is_that_of_the_whole_teacher(tmp_path: Path) -> None:
    """Adapters are fused in full precision, then all is packed."""
    case = sdxl.CASE
    sdxl.make(tmp_path / "teacher")
    adapter = {"path": str(make_adapter(tmp_path / "teacher", tmp_path / "lora"))}
    at = section(case, tmp_path / "teacher", dtype="float32", adapters=(adapter,))
    packed = at.model_copy(update={"quantization": "int8"})
    folder = find_teacher(at)
    expected = load_adapted(at, folder, "unet")
    quantise(expected, "int8", torch.float32, CPU)
    found = load_teacher(packed, folder, CPU, tuple(folder.family.text_components)).unet
    for name, value in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name
    load_unpacked = unpacked_of(packed, folder)
    assert load_unpacked is not None
    whole = load_unpacked("unet").state_dict()
    for name, value in load_adapted(at, folder, "unet").state_dict().items():
        assert torch.equal(whole[name], value)
    assert unpacked_of(at, folder) is None


def test_packed_weights_are_another_teacher_of_the_same_student(teacher: Path) -> None:
    plain, packed = (section(wan.CASE, teacher, quantization=it) for it in (None, "int8"))
    folder = find_teacher(plain)
    assert teacher_hash(plain, folder) != teacher_hash(packed, folder)
    for hash_of in (text_hash, denoiser_hash):
        assert hash_of(plain, folder) == hash_of(packed, folder)


def test_other_packing_trains_no_student_again(teacher: Path, tmp_path: Path) -> None:
    """But one with online targets, which asks the teacher."""
    plain, packed = (
        make_run(tmp_path, teacher, teacher={"quantization": method}).config
        for method in (None, "int8")
    )
    for stage in ("student", "training", "previews", "export"):
        assert freeze(plain, stage) == freeze(packed, stage), stage
    assert freeze(plain, "targets") != freeze(packed, "targets")
    online = {"phases": phases(online=8)}
    asking = make_run(tmp_path, teacher, teacher={"quantization": "int8"}, training=online).config
    assert freeze(asking, "training")["teacher"]["quantization"] == "int8"


def test_adapters_beside_packed_weights_are_refused(teacher: Path) -> None:
    adapters = ({"path": "lora.safetensors"},)
    with pytest.raises(ValueError, match="fused before the weights are packed"):
        section(wan.CASE, teacher, quantization="int8", adapters=adapters, fuse_adapters=False)


def test_layers_of_eight_bits_may_come_one_by_one(teacher: Path) -> None:
    """As with offload: sequential; what bitsandbytes packs may not, which is refused."""
    at = section(wan.CASE, teacher, quantization="int8")
    folder = find_teacher(at)
    block = load_teacher(at, folder, CPU, tuple(folder.family.text_components)).transformer.blocks
    layer = block[0].ffn
    x = torch.randn(3, layer.net[0].proj.in_features, dtype=torch.bfloat16)
    with torch.no_grad():
        expected = layer(x)
        cpu_offload(layer, CPU)
        assert torch.equal(layer(x), expected)
    for place in ({"offload": "sequential"}, {"num_gpus": 2}):
        section(wan.CASE, teacher, quantization="int8", **place)
        with pytest.raises(ValueError, match="Accelerate does not move weights that bitsandbytes"):
            section(wan.CASE, teacher, quantization="nf4", **place)


def test_a_teacher_that_shares_its_students_gpus_is_of_eight_bits(
    teacher: Path, tmp_path: Path
) -> None:
    """Its layers come one by one."""
    need("nf4")
    training = {"phases": phases(online=8), "teacher_residence": "shared"}
    for method in ("int8", "nf4"):
        packed = {"quantization": method}
        run = make_run(tmp_path / method, teacher, teacher=packed, training=training)
        if method == "int8":
            make_plan(STAGES, run.config, run.files.plan)
        else:
            with pytest.raises(ValueError, match="layer by layer, which Accelerate does not do"):
                make_plan(STAGES, run.config, run.files.plan)


def test_without_its_package_a_method_is_refused_by_the_plan(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise quantization.PackageNotFoundError(name)

    monkeypatch.setattr(quantization, "version", missing)
    run = make_run(tmp_path, teacher, teacher={"quantization": "nf4"})
    with pytest.raises(ValueError, match="is missing: pip install bitsandbytes"):
        make_plan(STAGES, run.config, run.files.plan)


@pytest.mark.parametrize("method", METHODS)
def test_a_packed_network_in_float32_for_a_while(method: str, teacher: Path) -> None:
    need(method)
    at = section(wan.CASE, teacher, quantization=method)
    folder = find_teacher(at)
    network = load_teacher(at, folder, CPU, tuple(folder.family.text_components)).transformer
    layer = network.blocks[0].attn1.to_q
    before = {name: value.clone() for name, value in network.state_dict().items()}
    x = torch.randn(2, layer.in_features)
    with torch.no_grad(), in_float32(network):
        assert layer(x).dtype == torch.float32
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
        assert value.dtype == before[name].dtype


def errors_in(run: Run) -> list[tuple[str, dict[str, float]]]:
    return [
        (event.job, event.facts["packing_errors"])
        for event in read_events(run.files.telemetry)
        if event.kind == "measure"
    ]


@pytest.mark.parametrize("method", METHODS)
def test_what_packing_changes_is_measured_on_the_first_batch(
    method: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of the run, and so by one job; trajectories differ by about as much."""
    need(method)
    case = flux_dev.CASE
    folder = made.made_teacher(tmp_path_factory, case)
    plain = family_run(case, tmp_path / "plain", folder)
    packed = family_run(case, tmp_path / "packed", folder, teacher={"quantization": method})
    for run in (plain, packed):
        run.encode("train")
        run.encode("eval")
        run.all_targets(num_shards=2)
        run.all_samples(num_shards=2)
    assert errors_in(plain) == []
    ((job, errors), (samples_job, of_samples)) = errors_in(packed)
    assert (job, samples_job) == ("targets-0-of-2", "samples-teacher-0-of-2")
    assert errors.keys() == of_samples.keys() == {"transformer"}
    assert LIMITS[method] / 100 < errors["transformer"] < LIMITS[method]
    recipes = [run.files.targets.read_text() for run in (plain, packed)]
    assert json.loads(recipes[0])["recipe_hash"] != json.loads(recipes[1])["recipe_hash"]
    embeddings = [json.loads(run.embeddings("train").read_text()) for run in (plain, packed)]
    assert embeddings[0]["recipe_hash"] == embeddings[1]["recipe_hash"]


def test_the_plan_says_what_packed_weights_take(teacher: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, teacher, teacher={"quantization": "int8", "dtype": "bfloat16"})
    make_plan(STAGES, run.config, run.files.plan)
    plan = json.loads(run.files.plan.read_text())
    assert plan["teacher"]["quantization"] == {"method": "int8"}
    assert "in bfloat16, networks' blocks in int8, the VAE in" in summary(plan)
    at, folder = run.config.teacher, find_teacher(run.config.teacher)
    whole = estimate(at.model_copy(update={"quantization": None}), folder, None)
    packable = folder.sizes["transformer"].packable
    assert packable > 0
    assert whole.components["transformer"] - packable == plan["memory"]["components"]["transformer"]
    assert whole.jobs["embeddings"] == plan["memory"]["jobs"]["embeddings"]


def test_a_traced_teacher_of_a_single_file_that_is_packed(teacher: Path, tmp_path: Path) -> None:
    """What is learnt is learnt of the packed network, and the run goes on with it."""
    tensors = layouts.wan(layouts.weights_in(teacher / "transformer"))
    file = layouts.write(tensors, tmp_path / "wan.safetensors")
    trace = {"trace": {"unguided": {"guidance_scale": 1.0}}, "quantization": "int8"}
    runs = [
        make_run(tmp_path / name, teacher, teacher=trace | weights)
        for name, weights in (("folder", {}), ("file", {"weights": str(file)}))
    ]
    for run in runs:
        make_plan(STAGES, run.config, run.files.plan)
        run.sign()
        make_plan(STAGES, run.config, run.files.plan)
        run.encode("train")
        run.all_targets()
    assert errors_in(runs[0]) == errors_in(runs[1]) != []
    stored = [load_file(next(run.files.target_folder.glob("*/chunk-*"))) for run in runs]
    assert torch.equal(stored[0]["noisy"], stored[1]["noisy"])
