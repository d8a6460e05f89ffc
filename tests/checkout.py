"""Snakemake on a tiny run, in a folder that looks like the repository."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

import forks
from distillery.report.timeline import RANK
from runs import settings

REPOSITORY = Path(__file__).parents[1]
TARGETS = "results/tiny/targets/manifest.json"
SNAKEMAKES_OUTPUT = ("--logger-distillery-style", "snakemake")
SNAKEMAKE = shutil.which("snakemake", path=str(Path(sys.executable).parent)) or "snakemake"


def load_script(name: str) -> ModuleType:
    """A module of tools/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / f"tools/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def skeleton(folder: Path, *names: str) -> Path:
    """A folder that looks like the repository, so that the checkout itself stays clean."""
    for name in ("Snakefile", "rules", "workflow", "profiles", *names):
        (folder / name).symlink_to(REPOSITORY / name)
    return folder


def snakemake(
    folder: Path, *arguments: str, visible_devices: str = ""
) -> "subprocess.CompletedProcess[str]":
    """With its own output, which tells which jobs it starts, and why."""
    return as_a_user(folder, *SNAKEMAKES_OUTPUT, *arguments, visible_devices=visible_devices)


def as_a_user(
    folder: Path, *arguments: str, visible_devices: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Snakemake with the output that users see."""
    return subprocess.run(
        ["snakemake", "--cores", "2", *arguments],
        cwd=folder,
        env=forks.environ(CUDA_VISIBLE_DEVICES=visible_devices),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )


def succeed(folder: Path, *arguments: str) -> str:
    done = snakemake(folder, *arguments)
    assert done.returncode == 0, done.stdout
    return done.stdout


def jobs(output: str) -> set[str]:
    """The rules that a run or a dry run lists in its table of jobs."""
    return set(re.findall(r"^(?:local)?rule (\w+):", output, flags=re.MULTILINE))


def check_names(run: Path) -> set[str]:
    """Check that what a job tells the report lies under the name of its log; returns the names."""
    told = {RANK.sub("", path.stem) for path in (run / "telemetry").glob("*.jsonl")}
    assert told <= {path.stem for path in (run / "logs").glob("*.log")}
    return told


def configure(folder: Path, teacher: Path, /, **changes: Any) -> None:
    raw = settings(folder / "inputs", teacher, **changes)
    (folder / "config").mkdir(exist_ok=True)
    (folder / "config" / "config.yaml").write_text(yaml.safe_dump(raw))


ONE_SHARD = {"targets": {"num_shards": 1}, "samples": {"num_shards": 1}}
