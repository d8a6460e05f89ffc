"""Weights in a file of their own: as from a folder, bit for bit, or refused by the plan."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

import single_files as layouts
from distillery.config.jobs import hash_origin
from distillery.config.teacher import Teacher
from distillery.files import read_json
from distillery.notes import refuse
from distillery.pipeline import STAGES
from distillery.planning.plan import make_plan
from distillery.teacher import single_file
from distillery.teacher.adapters import denoiser_hash, teacher_hash, text_hash
from distillery.teacher.folder import find_teacher
from distillery.teacher.loading import load_adapted, load_teacher
from distillery.teacher.skeleton import on_networks
from families import flux_dev, made, pixart, sd3, sd15, sd21, sdxl, wan, wan_two_experts
from families.case import FamilyCase
from runs import Run, family_run, summary
from single_files import Tensors

CPU = torch.device("cpu")
Layouts = dict[str, Callable[[Tensors], Tensors]]
KINDS: dict[str, tuple[FamilyCase, Layouts]] = {
    "sd15": (
        sd15.CASE,
        {"unet": layouts.unet, "vae": layouts.vae, "text_encoder": layouts.clip},
    ),
    "sd21": (
        sd21.CASE,
        {"unet": layouts.unet, "vae": layouts.vae, "text_encoder": layouts.open_clip},
    ),
    "sdxl": (
        replace(sdxl.CASE, name="sdxl-wide", make=lambda folder: make_wide_sdxl(folder)),
        {
            "unet": layouts.unet,
            "vae": layouts.vae,
            "text_encoder": partial(
                layouts.clip, prefix="conditioner.embedders.0.transformer.text_model."
            ),
            "text_encoder_2": partial(layouts.open_clip, prefix="conditioner.embedders.1.model."),
        },
    ),
    "wan": (wan.CASE, {"transformer": layouts.wan}),
    "flux": (flux_dev.CASE, {"transformer": layouts.plain}),
    "texts of flux": (
        flux_dev.CASE,
        {
            "text_encoder": partial(
                layouts.clip, prefix="text_encoders.clip_l.transformer.text_model."
            ),
            "text_encoder_2": partial(layouts.plain, prefix="text_encoders.t5xxl.transformer."),
        },
    ),
    "sd3": (sd3.CASE, {"transformer": layouts.plain}),
}


def make_wide_sdxl(folder: Path) -> None:
    """Its second text encoder is wider, by which a file's two are told apart."""
    sdxl.make(folder)
    config = CLIPTextConfig.from_pretrained(folder / "text_encoder_2")
    config.hidden_size = 64
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        CLIPTextModelWithProjection(config).save_pretrained(folder / "text_encoder_2")


def section(case: FamilyCase, path: Path, **others: Any) -> Teacher:
    size = {"height": case.height, "width": case.width, "num_frames": case.num_frames}
    return Teacher(path=str(path), **size, **others)


def write(folder: Path, parts: Layouts, file: Path) -> Path:
    """A single file of some networks of a folder."""
    tensors: Tensors = {}
    for name, layout in parts.items():
        tensors |= layout(layouts.weights_in(folder / name))
    return layouts.write(tensors, file)


def base_of(folder: Path, parts: Layouts, base: Path) -> Path:
    """A copy of a folder that has no weights of these networks."""
    shutil.copytree(folder, base)
    layouts.strip_weights(base, parts)
    return base


