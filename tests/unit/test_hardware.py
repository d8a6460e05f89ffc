"""What the machine has, on pretend devices and on the real CPU."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

import forks
from distillery import hardware
from tiny import train_arguments

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTILLERY_PRETEND_GPUS", "4")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def run_python(code: str, python: str, environ: dict[str, str]) -> str:
    return subprocess.run(
        [python, "-c", code],
        env=environ,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout


def test_pretend_devices() -> None:
    gpus = hardware.find_gpus()
    assert [gpu.uuid for gpu in gpus] == [f"GPU-pretend-{index}" for index in range(4)]
    assert [gpu.index for gpu in gpus] == [0, 1, 2, 3]
    assert all(gpu.memory_bytes > 0 for gpu in gpus)
    assert hardware.count_gpus() == 4


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        ("", []),
        ("NoDevFiles", []),
        ("-1", []),
        ("2,-1,3", [2]),
        ("3,1", [3, 1]),
        (" 0 , GPU-pretend-2", [0, 2]),
    ],
)
def test_visible_devices(visible: str, indices: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.index for gpu in hardware.find_gpus()] == indices


def test_a_beginning_of_a_uuid_names_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTILLERY_PRETEND_GPUS", "11")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-pretend-1")
    assert [gpu.index for gpu in hardware.find_gpus()] == [1]  # not 10: exact comes first
    monkeypatch.setenv("DISTILLERY_PRETEND_GPUS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-pre")
    assert [gpu.index for gpu in hardware.find_gpus()] == [0]


@pytest.mark.parametrize(
    ("visible", "message"),
    [
        ("4", r"names '4', which is no GPU of this machine; there are: 0 \(GPU-pretend-0\), 1"),
        ("0,GPU-f00", "names 'GPU-f00', which is no GPU"),
        ("pretend", "names 'pretend', which is no GPU"),
        ("0,", "names '', which is no GPU"),
        ("GPU-pre", "names 'GPU-pre', which fits several GPUs"),
        ("0,GPU-pretend-0", "names a GPU twice"),
    ],
)
def test_wrong_ids_are_errors(visible: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ValueError, match=message):
        hardware.find_gpus()


def test_a_wrong_number_of_pretend_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTILLERY_PRETEND_GPUS", "many")
    with pytest.raises(ValueError, match="DISTILLERY_PRETEND_GPUS is 'many'"):
        hardware.find_gpus()


def test_the_driver_agrees_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without GPU this tests that none is found and nothing fails."""
    monkeypatch.delenv("DISTILLERY_PRETEND_GPUS")
    gpus = hardware.find_gpus()
    assert len(gpus) == torch.cuda.device_count()
    found = {gpu.uuid.removeprefix("GPU-") for gpu in gpus}
    assert found == {
        str(torch.cuda.get_device_properties(index).uuid) for index in range(len(gpus))
    }


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, distillery.hardware; print({'torch', 'numpy', 'pynvml'} & set(sys.modules))"
    environ = {"PYTHONPATH": str(ROOT / "workflow")}
    assert run_python(code, sys.executable, environ) == "set()\n"


@pytest.mark.slow
def test_the_cpu_has_a_fixed_number_of_threads() -> None:
    code = (
        "import torch; from distillery.hardware import device_label, select_device\n"
        "print(device_label(select_device(3)), torch.get_num_threads(), end=' ')\n"
        "print(torch.get_num_interop_threads(), end=' ')\n"
        "torch.randn(64, 64) @ torch.randn(64, 64)\n"
        "print(select_device(2), torch.get_num_threads())"
    )
    assert run_python(code, "python", without_pretended(forks.environ())) == "cpu 3 3 cpu 2\n"


def without_pretended(environ: dict[str, str]) -> dict[str, str]:
    return {key: it for key, it in environ.items() if key != "DISTILLERY_PRETEND_GPUS"}


