"""The student before training: all of the teacher's denoiser, or some of its blocks."""

import shutil

import diffusers
import pytest
import torch

import tiny
from distillery.config.jobs import TrainingJob, read_job
from distillery.files import read_json, write_json
from distillery.student.build import build_student


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    tiny.make_tiny_wan(folder / "teacher", num_layers=3)
    return folder


def build(folder, **student):
    tiny.write_training_job(folder)
    path = folder / "config" / "training.json"
    write_json(path, read_json(path) | {"student": {"steps": 4} | student})
    build_student(read_job(path, TrainingJob), folder / "initial")
    return diffusers.AutoModel.from_pretrained(str(folder / "initial"))


def teacher(folder):
    return diffusers.AutoModel.from_pretrained(str(folder / "teacher" / "transformer"))


def test_init_teacher_copies_every_weight(data):
    ours, theirs = build(data).state_dict(), teacher(data).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_block_that_is_not_there_is_explained(data):
    with pytest.raises(ValueError, match=r"lists 3, 7: .* 3 blocks, so use indices from 0 to 2"):
        build(data, init="layers", layers=[0, 3, 7])


def test_only_the_denoiser_is_read(data, tmp_path):
    """The other components' weights may be unreadable."""
    shutil.copytree(data / "teacher", tmp_path / "teacher")
    for name in ("text_encoder/model.safetensors", "vae/diffusion_pytorch_model.safetensors"):
        (tmp_path / "teacher" / name).write_bytes(b"not weights")
    assert build(tmp_path).config.num_layers == 3


def test_the_same_bytes_wherever_the_teacher_lies(data, tmp_path):
    shutil.copytree(data / "teacher", tmp_path / "teacher")
    build(data)
    build(tmp_path)
    for path in (data / "initial").iterdir():
        assert path.read_bytes() == (tmp_path / "initial" / path.name).read_bytes()
