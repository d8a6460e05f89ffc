"""A job that is killed: what was finished is not made again, and the end is the same bytes."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

import forks
from distillery.config.jobs import SamplesJob, TargetsJob
from runs import Run, make_run
from tiny import tiny_prompts

NUM_PROMPTS = 48
"""Enough that a job is still at work when it is killed."""


@pytest.fixture(scope="module")
def embedded(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that is ready for targets and samples."""
    run = make_run(tmp_path_factory.mktemp("killed"), teacher, targets={"num_shards": 1})
    for split in ("train", "eval"):
        table = tiny_prompts(NUM_PROMPTS)
        table.to_csv(getattr(run.config.prompts, split), index=False)
        run.encode(split)
    run.job("targets", TargetsJob)
    run.job("samples-teacher", SamplesJob)
    return run


def start(run: Run, stage: str) -> "subprocess.Popen[bytes]":
    """The stage's script, as its rule starts it."""
    options = {
        "targets": ("targets", "train", "targets/shard-0-of-1.json", []),
        "samples": (
            "samples-teacher", "eval", "samples/teacher/shard-0-of-1.parquet",
            ["--model", "teacher"],
        ),
    }  # fmt: skip
    config, split, output, more = options[stage]
    return subprocess.Popen(
        [
            "python", "-m", f"distillery.stages.{stage}",
            "--config", str(run.folder / "config" / f"{config}.json"),
            "--prompts", str(run.prompts(split)),
            "--embeddings", str(run.embeddings(split)),
            "--shard", "0/1",
            "--output", str(run.folder / output),
            "--log-file", str(run.folder / "logs" / f"{stage}.log"),
            *more,
        ],
        env=forks.environ(),
    )  # fmt: skip


def finished(run: Run, pattern: str) -> dict[Path, int]:
    """Files that are there, and when they were written."""
    return {path: path.stat().st_mtime_ns for path in run.folder.glob(pattern)}


def kill_midway(process: "subprocess.Popen[bytes]", run: Run, pattern: str) -> dict[Path, int]:
    """Kill the process as soon as some of its files are there; returns those."""
    deadline = time.monotonic() + 60
    while len(finished(run, pattern)) < 2 and time.monotonic() < deadline:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    return finished(run, pattern)


@pytest.fixture(params=["targets", "samples"])
def stage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.slow
def test_a_killed_job_resumes_where_it_stopped(embedded: Run, stage: str) -> None:
    pattern, total = {
        "targets": ("targets/*/chunk-*.safetensors", NUM_PROMPTS // 4),
        "samples": ("samples/teacher/*/*.png", NUM_PROMPTS),
    }[stage]
    before = kill_midway(start(embedded, stage), embedded, pattern)
    assert 2 <= len(before) < total
    assert not list(embedded.folder.glob(f"{stage}/**/shard-*")), "nobody lists it yet"

    make_again = embedded.targets if stage == "targets" else embedded.samples
    content = embedded.chunks if stage == "targets" else embedded.images
    make_again()
    after = finished(embedded, pattern)
    assert len(after) == total
    assert all(after[path] == written for path, written in before.items())

    resumed = content()
    for path in after:
        path.unlink()
    make_again()
    assert content() == resumed