def run_script(name: str, arguments: list[str], visible: str) -> tuple[int, list[str]]:
    """Exit status and lines of a script that is given some GPUs, none of them pretended."""
    done = subprocess.run(
        ["python", "-m", f"distillery.stages.{name}", *arguments],
        env=without_pretended(forks.environ(CUDA_VISIBLE_DEVICES=visible)),
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, [line for line in done.stderr.splitlines() if line.strip()]


EMBEDDINGS = ["--config", "a/config/none.json", "--prompts", "none", "--output", "none"]


@pytest.mark.slow
def test_a_job_with_gpus_that_torch_cannot_use_ends(data: Path, tmp_path: Path) -> None:
    """Device 99 is none of any machine's; what is wrong here is said in one line."""
    shutil.copytree(data / "config", tmp_path / "config")
    for name, arguments in (
        ("embeddings", EMBEDDINGS),
        ("training", train_arguments(data, tmp_path)),
    ):
        status, lines = run_script(name, arguments, visible="99")
        assert status == 1, lines
        (line,) = lines
        assert "error: this job has GPUs, CUDA_VISIBLE_DEVICES is '99', but " in line
        if torch.version.cuda is None:
            assert f"PyTorch {torch.__version__} was built without CUDA: install" in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="unset, CUDA_VISIBLE_DEVICES shows all GPUs")
@pytest.mark.parametrize(
    ("visible", "pretend"),
    [(None, None), ("", None), ("-1", None), ("NoDevFiles", None), ("0", "1"), ("0", None)],
)
def test_a_job_without_gpus_works_on_the_cpu(
    visible: str | None, pretend: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("CUDA_VISIBLE_DEVICES", visible), ("DISTILLERY_PRETEND_GPUS", pretend)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    if (visible, pretend) == ("0", None):
        with pytest.raises(OSError, match="this job has GPUs, CUDA_VISIBLE_DEVICES is '0'"):
            hardware.select_device(1)
    else:
        assert hardware.select_device(1) == torch.device("cpu")


@pytest.mark.parametrize(
    ("needed", "known", "found"),
    [
        ("13.0", 12040, "the NVIDIA driver 550.54 knows CUDA up to 12.4 and PyTorch needs 13.0:"),
        ("13.2", 13000, ""),
        ("12.6", 13000, ""),
        ("13.0", 0, ""),
        ("", 12040, ""),
    ],
)
def test_a_driver_that_is_too_old_is_named(needed: str, known: int, found: str) -> None:
    said = hardware._driver_too_old(needed, "550.54", known)
    assert said.startswith(found)
    assert bool(said) == bool(found)


@pytest.mark.gpu
def test_the_gpu_has_its_settings_and_a_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISTILLERY_PRETEND_GPUS")
    device = hardware.select_device(1)
    assert device == torch.device("cuda", 0)
    assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32
    assert not torch.backends.cudnn.benchmark
    label = hardware.device_label(device)
    assert label.removeprefix("cuda:") in {gpu.uuid[:12] for gpu in hardware.find_gpus()}


@pytest.mark.parametrize("before", [None, "/tmp/torchinductor_somebody"])
def test_compiled_code_is_kept_for_the_jobs_of_all_nodes(
    before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTILLERY_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", before or "")
    if before is None:
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    hardware.keep_compiled_code()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled")
    assert (tmp_path / "compiled").is_dir()


def test_a_chosen_folder_of_compiled_code_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTILLERY_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/scratch/mine")
    hardware.keep_compiled_code()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/scratch/mine"
    assert not list(tmp_path.iterdir())


def test_compiled_code_stays_in_tmp_where_the_cache_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "compiled").touch()
    monkeypatch.setenv("DISTILLERY_CACHE", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    hardware.keep_compiled_code()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_describing_the_machine_gives_json() -> None:
    description = json.loads(json.dumps(hardware.describe_hardware()))
    assert description["cpu"]
    assert description["num_cores"] >= 1
    assert description["memory_bytes"] > 2**28
    assert [gpu["uuid"] for gpu in description["gpus"]][:1] == ["GPU-pretend-0"]


def test_versions_come_from_the_metadata() -> None:
    found = hardware.versions()
    assert found["torch"] == version("torch")
    assert {"python", "torch", "diffusers", "transformers", "snakemake", "distillery"} == set(found)


def test_the_commit_of_the_library_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = hardware.source_commit()
    assert found is not None
    assert re.fullmatch("[0-9a-f]{40}", found["commit"])
    assert isinstance(found["is_clean"], bool)
    # Installed into another repository's folder, which says nothing of it.
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    monkeypatch.setattr(hardware, "__file__", str(tmp_path / "hardware.py"))
    assert hardware.source_commit() is None
    monkeypatch.setattr(hardware, "__file__", "/nowhere/hardware.py")
    assert hardware.source_commit() is None
