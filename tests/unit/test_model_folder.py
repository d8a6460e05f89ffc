"""A student's folder lists its files, and a disk that is full is an error of the disk."""

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from distillery import model_folder
from distillery.config.jobs import TrainingJob
from distillery.files import read_sealed, write_sealed
from distillery.model_folder import (
    check_student,
    full_disk_as_os_error,
    hash_model,
    save_denoiser,
    write_metadata,
)
from distillery.student.build import build_student
from distillery.student.lora import add_lora, save_lora
from distillery.telemetry import explain_errors
from runs import make_run
from tiny import tiny_transformer

WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture
def folder(data: Path, tmp_path: Path) -> Path:
    """A student's folder that a test may change."""
    copy: Path = shutil.copytree(data / "student/initial", tmp_path / "initial")
    check_student(copy)
    return copy


def flip(path: Path) -> None:
    """Another bit in the middle of a file, which keeps its time."""
    content, times = bytearray(path.read_bytes()), path.stat()
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_bit_in_any_file_is_seen(folder: Path) -> None:
    for name in (WEIGHTS, "config.json", model_folder.METADATA):
        content = (folder / name).read_bytes()
        flip(folder / name)
        with pytest.raises(ValueError, match=rf"{name}.*: run `rm -r {folder}` and start"):
            hash_model(folder)
        (folder / name).write_bytes(content)
    check_student(folder)


def test_what_is_missing_or_new_is_seen_and_what_is_for_people_may_change(folder: Path) -> None:
    (folder / "notes.md").write_text("mine")
    (folder / ".snakemake_timestamp").touch()
    check_student(folder)
    (folder / "extra.json").write_text("{}")
    with pytest.raises(ValueError, match=r"extra\.json"):
        check_student(folder)
    (folder / "extra.json").unlink()
    (folder / WEIGHTS).unlink()
    with pytest.raises(ValueError, match=WEIGHTS):
        check_student(folder)


def test_a_count_that_was_changed_is_seen_where_it_is_read(folder: Path) -> None:
    about = folder / model_folder.METADATA
    about.write_text(about.read_text().replace('"num_parameters": ', '"num_parameters": 1'))
    with pytest.raises(ValueError, match=rf"content_sha256\): run `rm -r {folder}` and start"):
        model_folder.read_metadata(folder)


def test_a_sealed_object_is_sealed_again(folder: Path) -> None:
    path = folder / "a.json"
    write_sealed(path, {"a": 1})
    write_sealed(path, {**read_sealed(path), "b": 2.5})
    assert read_sealed(path) == {"a": 1, "b": 2.5}
    write_metadata(folder, {"student": None})
    check_student(folder)


@contextmanager
def full_disk(folder: Path) -> Iterator[Path]:
    """A file system of 64 KiB; without root a limit on the size of files."""
    if os.geteuid() != 0:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, before[1]))
        try:
            yield folder
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        return
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("root may not mount here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def build(teacher: Path, output: Path, tmp_path: Path) -> None:
    build_student(make_run(tmp_path, teacher).job("training", TrainingJob), output)


def save_plain(teacher: Path, output: Path, tmp_path: Path) -> None:
    output.mkdir()
    save_denoiser(tiny_transformer(), output)


def save_additions(teacher: Path, output: Path, tmp_path: Path) -> None:
    from distillery.config.student import Lora
    from distillery.families import family_named

    denoiser, output = tiny_transformer(8), output / "x"
    add_lora(denoiser, Lora(rank=24, targets=("to_q", "to_k", "to_v", "proj")), 0)
    save_lora(denoiser, output, family_named("wan"))


@pytest.mark.parametrize("write", [build, save_plain, save_additions])
def test_a_full_disk_is_told_in_one_line_wherever_a_student_is_written(
    teacher: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    write: Callable[[Path, Path, Path], None],
) -> None:
    with full_disk(tmp_path / "disk") as disk:
        status = explain_errors(lambda: write(teacher, disk / "student", tmp_path / "run"))
        left = [path.name for path in disk.glob(".*.tmp")]
    told = capsys.readouterr().err
    assert status == 1
    assert "Traceback" not in told
    assert "No space left on device" in told or "File too large" in told
    if os.geteuid() == 0:
        assert "free some space and rerun, what is finished is kept" in told
    assert left == []


def test_an_error_of_safetensors_itself_stays_one(tmp_path: Path) -> None:
    with pytest.raises(SafetensorError, match="invalid header"), full_disk_as_os_error(tmp_path):
        raise SafetensorError("invalid header")


def test_weights_are_what_the_hash_is_of(folder: Path) -> None:
    before = hash_model(folder)
    other = tiny_transformer()
    torch.nn.init.ones_(other.proj_out.weight)
    save_denoiser(other, folder)
    write_metadata(folder, {})
    assert hash_model(folder) != before
