"""A student of low-rank additions: it begins as its teacher and ends as a LoRA of it."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from diffusers import DiffusionPipeline
from safetensors import safe_open
from safetensors.torch import load_file

from adapters import make_adapter
from distillery.config.jobs import ExportJob, TrainingJob
from distillery.config.student import Lora
from distillery.families import family_named
from distillery.files import read_json
from distillery.model_folder import (
    METADATA,
    find_changes,
    load_denoiser,
    load_denoiser_skeleton,
    read_metadata,
    save_denoiser,
    write_metadata,
)
from distillery.student.build import build_student
from distillery.student.export import export_student
from distillery.student.lora import LORA_FILE, check_lora, count_lora
from distillery.student.lora_names import COMFYUI_FILE, KOHYA_FILE
from distillery.student.on_disk import BASE, load_student, load_trainable
from distillery.teacher import weights
from families import CASES
from families.case import FamilyCase
from families.made import made_run, made_teacher
from runs import Run, family_run
from stranger import code_in
from training_phases import phases

RANK, ALPHA = 3, 5.0
"""A scale of alpha / rank that is no power of two, so that it cannot be lost unnoticed."""
CASE_OF = {case.name: case for case in CASES}
WEIGHTS = "diffusion_pytorch_model.safetensors"
LEARNED = 1e-3
"""Training must have moved the image by more than this, or equality would say nothing."""


TRAINING = {"phases": phases(stored=32), "learning_rate": 0.03, "schedule": "constant"}


def student_of(case: FamilyCase) -> dict[str, Any]:
    """The section `student`."""
    return {"steps": case.steps, "init": "lora", "lora": {"rank": RANK, "alpha": ALPHA}}


def lora_run(factory: pytest.TempPathFactory, case: FamilyCase, **training: Any) -> Run:
    """A run with its targets, whose student is of additions."""
    return made_run(factory, case, student=student_of(case), training=TRAINING | training)


@pytest.fixture(scope="module", params=["wan", "sdxl", "wan-two-experts"])
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[FamilyCase, Run]:
    case = CASE_OF[request.param]
    run = lora_run(tmp_path_factory, case)
    run.train_and_export()
    return case, run


def draw(pipeline: Any, call: dict[str, Any]) -> torch.Tensor:
    """Latents of a stock call as the model card says, with one seed."""
    pipeline.set_progress_bar_config(disable=True)
    arguments = call["arguments"] | {"output_type": "latent"}
    found = pipeline("a red dog", generator=torch.Generator().manual_seed(3), **arguments)[0]
    assert isinstance(found, torch.Tensor)
    return found


def by_the_card(folder: Path) -> Any:
    """The pipeline that the second code of a model card makes, run as it stands."""
    _, code = code_in(folder / "README.md")
    names: dict[str, Any] = {}
    exec(code.replace("path/to/this/folder", str(folder)), names)
    return names["pipeline"]


def base(case: FamilyCase, run: Run) -> Path:
    """The folder of the network that the student starts from."""
    name = case.student.get("expert", family_named(case.family).denoisers[0])
    return Path(run.config.teacher.path) / str(name)


def test_the_untrained_student_is_the_teacher(trained: tuple[FamilyCase, Run]) -> None:
    case, run = trained
    theirs = load_file(base(case, run) / WEIGHTS)
    ours = load_file(run.folder / "student/initial" / WEIGHTS)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    additions = load_file(run.folder / "student/initial" / LORA_FILE)
    assert all((value == 0).all() == ("lora_B" in name) for name, value in additions.items())


def test_additions_are_counted_by_both_sides_of_a_layer() -> None:
    """Of a convolution the inputs are those of its window."""
    network = torch.nn.ModuleDict(
        {"linear": torch.nn.Linear(3, 5), "conv": torch.nn.Conv2d(2, 7, 3)}
    )
    assert count_lora(network, Lora(rank=2, targets=("linear",))) == 2 * (3 + 5)
    assert count_lora(network, Lora(rank=2, targets=("linear", "conv"))) == 2 * (3 + 5 + 18 + 7)


def test_the_additions_alone_learn_and_begin_as_the_teacher(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    case = CASE_OF["wan"]
    run = lora_run(tmp_path_factory, case)
    build_student(run.job("training", TrainingJob), tmp_path / "initial")
    plain = diffusers.AutoModel.from_pretrained(str(base(case, run))).eval()
    student = load_trainable(tmp_path / "initial", torch.float32)
    generator = torch.Generator().manual_seed(0)
    inputs = {
        "hidden_states": torch.randn(2, 4, 1, 4, 4, generator=generator),
        "timestep": torch.tensor([900, 100]),
        "encoder_hidden_states": torch.randn(2, 12, 32, generator=generator),
    }
    with torch.no_grad():
        assert torch.equal(student(**inputs)[0], plain(**inputs)[0])
    learns = {name for name, value in student.named_parameters() if value.requires_grad}
    assert learns == {name for name, _ in student.named_parameters() if "lora_" in name}
    count = sum(student.get_parameter(name).numel() for name in learns)
    about = read_json(tmp_path / "initial" / METADATA)["student"]
    assert about["trained_parameters"] == count
    assert about["num_parameters"] == about["teacher_parameters"]


def test_frozen_weights_take_the_type_of_the_forward_pass(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = lora_run(tmp_path_factory, CASE_OF["wan"])
    build_student(run.job("training", TrainingJob), tmp_path / "initial")
    student = load_trainable(tmp_path / "initial", torch.bfloat16)
    for name, parameter in student.named_parameters():
        assert not parameter.requires_grad or parameter.dtype == torch.float32, name
    assert student.blocks[0].attn1.to_q.base_layer.weight.dtype == torch.bfloat16  # type: ignore


def test_the_teacher_with_the_file_is_the_exported_student(
    trained: tuple[FamilyCase, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of the model card, run as it stands."""
    monkeypatch.chdir(tmp_path)  # where it saves its image
    _, run = trained
    folder = run.folder / "student/pipeline"
    call = read_json(folder / METADATA)["call"]
    ours = draw(DiffusionPipeline.from_pretrained(folder), call)
    pipeline = by_the_card(folder)
    theirs = draw(pipeline, call)
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)
    pipeline.unload_lora_weights()
    assert (draw(pipeline, call) - ours).abs().max() > LEARNED


