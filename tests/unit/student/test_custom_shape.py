"""A student of a shape of its own: the teacher's weights where they fit, the rest by the seed."""

import shutil
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

import tiny
from distillery.config.jobs import TrainingJob, read_job
from distillery.families import family_named
from distillery.files import read_json, write_json
from distillery.student.build import build_student
from distillery.student.custom_shape import read_shape
from distillery.student.info import StudentInfo, describe_student, read_student_info


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    tiny.make_tiny_wan(folder / "teacher", num_layers=3)
    return folder / "teacher"


def build(folder: Path, teacher: Path, seed: int = 0, **changes: Any) -> StudentInfo:
    """A student whose config.json is the teacher's with changes (None removes a key)."""
    folder.mkdir(exist_ok=True)
    if not (folder / "teacher").exists():
        (folder / "teacher").symlink_to(teacher)
    shape = read_json(teacher / "transformer/config.json") | changes
    shape = {key: value for key, value in shape.items() if value is not None}
    write_json(folder / "shape.json", shape)
    tiny.write_training_job(folder, seed=seed)
    path = folder / "config" / "training.json"
    student = {"steps": 4, "init": "config", "config": str(folder / "shape.json")}
    write_json(path, read_json(path) | {"student": student})
    build_student(read_job(path, TrainingJob), folder / "initial")
    info = read_student_info(folder / "initial")
    assert info is not None
    return info


def load(folder: Path) -> Any:
    return diffusers.AutoModel.from_pretrained(str(folder))


def test_the_teachers_custom_shape_is_the_teacher(teacher: Path, tmp_path: Path) -> None:
    info = build(tmp_path, teacher)
    assert info.not_copied == ()
    assert info.copied_parameters == info.num_parameters == info.teacher_parameters
    ours, theirs = load(tmp_path / "initial").state_dict(), load(teacher / "transformer")
    assert all(torch.equal(ours[name], value) for name, value in theirs.state_dict().items())


def test_fewer_layers_take_the_teachers_first_ones(teacher: Path, tmp_path: Path) -> None:
    info = build(tmp_path, teacher, num_layers=2)
    assert info.not_copied == ()
    ours, theirs = load(tmp_path / "initial").state_dict(), load(teacher / "transformer")
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in ours.items())


def test_what_does_not_fit_begins_at_random_and_is_counted(teacher: Path, tmp_path: Path) -> None:
    info = build(tmp_path, teacher, ffn_dim=40, num_layers=4)
    ours, theirs = load(tmp_path / "initial").state_dict(), load(teacher / "transformer")
    differing = {
        name
        for name, value in ours.items()
        if name not in theirs.state_dict() or not torch.equal(value, theirs.state_dict()[name])
    }
    assert set(info.not_copied) >= differing
    assert any(name.startswith("blocks.3.") for name in info.not_copied)
    assert "blocks.0.ffn.net.0.proj.weight" in info.not_copied
    assert "blocks.0.attn1.to_q.weight" not in info.not_copied
    left = sum(ours[name].numel() for name in info.not_copied)
    assert info.num_parameters - info.copied_parameters == left > 0
    assert f"{len(info.not_copied)} tensors begin at random" in describe_student(info)


def test_the_seed_alone_decides_what_is_random(teacher: Path, tmp_path: Path) -> None:
    weights = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.randn(3)
        build(tmp_path / name, teacher, seed, ffn_dim=40)
        files = sorted((tmp_path / name / "initial").iterdir())
        weights[name] = {path.name: path.read_bytes() for path in files}
    assert weights["a"] == weights["b"]
    assert weights["a"] != weights["c"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"_class_name": "UNet2DConditionModel"}, "is of a UNet2DConditionModel, the teacher's"),
        ({"num_layrs": 2}, "has num_layrs, which a WanTransformer3DModel does not take"),
        ({"in_channels": 8}, "has in_channels 8, the teacher's network has 4"),
        ({"text_dim": 64}, "has text_dim 64, .* so write text_dim: 32"),
        ({"text_dim": None}, "has text_dim 4096, .* so write text_dim: 32"),
    ],
)
def test_a_shape_that_cannot_be_fed(
    teacher: Path, tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        build(tmp_path, teacher, **changes)
    assert not (tmp_path / "initial").exists()


@pytest.mark.parametrize(("dropout", "refused"), [(0.1, True), (1, True), (0.0, False), (0, False)])
def test_dropout_is_refused(tmp_path: Path, dropout: float, refused: bool) -> None:
    """What it drops depends on where a training was interrupted, and on the number of GPUs."""
    with torch.device("meta"):
        teacher = diffusers.UNet2DConditionModel(block_out_channels=(32, 32, 32, 32))
    path = tmp_path / "shape.json"
    write_json(path, {**dict(teacher.config), "dropout": dropout})
    if not refused:
        assert read_shape(path, teacher, family_named("sd"))["dropout"] == 0
        return
    with pytest.raises(ValueError, match=rf"has dropout {dropout}: .* write dropout: 0"):
        read_shape(path, teacher, family_named("sd"))


def test_no_such_file(teacher: Path, tmp_path: Path) -> None:
    build(tmp_path, teacher)
    shutil.rmtree(tmp_path / "initial")
    (tmp_path / "shape.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"copy config\.json of the teacher's transformer"):
        build_student(read_job(tmp_path / "config/training.json", TrainingJob), tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"num_layers": 2,', r"student\.config: .*shape\.json is not valid JSON: .*; fix it"),
        ("[2]", r"student\.config: .*shape\.json holds a list, an object is needed"),
    ],
)
def test_a_file_that_is_no_object(teacher: Path, tmp_path: Path, text: str, problem: str) -> None:
    build(tmp_path, teacher)
    (tmp_path / "shape.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=problem):
        build_student(read_job(tmp_path / "config/training.json", TrainingJob), tmp_path / "out")
