"""A tiny run that is finished, made by its stages in this process; and what harms it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import forks
from checkout import REPOSITORY
from distillery.config.jobs import JOBS, EvaluationJob, freeze
from distillery.config.run import Config, parse_config
from distillery.files import hash_file
from distillery.generation.sample_tables import merge_samples
from distillery.measures.score import evaluate
from distillery.pipeline import STAGES
from distillery.planning.first import write_frozen
from distillery.planning.plan import make_plan
from distillery.report.gallery import make_gallery
from distillery.report.page import write_report
from runs import CPU, Run

TINY = Path("results/tiny")
WEIGHTS = "diffusion_pytorch_model.safetensors"
NOT_COMPARED = ("telemetry", "logs", "benchmarks", "report", "plan.json", "plan.html", ".jobs")
"""What holds times, and the locks of jobs."""


def tiny_run() -> Run:
    """The run in this folder."""
    raw = yaml.safe_load(Path("config/config.yaml").read_text())
    return Run(TINY, parse_config(raw, "config/config.yaml"))


def make_all(run: Run) -> None:
    """Everything that the workflow makes."""
    models = [f"samples-{name}" for name in run.config.samples.models]
    for stage in ["run", *JOBS.keys() - {"dataset", "rounds"}, *models]:
        write_frozen(freeze(run.config, stage), TINY / "config" / f"{stage}.json")
    run.encode("train")
    run.encode("eval")
    run.all_targets(2)
    pipeline = run.train_and_export()
    sources = {"teacher": None, "student": pipeline, "untrained": run.export_untrained()}
    for model, source in sources.items():
        shards = [run.samples(part, 2, model, source) for part in range(2)]
        merge_samples(shards, shards[0].parent / "manifest.parquet")
    score(run)
    make_plan(STAGES, run.config, TINY / "plan.json")
    manifests = [run.files.samples(model) for model in run.config.samples.models]
    make_gallery(manifests, run.files.scores, run.files.gallery)
    report(run)


def score(run: Run) -> None:
    models = run.config.samples.models
    manifests = [TINY / "samples" / name / "manifest.parquet" for name in models]
    quality, scores = (TINY / "evaluation" / name for name in ("quality.json", "scores.parquet"))
    evaluate(run.job("evaluation", EvaluationJob), manifests, quality, scores, run.reporter(), CPU)


def report(run: Run) -> None:
    assert isinstance(run.config, Config)
    pages = (TINY / "report" / name for name in ("index.html", "metrics.json"))
    write_report(run.config, run.files, *pages, STAGES)


def in_copy(finished: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a copy of the finished run, times included."""
    copy: Path = shutil.copytree(finished, folder, symlinks=True)
    monkeypatch.chdir(copy)
    return copy


def contents() -> dict[str, str]:
    """The hash of every file of the run that holds no times."""
    paths = (path for path in TINY.rglob("*") if path.is_file() and not path.name.startswith("."))
    kept = (path for path in paths if path.relative_to(TINY).parts[0] not in NOT_COMPARED)
    return {path.as_posix(): hash_file(path) for path in kept}


def flip(pattern: str, place: float = 0.5) -> Path:
    """Flip a bit of a file of the run and leave its time as it was."""
    path = sorted(TINY.glob(pattern))[0]
    content, times = bytearray(path.read_bytes()), path.stat()
    content[int(place * (len(content) - 1))] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return path


def run_shell(command: str) -> None:
    """A command as a user would give it."""
    environ = forks.environ(PYTHONPATH=str(REPOSITORY / "workflow"))
    done = subprocess.run(
        ["bash", "-c", command], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
