"""A teacher's folder: what is missing is named, and its fingerprint sees what matters."""

import inspect
import json
import os
import shutil
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from diffusers import ModelMixin, SchedulerMixin, guiders
from safetensors.torch import load_file

from distillery.config.teacher import Teacher
from distillery.families import Size, family_named
from distillery.files import read_json
from distillery.teacher import folder as module
from distillery.teacher.components import config_of
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.skeleton import load_skeleton
from runs import loaded
from tiny import HEIGHT, LATENT_SHAPE, WIDTH, make_tiny_wan

OF_A_PIPELINE = (ModelMixin, SchedulerMixin, guiders.BaseGuidance)
"""What Diffusers' components are; those of Transformers are not described by their class."""
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture
def copy(teacher: Path, tmp_path: Path) -> Path:
    """A teacher that a test may damage."""
    shutil.copytree(teacher, tmp_path / "teacher")
    return tmp_path / "teacher"


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def flip_a_bit(path: Path) -> None:
    """In the middle of a file, whose modification time stays."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(status.st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_whole_teacher_is_found(teacher: Path) -> None:
    assert find_teacher(Teacher(path=str(teacher), height=32, width=32)) == PipelineFolder(teacher)
    assert PipelineFolder(teacher).family is family_named("wan")


def test_what_a_folder_is_made_of_is_read_once(
    teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    monkeypatch.setattr(module, "read_json", lambda path: read.append(path) or read_json(path))
    folder = PipelineFolder(teacher)
    for _ in range(2):
        assert folder.pipeline_class.__name__ == folder.class_name == "WanPipeline"
        assert folder.denoiser_class.__name__ == "WanTransformer3DModel"
        assert folder.components_left_out == []
        assert set(folder.parameters) | set(folder.denoisers) <= set(folder.components)
    assert read == [teacher / "model_index.json", teacher / "transformer" / "config.json"]


@pytest.mark.parametrize("path", ["/nowhere/at/all", "./nowhere/x", "nowhere", "a/b/c"])
def test_no_such_folder(path: str) -> None:
    with pytest.raises(FileNotFoundError, match=rf"teacher\.path is '{path}': there is no such"):
        find_teacher(Teacher(path=path, height=32, width=32))


def test_a_folder_without_index_is_no_pipeline(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no model_index\.json"):
        PipelineFolder(tmp_path).check_complete()


def test_an_unknown_pipeline_class_is_named(copy: Path) -> None:
    edit_json(copy / "model_index.json", _class_name="OtherPipeline")
    with pytest.raises(ValueError, match=r"'OtherPipeline'; known: WanPipeline"):
        PipelineFolder(copy).check_complete()


@pytest.mark.parametrize(
    "missing",
    [
        "text_encoder",
        "tokenizer",
        "vae",
        "transformer",
        "scheduler",
        "transformer/config.json",
        "vae/config.json",
        "text_encoder/config.json",
        "scheduler/scheduler_config.json",
        "tokenizer/tokenizer_config.json",
    ],
)
def test_every_missing_part_is_named(copy: Path, missing: str) -> None:
    path = copy / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(FileNotFoundError, match=f"incomplete, missing: {missing};"):
        PipelineFolder(copy).check_complete()


def test_every_component_of_diffusers_is_described_by_its_own_file() -> None:
    """Models but those of sound, schedulers, and what guides a few pipelines."""
    kinds = (getattr(module, name) for module in (diffusers, guiders) for name in dir(module))
    described = {
        kind.__name__: kind.config_name
        for kind in kinds
        if inspect.isclass(kind)
        and issubclass(kind, OF_A_PIPELINE)
        and "Audio" not in kind.__name__
    }
    assert {"config.json", "scheduler_config.json", "guider_config.json"} == {*described.values()}
    assert {name: config_of(name) for name in described} == described


@pytest.mark.parametrize("component", ["transformer", "vae", "text_encoder"])
def test_missing_weights_are_named(copy: Path, component: str) -> None:
    for path in (copy / component).glob("*.safetensors"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=rf"missing: {component}/\*\.safetensors"):
        PipelineFolder(copy).check_complete()


def test_a_missing_shard_of_an_index_is_named(copy: Path) -> None:
    folder = copy / "transformer"
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(FileNotFoundError, match="missing: transformer/model-00002-of-00002"):
        PipelineFolder(copy).check_complete()


def test_a_component_that_is_null_may_be_absent(copy: Path) -> None:
    edit_json(copy / "model_index.json", image_encoder=[None, None])
    PipelineFolder(copy).check_complete()


def test_parameters_are_counted_without_loading(teacher: Path) -> None:
    found = PipelineFolder(teacher).parameters
    assert set(found) == {"text_encoder", "transformer", "vae"}
    tensors = load_file(teacher / "transformer" / WEIGHTS)
    assert found["transformer"] == sum(tensor.numel() for tensor in tensors.values())


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", None])
def test_damaged_weights_are_named(copy: Path, content: bytes | None) -> None:
    path = copy / "transformer" / WEIGHTS
    path.write_bytes(path.read_bytes()[:-1] if content is None else content)
    with pytest.raises(ValueError, match=rf"{WEIGHTS} is damaged .*git lfs pull"):
        _ = PipelineFolder(copy).parameters


def test_a_fingerprint_does_not_depend_on_the_place_or_on_traces_of_a_download(
    teacher: Path, copy: Path
) -> None:
    (copy / "README.md").write_text("words")
    (copy / ".cache" / "huggingface").mkdir(parents=True)
    (copy / ".cache" / "huggingface" / "x.metadata").write_text("1700000000")
    assert PipelineFolder(copy).fingerprint() == PipelineFolder(teacher).fingerprint()


def test_a_fingerprint_sees_other_weights_and_a_missing_file(teacher: Path, tmp_path: Path) -> None:
    make_tiny_wan(tmp_path / "other", seed=1)
    assert PipelineFolder(tmp_path / "other").fingerprint() != PipelineFolder(teacher).fingerprint()
    shutil.copytree(teacher, tmp_path / "copy")
    before = PipelineFolder(tmp_path / "copy").fingerprint()
    (tmp_path / "copy" / "tokenizer" / "tokenizer_config.json").unlink()
    assert PipelineFolder(tmp_path / "copy").fingerprint() != before


@pytest.mark.parametrize(
    "path",
    [
        ".gitattributes",
        "LICENSE.md",
        "sd_xl_base_1.0.safetensors",
        "vae_encoder/model.onnx",
        "vae/diffusion_pytorch_model.fp16.safetensors",
        "vae/.hidden",
    ],
)
def test_a_fingerprint_passes_over_what_is_not_read(teacher: Path, copy: Path, path: str) -> None:
    (copy / path).parent.mkdir(exist_ok=True)
    (copy / path).write_text("anything")
    assert PipelineFolder(copy).fingerprint() == PipelineFolder(teacher).fingerprint()


def test_a_fingerprint_sees_the_variant_that_is_read_alone(copy: Path) -> None:
    other = copy / "vae" / "diffusion_pytorch_model.fp16.safetensors"
    shutil.copyfile(copy / "vae" / WEIGHTS, other)
    plain, half = PipelineFolder(copy).fingerprint(), PipelineFolder(copy, "fp16").fingerprint()
    flip_a_bit(copy / "vae" / WEIGHTS)
    assert PipelineFolder(copy).fingerprint() != plain
    assert PipelineFolder(copy, "fp16").fingerprint() == half
    flip_a_bit(other)
    assert PipelineFolder(copy, "fp16").fingerprint() != half


def test_a_fingerprint_sees_every_file_that_is_read(copy: Path) -> None:
    """One bit in the middle of each file, with its times put back."""
    paths = [path for path in sorted(copy.rglob("*")) if path.is_file()]
    assert len(paths) == 10
    found = {PipelineFolder(copy).fingerprint()}
    for path in paths:
        flip_a_bit(path)
        # model_index.json and indices are read as JSON too, and must stay that.
        if path.name != "model_index.json":
            found.add(PipelineFolder(copy).fingerprint())
        flip_a_bit(path)
    assert len(found) == len(paths)
    edit_json(copy / "model_index.json", _diffusers_version="0")
    assert PipelineFolder(copy).fingerprint() not in found


def test_what_a_job_does_not_need_is_not_loaded(teacher: Path) -> None:
    family = family_named("wan")
    section = Teacher(path=str(teacher), height=HEIGHT, width=WIDTH)
    pipeline = loaded(section, leave_out=family.text_components)
    assert pipeline.text_encoder is None
    assert pipeline.tokenizer is None
    assert pipeline.vae.dtype == torch.float32
    assert pipeline.transformer.patch_embedding.weight.dtype == torch.bfloat16


def test_a_skeleton_has_shapes_and_no_weights(teacher: Path) -> None:
    family = family_named("wan")
    skeleton = load_skeleton(PipelineFolder(teacher))
    assert family.latent_shape(skeleton, Size(HEIGHT, WIDTH)) == LATENT_SHAPE
    assert all(parameter.is_meta for parameter in skeleton.transformer.parameters())