@pytest.mark.parametrize("name", ["sdxl", "wan-two-experts"])
def test_the_code_also_loads_what_the_teacher_had(
    name: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The student's additions are to the teacher with its own LoRA, and are of no use without."""
    case = CASE_OF[name]
    teacher = made_teacher(tmp_path_factory, case)
    adapter = make_adapter(teacher, tmp_path / "mine", text=name == "sdxl")
    adapters: list[dict[str, Any]] = [{"path": str(adapter), "scale": 0.5}]
    if "expert" in case.student:
        other = make_adapter(teacher, tmp_path / "other", seed=1)
        adapters.append({"path": str(other), "expert": "transformer_2"})
    run = family_run(
        case,
        tmp_path,
        teacher,
        teacher={"adapters": adapters},
        targets={"num_segments": case.steps},
        student=student_of(case),
        training=TRAINING,
    )
    run.encode("train")
    run.all_targets()
    run.train_and_export()
    monkeypatch.chdir(tmp_path)
    folder = run.folder / "student/pipeline"
    call = read_json(folder / METADATA)["call"]
    ours = draw(DiffusionPipeline.from_pretrained(folder), call)
    pipeline = by_the_card(folder)
    torch.testing.assert_close(draw(pipeline, call), ours, rtol=1e-4, atol=1e-4)
    pipeline.set_adapters(["student"])
    assert (draw(pipeline, call) - ours).abs().max() > LEARNED


def test_other_programs_names_give_the_same_student(
    trained: tuple[FamilyCase, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kohya's for UNets, else ComfyUI's; read by Diffusers, which knows both and scales by the
    file's alpha."""
    monkeypatch.chdir(tmp_path)
    case, run = trained
    folder = run.folder / "student/pipeline"
    name = KOHYA_FILE if case.name == "sdxl" else COMFYUI_FILE
    assert {path.name for path in (folder / "lora").iterdir()} == {LORA_FILE, name}
    assert f"ComfyUI reads `lora/{name}`" in (folder / "README.md").read_text()
    tensors = load_file(folder / "lora" / name)
    assert {name.rpartition(".")[2] for name in tensors} == {"weight", "alpha"}
    start = "lora_unet_down_blocks_" if case.name == "sdxl" else "diffusion_model.blocks."
    assert all(name.startswith(start) for name in sorted(tensors)[:3])
    call = read_json(folder / METADATA)["call"]
    pipeline = by_the_card(folder)
    expected = draw(pipeline, call)
    pipeline.unload_lora_weights()
    pipeline.load_lora_weights(folder / "lora", weight_name=name)
    torch.testing.assert_close(draw(pipeline, call), expected, rtol=1e-5, atol=1e-5)


def test_the_same_bytes_for_the_same_seed_alone(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    files, run = {}, lora_run(tmp_path_factory, CASE_OF["sdxl"])
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.randn(3)
        job = run.job("training", TrainingJob).model_copy(update={"seed": seed})
        build_student(job, tmp_path / name / "initial")
        files[name] = (tmp_path / name / "initial" / LORA_FILE).read_bytes()
    assert files["a"] == files["b"]
    assert files["a"] != files["c"]
    with safe_open(tmp_path / "a/initial" / LORA_FILE, framework="pt") as file:
        config = json.loads(file.metadata()["lora_adapter_metadata"])
    assert config == {
        "unet.r": RANK,
        "unet.lora_alpha": ALPHA,
        "unet.target_modules": ["to_k", "to_out.0", "to_q", "to_v"],
    }


def test_the_teachers_weights_lie_on_the_disk_once(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links, whose permissions are the teacher's; what is written beside them, others may read."""
    monkeypatch.setattr(weights, "LINKED_BYTES", 40_000)
    case = CASE_OF["wan"]
    run = lora_run(tmp_path_factory, case)
    theirs = base(case, run) / WEIGHTS
    mode = theirs.stat().st_mode
    run.train_and_export()
    initial, trained = run.folder / "student/initial", run.folder / "student/trained"
    assert (initial / WEIGHTS).samefile(theirs)
    assert (trained / BASE / WEIGHTS).samefile(theirs)
    assert theirs.stat().st_mode == mode
    assert {path.name for path in trained.iterdir()} == {BASE, LORA_FILE, METADATA}
    for folder in (initial, trained):
        written = (folder / LORA_FILE).stat(), (folder / METADATA).stat()
        assert written[0].st_mode == written[1].st_mode
        assert find_changes(folder) == []


def test_a_student_that_an_earlier_release_trained_is_exported(
    trained: tuple[FamilyCase, Run], tmp_path: Path
) -> None:
    """Its folder has the weights with the additions in them, in float32."""
    _, run = trained
    now, before = run.folder / "student/trained", tmp_path / "trained"
    save_denoiser(load_student(now, torch.float32), before)
    shutil.copyfile(now / LORA_FILE, before / LORA_FILE)
    write_metadata(before, read_metadata(now))
    output = tmp_path / "pipeline"
    export_student(run.job("export", ExportJob), before, output)
    files = sorted(output.rglob("*.safetensors"))
    assert len(files) > 3
    for path in files:
        expected = run.folder / "student/pipeline" / path.relative_to(output)
        assert path.read_bytes() == expected.read_bytes(), path


def test_a_teachers_variant_becomes_the_plain_weights(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In shards, which an index lists."""
    case = CASE_OF["wan"]
    teacher = tmp_path / "teacher"
    shutil.copytree(made_teacher(tmp_path_factory, case), teacher)
    network = load_denoiser(teacher / "transformer", torch.float16)
    (teacher / "transformer" / WEIGHTS).unlink()
    network.save_pretrained(teacher / "transformer", variant="fp16", max_shard_size="50KB")  # type: ignore[operator]
    changes = {"teacher": {"variant": "fp16"}, "student": student_of(case)}
    run = family_run(case, tmp_path, teacher, **changes, targets={"num_segments": case.steps})
    build_student(run.job("training", TrainingJob), tmp_path / "initial")
    found = load_trainable(tmp_path / "initial", torch.float32)
    for name, value in network.state_dict().items():
        own = found.state_dict()
        assert torch.equal(own.get(name, own.get(_beside(name))), value.float()), name


def _beside(name: str) -> str:
    """The name of a weight that has additions."""
    layer, _, end = name.rpartition(".")
    return f"{layer}.base_layer.{end}"


def test_a_checkpoint_holds_the_additions_alone(trained: tuple[FamilyCase, Run]) -> None:
    _, run = trained
    (path,) = (run.folder / "student/checkpoints").glob("*/samples-000000000032")
    names = load_file(path / "weights.safetensors").keys()
    assert names
    assert all("lora_" in name for name in names)


def test_training_in_bfloat16(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The frozen weights are rounded, and the student that is written is not."""
    case = CASE_OF["wan"]
    run = lora_run(tmp_path_factory, case, dtype="bfloat16")
    run.train_and_export()
    theirs = load_file(base(case, run) / WEIGHTS)
    ours = load_file(run.folder / "student/pipeline/transformer" / WEIGHTS)
    same = {key for key in theirs if torch.equal(ours[key], theirs[key])}
    touched = {key for key in theirs if re.search(r"\.(to_[qkv]|to_out\.0)\.weight$", key)}
    assert set(theirs) - same == touched


@pytest.mark.parametrize(
    ("name", "lora", "problem"),
    [
        ("wan", Lora(rank=24), None),
        ("wan", Lora(targets=("to_z",)), r"has 'to_z', and no .* transformer ends so; .* to_k, "),
        ("wan", Lora(rank=25), r"rank is 25, and blocks.0.attn1.to_q is 24 x 24: use at most 24"),
        ("wan", Lora(rank=4, targets=("norm2",)), "blocks.0.norm2 is a FP32LayerNorm: only linear"),
        ("sdxl", Lora(rank=40), "is 32 x 32: use at most 32, or leave 'to_q' out"),
        ("pixart", Lora(rank=1), "Diffusers loads no LoRA into a PixArtSigmaPipeline"),
    ],
)
def test_what_can_and_what_cannot_be_trained(
    name: str, lora: Lora, problem: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    teacher = made_teacher(tmp_path_factory, CASE_OF[name])
    family = family_named(CASE_OF[name].family)
    network = load_denoiser_skeleton(teacher / family.denoisers[0])
    if problem is None:
        check_lora(network, lora, family)
        return
    with pytest.raises(ValueError, match=problem):
        check_lora(network, lora, family)
