"""Training over two and three nodes of a real SLURM, one of which is lost in the middle.

Not part of `make test`: `make test-slurm`.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

import cluster
import tiny
from distillery.telemetry import read_events
from training_phases import phases

REPOSITORY = Path(__file__).parents[2]
CONFIG = "config/nodes.yaml"
RUN = Path("results/nodes")
INPUTS = (
    "student/initial", "targets/manifest.json", "embeddings/train/manifest.json",
    "embeddings/eval/manifest.json", "config/training.json", "config/previews.json",
)  # fmt: skip
WEIGHTS = "student/trained/diffusion_pytorch_model.safetensors"
PATIENCE_S = 400
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1200)]


def environ(checkout: Path) -> dict[str, str]:
    """With the clone's own library."""
    return os.environ | {"PYTHONPATH": str(checkout / "workflow")}


@pytest.fixture(scope="module")
def checkout(slurm: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with a run that is ready to train."""
    folder = tmp_path_factory.mktemp("nodes") / "distillery"
    subprocess.run(["git", "clone", "--quiet", REPOSITORY, folder], check=True)
    config = yaml.safe_load((folder / "config/config.yaml").read_text())
    config["run"] = RUN.name
    config["targets"] |= {"steps": 4, "num_shards": 1}
    config["training"] |= {"phases": phases(stored=3200), "save_every_samples": 640, "tf32": False}
    config["previews"] = {"every_samples": 0}
    (folder / CONFIG).write_text(yaml.safe_dump(config))
    words = [*(str(RUN / name) for name in INPUTS), "--configfile", CONFIG]
    subprocess.run(
        ["snakemake", "--cores", "2", *words], cwd=folder, env=environ(folder), check=True
    )
    return folder


@pytest.fixture(scope="module")
def alone(checkout: Path) -> Path:
    """What one process learns."""
    folder = checkout / "alone"
    shutil.copytree(checkout / RUN / "config", folder / "config")
    words = tiny.train_arguments(checkout / RUN, folder)
    command = [sys.executable, "-m", "distillery.stages.training", *words]
    subprocess.run(command, cwd=checkout, env=environ(checkout), check=True)
    return folder


def on_nodes(checkout: Path, count: int) -> "subprocess.Popen[bytes]":
    """The workflow's training as one job of so many nodes."""
    for name in ("trained", "loss.parquet"):
        path = checkout / RUN / "student" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    profile: dict[str, Any] = yaml.safe_load((checkout / "profiles/slurm/config.yaml").read_text())
    profile["slurm-init-seconds-before-status-checks"] = 3
    profile["default-resources"] |= {"mem_mb": 1500, "runtime": 15}
    profile["set-resources"]["training"] |= {
        "nodes": count, "gpu": 2 * count, "tasks_per_node": 2, "mpi": "srun", "mem_mb": 1500,
    }  # fmt: skip
    (checkout / "test-profile").mkdir(exist_ok=True)
    (checkout / "test-profile/config.yaml").write_text(yaml.safe_dump(profile))
    words = [str(RUN / "student/loss.parquet"), "--configfile", CONFIG]
    return subprocess.Popen(
        ["snakemake", *words, "--profile", "test-profile"],
        cwd=checkout,
        env=environ(checkout) | {"DISTILLERY_PRETEND_GPUS": str(cluster.NUM_GPUS)},
    )


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "waited too long"
        time.sleep(0.2)


def nodes_of_attempts(checkout: Path) -> list[list[str]]:
    """By SLURM's order of starts, the nodes of each attempt's processes."""
    starts = [
        event
        for event in read_events(checkout / RUN / "telemetry")
        if event.stage == "training" and event.kind == "start"
    ]
    firsts = sorted(event.begin_s for event in starts if event.job == "training")
    return [
        sorted(
            event.facts["slurm_node"]
            for event in starts
            if begin_s - 10 < event.begin_s < begin_s + 10
        )
        for begin_s in firsts
    ]


def assert_same_weights(checkout: Path, alone: Path) -> None:
    """Within what sums in another order do in a hundred updates."""
    ours, theirs = load_file(checkout / RUN / WEIGHTS), load_file(alone / WEIGHTS)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-4)


def test_two_nodes_of_which_one_is_lost(checkout: Path, alone: Path) -> None:
    """The other ends within a minute; SLURM starts the job again, on another pair of nodes."""
    saved = checkout / RUN / "student/checkpoints"
    snakemake = on_nodes(checkout, 2)
    wait_until(lambda: any(saved.glob("*/samples-*")))
    cluster.lose_node("n2")
    begin_s = time.monotonic()
    wait_until(lambda: not processes_on("n1"))
    assert time.monotonic() - begin_s < 60
    wait_until(lambda: "PENDING" in queue())
    # SLURM itself waits two minutes with it.
    subprocess.run(
        ["scontrol", "update", f"jobid={queue().split()[0]}", "StartTime=now"], check=True
    )
    assert snakemake.wait(PATIENCE_S) == 0
    assert nodes_of_attempts(checkout) == [["n1", "n1", "n2", "n2"], ["n1", "n1", "n3", "n3"]]
    assert "resumes from" in (checkout / RUN / "logs/training.log").read_text()
    assert_same_weights(checkout, alone)
    cluster.start_node("n2")
    cluster.wait_for_nodes()


def test_three_nodes_from_the_start(checkout: Path, alone: Path) -> None:
    shutil.rmtree(checkout / RUN / "student/checkpoints")
    assert on_nodes(checkout, 3).wait(PATIENCE_S) == 0
    assert nodes_of_attempts(checkout)[-1] == ["n1", "n1", "n2", "n2", "n3", "n3"]
    assert_same_weights(checkout, alone)


def queue() -> str:
    """Number and state of the one job."""
    return subprocess.run(
        ["squeue", "--noheader", "--format=%i %T"], capture_output=True, text=True, check=True
    ).stdout


def processes_on(node: str) -> list[int]:
    """The training's processes on a node."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text()
            environ = (process / "environ").read_text()
        except OSError:
            continue
        if "distillery.stages.training" in words and f"SLURMD_NODENAME={node}\0" in environ:
            found.append(int(process.name))
    return found