def assert_same(a: torch.nn.Module, b: torch.nn.Module) -> None:
    tensors = [dict(network.state_dict()) | dict(network.named_buffers()) for network in (a, b)]
    assert tensors[0].keys() == tensors[1].keys()
    for name, value in tensors[0].items():
        assert value.dtype == tensors[1][name].dtype, name
        assert torch.equal(value, tensors[1][name]), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_gives_what_its_folder_gives(
    kind: str, dtype: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    case, parts = KINDS[kind]
    folder = made.made_teacher(tmp_path_factory, case)
    file = write(folder, parts, tmp_path / "model.safetensors")
    base = base_of(folder, parts, tmp_path / "base")
    is_whole = not parts.keys().isdisjoint({"unet", "transformer"})
    weights = str(file) if is_whole else dict.fromkeys(parts, str(file))
    teacher = section(case, base, weights=weights, dtype=dtype)
    found = find_teacher(teacher)
    assert set(found.files) == set(parts)
    assert list(on_networks(found)) == []
    plain = section(case, folder, dtype=dtype)
    by_folder = load_teacher(plain, find_teacher(plain), CPU)
    by_file = load_teacher(teacher, found, CPU)
    for name in parts:
        network = getattr(by_file, name)
        assert_same(getattr(by_folder, name), network)
        assert not network.training
        assert not hasattr(network, "hf_device_map")
    assert found.sizes.keys() == find_teacher(plain).sizes.keys()
    assert found.parameters == find_teacher(plain).parameters


def test_which_file_it_is_counts_and_not_where_it_lies(tmp_path: Path, teacher: Path) -> None:
    parts = KINDS["wan"][1]
    file = write(teacher, parts, tmp_path / "a.safetensors")
    base = base_of(teacher, parts, tmp_path / "base")
    at = section(wan.CASE, base, weights={"transformer": str(file)})
    found = find_teacher(at)
    hashes = (teacher_hash(at, found), text_hash(at, found), denoiser_hash(at, found))
    shutil.copyfile(file, tmp_path / "b.safetensors")
    elsewhere = section(wan.CASE, base, weights=str(tmp_path / "b.safetensors"))
    there = find_teacher(elsewhere)
    assert hashes == tuple(h(elsewhere, there) for h in (teacher_hash, text_hash, denoiser_hash))
    origins = [
        hash_origin({"seed": 0, "teacher": it.model_dump(mode="json"), "student": {}})
        for it in (at, elsewhere)
    ]
    assert origins[0] == origins[1], "the student before its training"
    shutil.copyfile(
        teacher / "transformer/diffusion_pytorch_model.safetensors",
        base / "transformer/diffusion_pytorch_model.safetensors",
    )
    assert teacher_hash(at, find_teacher(at)) == hashes[0], "weights that are not read"
    tensors = load_file(file)
    save_file({name: value + 1 for name, value in tensors.items()}, file)
    assert teacher_hash(at, find_teacher(at)) != hashes[0]
    assert denoiser_hash(at, find_teacher(at)) != hashes[2]


def test_a_file_for_one_of_two_networks(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    case = wan_two_experts.CASE
    folder = made.made_teacher(tmp_path_factory, case)
    second = {"transformer_2": layouts.wan}
    file = write(folder, second, tmp_path / "low.safetensors")
    base = base_of(folder, second, tmp_path / "base")
    with pytest.raises(ValueError, match=r"networks transformer, transformer_2: write \{transfor"):
        find_teacher(section(case, base, weights=str(file)))
    teacher = section(case, base, weights={"transformer_2": str(file)})
    found = find_teacher(teacher)
    refuse(on_networks(found))
    plain = section(case, folder)
    for name in ("transformer", "transformer_2"):
        assert_same(
            load_adapted(teacher, found, name), load_adapted(plain, find_teacher(plain), name)
        )


def said(teacher: Teacher) -> str:
    """Why the plan refuses a teacher, in one line."""
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        refuse(on_networks(find_teacher(teacher)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def file(teacher: Path, tmp_path: Path) -> Path:
    return write(teacher, KINDS["wan"][1], tmp_path / "wan.safetensors")


def test_a_file_that_is_not_there_or_no_weights(teacher: Path, tmp_path: Path) -> None:
    def told(name: object) -> str:
        return said(section(wan.CASE, teacher, weights=str(name)))

    assert told("x.safetensors") == "teacher.weights: 'x.safetensors': there is no such file"
    assert "is no safetensors file and no GGUF file; others may run" in told("model.ckpt")
    assert "could not be had from the hub" in told("owner/name/folder/x.safetensors")
    (tmp_path / "torn.safetensors").write_bytes(b"not one")
    assert f"{tmp_path}/torn.safetensors is damaged" in told(tmp_path / "torn.safetensors")


def test_a_component_that_the_teacher_does_not_have(teacher: Path, file: Path) -> None:
    told = said(section(wan.CASE, teacher, weights={"unet": str(file)}))
    assert told.startswith("teacher.weights names 'unet': the networks of ")
    assert told.endswith("are text_encoder, transformer, vae")


def test_a_class_that_is_read_from_folders_alone(tmp_path: Path) -> None:
    pixart.make(tmp_path / "teacher")
    file = write(tmp_path / "teacher", {"transformer": layouts.plain}, tmp_path / "a.safetensors")
    told = said(section(pixart.CASE, tmp_path / "teacher", weights=str(file)))
    assert "Diffusers reads no single file for a PixArtTransformer2DModel" in told


def test_a_file_of_another_model(
    teacher: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of another architecture, another size, and one whose layers are too many or too few."""
    parts = KINDS["sd15"][1]
    of_sd15 = made.made_teacher(tmp_path_factory, sd15.CASE)
    other = write(of_sd15, parts, tmp_path / "sd15.safetensors")
    told = said(section(wan.CASE, teacher, weights={"transformer": str(other)}))
    assert f"{other} does not fit the network that {teacher}/transformer/config.json desc" in told
    assert "its base is stable-diffusion-v1-5/stable-diffusion-v1-5, by its tensors: give" in told
    of_sdxl = made.made_teacher(tmp_path_factory, sdxl.CASE)
    told = said(section(sdxl.CASE, of_sdxl, weights=str(other)))
    assert "does not fit the network" in told


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda it: it.pop("blocks.1.ffn.2.bias"), "it lacks 1 of its tensors, such as blocks.1."),
        (lambda it: it.update({"blocks.2.ffn.2.bias": torch.zeros(1)}), "has 1 tensors that it"),
        (lambda it: it.update({"blocks.1.ffn.2.bias": torch.zeros(7)}), "in another shape, such"),
        (lambda it: it.update({"scaled_fp8": torch.zeros(2)}), "quantised weights (scaled_fp8)"),
        (
            lambda it: it.update({"blocks.1.ffn.2.scale_weight": torch.zeros(1)}),
            "quantised weights (blocks.1.ffn.2.scale_weight) in a form that Diffusers does not",
        ),
        (
            lambda it: it.update({"blocks.1.ffn.2.weight": torch.zeros(1, dtype=torch.int8)}),
            "quantised weights (blocks.1.ffn.2.weight)",
        ),
    ],
)
def test_a_file_that_does_not_fit(
    change: Callable[[Tensors], object], expected: str, file: Path, teacher: Path
) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    told = said(section(wan.CASE, teacher, weights=str(file)))
    assert expected in told
    assert ("so it is damaged or cut, or of a variant" in told) == ("quantised" not in expected)
    assert "base" not in told


def test_a_file_in_the_networks_own_layout_lacks_what_was_taken(
    teacher: Path, tmp_path: Path
) -> None:
    """Diffusers would take it for one of another layout, and rename what is there."""
    tensors = layouts.weights_in(teacher / "transformer")
    at = section(wan.CASE, teacher, weights=str(tmp_path / "own.safetensors"))
    for name in sorted(tensors)[::3]:
        rest = {it: value for it, value in tensors.items() if it != name}
        save_file(rest, tmp_path / "own.safetensors")
        told = said(at)
        assert f"it lacks 1 of its tensors, such as {name}; almost all others fit" in told
        assert "so it is damaged or cut, or of a variant" in told
    half = dict(list(tensors.items())[::2])
    save_file(half, tmp_path / "own.safetensors")
    told = said(at)
    assert f"lacks {len(tensors) - len(half)} of its tensors" in told
    assert "it is cut or incomplete, get it again, or of a larger model; then give the" in told


def test_numbers_of_eight_bits_are_read_as_they_are(file: Path, teacher: Path) -> None:
    """As in files of FLUX that are half as large and have no scales."""
    small = {name: value.to(torch.float8_e4m3fn) for name, value in load_file(file).items()}
    save_file(small, file)
    at = section(wan.CASE, teacher, weights=str(file))
    found = find_teacher(at)
    refuse(on_networks(found))
    read = load_adapted(at, found, "transformer").state_dict()
    value = small["blocks.0.ffn.0.weight"]
    assert torch.equal(read["blocks.0.ffn.net.0.proj.weight"], value.float())


def write_gguf(tensors: Tensors, file: Path, kind: str) -> Path:
    """As other tools do: matrices packed, all else in float32."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(file, "wan")
    for name, value in tensors.items():
        is_packed = value.ndim == 2 and value.shape[1] % 32 == 0
        chosen = gguf.GGMLQuantizationType[kind if is_packed else "F32"]
        data = gguf.quantize(value.numpy(), chosen)
        if value.ndim > 4:  # more than GGUF has
            writer.add_array(f"comfy.gguf.orig_shape.{name}", list(value.shape))
            data = data.reshape(value.shape[0], -1)
        writer.add_tensor(name, data, raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize(("kind", "error"), [("BF16", 0.003), ("Q8_0", 0.01), ("Q4_0", 0.15)])
def test_gguf_is_read_as_the_numbers_that_it_stands_for(
    kind: str, error: float, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    case = flux_dev.CASE
    folder = made.made_teacher(tmp_path_factory, case)
    tensors = layouts.weights_in(folder / "transformer")
    file = write_gguf(tensors, tmp_path / "model.gguf", kind)
    at, plain = section(case, folder, weights=str(file)), section(case, folder)
    found = find_teacher(at)
    refuse(on_networks(found))
    assert found.parameters == find_teacher(plain).parameters
    read = load_adapted(at, found, "transformer").state_dict()
    changed = [name for name in read if not torch.equal(tensors[name], read[name])]
    assert len(changed) > 25
    for name in changed:
        distance = (read[name] - tensors[name]).norm() / tensors[name].norm()
        assert error / 10 < distance < error, (name, distance)
    in_half = load_teacher(at, found, CPU).transformer.state_dict()
    for name, value in read.items():
        assert torch.equal(in_half[name], value.to(torch.bfloat16)), name


def test_a_gguf_file_that_cannot_be_read(teacher: Path, tmp_path: Path) -> None:
    tensors = layouts.wan(layouts.weights_in(teacher / "transformer"))
    file = write_gguf(tensors, tmp_path / "model.gguf", "Q8_0")
    at = section(wan.CASE, teacher, weights=str(file))
    refuse(on_networks(find_teacher(at)))
    read = load_adapted(at, find_teacher(at), "transformer").state_dict()
    assert torch.equal(read["patch_embedding.weight"], tensors["patch_embedding.weight"])
    whole = file.read_bytes()
    for size in (100, len(whole) // 2):
        file.write_bytes(whole[:size])
        assert f"{file} cannot be used" in said(at)
    tensors.pop("blocks.1.ffn.2.bias")
    write_gguf(tensors, file, "Q8_0")
    assert "it lacks 1 of its tensors, such as blocks.1." in said(at)


def test_without_the_package_gguf_is_refused(
    file: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_file, "find_spec", lambda _name: None)
    packed = file.rename(file.with_suffix(".gguf"))
    told = said(section(wan.CASE, teacher, weights=str(packed)))
    assert told.endswith("the package that reads it is missing: pip install gguf")


def test_a_student_of_a_whole_file(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Trajectories, student and exported pipeline are those of the folder; the plan names it."""
    case, parts = KINDS["sd15"]
    folder = made.made_teacher(tmp_path_factory, case)
    file = write(folder, parts, tmp_path / "model.safetensors")
    base = base_of(folder, parts, tmp_path / "base")
    by_folder = family_run(case, tmp_path / "a", folder)
    by_file = family_run(case, tmp_path / "b", base, teacher={"weights": str(file)})
    plan = make_plan_of(by_file)
    (told,) = (line for line in summary(plan).splitlines() if str(file) in line)
    assert told.endswith("MiB): unet, vae and text_encoder")
    (told,) = (line for line in summary(plan).splitlines() if "other weights" in line)
    assert told.endswith("of the folder: safety_checker")
    of_one = family_run(case, tmp_path / "c", folder, teacher={"weights": {"unet": str(file)}})
    (told,) = (it for it in summary(make_plan_of(of_one)).splitlines() if "other weights" in it)
    assert told.endswith("of the folder: safety_checker, text_encoder and vae")
    assert plan["memory"] == make_plan_of(by_folder)["memory"]
    sizes = [make_plan_of(run)["disk"]["stages"]["student"] for run in (by_folder, by_file)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)
    made_of = []
    for run in (by_folder, by_file):
        pipeline = run.ready_to_train().train_and_export()
        made_of.append({name: layouts.weights_in(pipeline / name) for name in parts})
        made_of[-1]["targets"] = load_file(next(run.files.target_folder.glob("*/chunk-*")))
        assert str(tmp_path) not in (pipeline / "vae/config.json").read_text()
    for name in made_of[0]:
        assert made_of[0][name].keys() == made_of[1][name].keys()
        for key, value in made_of[0][name].items():
            assert torch.equal(value, made_of[1][name][key]), (name, key)


def make_plan_of(run: Run) -> dict[str, Any]:
    make_plan(STAGES, run.config, run.files.plan)
    return read_json(run.files.plan)


@pytest.mark.parametrize(
    ("kind", "component"),
    [
        ("sd15", "unet"),
        ("sd15", "vae"),
        ("sd15", "text_encoder"),
        ("sd21", "text_encoder"),
        ("sdxl", "unet"),
        ("sdxl", "vae"),
        ("sdxl", "text_encoder"),
        ("sdxl", "text_encoder_2"),
        ("alike", "text_encoder"),
        ("alike", "text_encoder_2"),
    ],
)
def test_what_a_whole_file_lacks(
    kind: str, component: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any one tensor: it is damaged. All of a component, but the UNet's: the folder has them.

    `alike` has two text encoders of one width, by which Diffusers would take one for the other.
    """
    case, parts = (sdxl.CASE, KINDS["sdxl"][1]) if kind == "alike" else KINDS[kind]
    folder = made.made_teacher(tmp_path_factory, case)
    own = parts[component](layouts.weights_in(folder / component))
    tensors: Tensors = {}
    for name in parts.keys() - {component}:
        tensors |= parts[name](layouts.weights_in(folder / name))
    at = section(case, folder, weights=str(tmp_path / "it.safetensors"))
    layouts.write(tensors | own, tmp_path / "it.safetensors")
    refuse(on_networks(find_teacher(at)))
    of_blocks = sorted(name for name in own if re.search(r"\.\d+\.", name))
    outside = own.keys() - of_blocks if "text" in component else set()
    for name in (*of_blocks[:: len(of_blocks) // 3], *outside):
        rest = {it: value for it, value in own.items() if it != name}
        layouts.write(tensors | rest, tmp_path / "it.safetensors")
        told = said(at)
        assert f"does not fit the network that {folder / component}/config.json" in told, name
        assert "lacks" in told, name
        assert "damaged" in told, name
    layouts.write(tensors, tmp_path / "it.safetensors")
    if component == "unet":
        assert "does not fit" in said(at)
        return
    found = find_teacher(at)
    refuse(on_networks(found))
    assert set(found.files) == parts.keys() - {component}
    plain = section(case, folder)
    networks = (load_teacher(at, found, CPU), load_teacher(plain, find_teacher(plain), CPU))
    for name in found.files:
        assert_same(*(getattr(it, name) for it in networks))
