"""A probe that is killed leaves nothing at work, and the next one begins anew."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import forks
from configs import changed
from distillery.config.run import parse_config
from distillery.files import write_json

pytestmark = pytest.mark.slow
SNAKEFILE = """
rule all:
    input: "done-0", "done-1", "done-2"
rule targets:
    output: "done-{number}"
    log: "results/demo-probe/logs/targets-{number}.log"
    shell: "touch results/demo-probe/at-work-{wildcards.number}; sleep SECONDS; touch {output}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A frozen configuration and its prompts."""
    config = parse_config(changed(run="demo"), "a test").model_dump(mode="json")
    write_json(tmp_path / "results/demo/config/run.json", config)
    for split in ("train", "eval"):
        (tmp_path / f"{split}.csv").write_text("prompt\na circle\na square\n")
    return tmp_path


def start(folder: Path, seconds: float, in_fork: bool = False) -> "subprocess.Popen[bytes]":
    """A probe whose small run has three jobs, one at a time.

    One that is killed or waited for is a process of its own, with a Snakemake of its own.
    """
    (folder / "Snakefile").write_text(SNAKEFILE.replace("SECONDS", str(seconds)))
    words = ["--config", "results/demo/config/run.json", "--snakefile", "Snakefile"]
    words += ["--cores", "1", "--output", "results/demo/probe.json"]
    return subprocess.Popen(
        ["python" if in_fork else sys.executable, "-m", "distillery.stages.probe", *words],
        cwd=folder,
        env=forks.environ() if in_fork else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def wait_until(what: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not what():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.05)


def small_runs_of(folder: Path) -> list[int]:
    """Processes of Snakemake that make a small run here."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text()
            if "results/demo-probe/probe.json" in words and (process / "cwd").resolve() == folder:
                found.append(int(process.name))
        except OSError:  # it has ended
            continue
    return found


def test_the_next_probe_removes_what_a_killed_one_left(folder: Path) -> None:
    small = folder / "results/demo-probe"
    first = start(folder, seconds=2)
    wait_until(lambda: any(small.glob("at-work-*")))
    first.kill()
    first.wait()
    assert small.is_dir()
    assert (small / "probe.json").is_file()
    wait_until(lambda: not small_runs_of(folder))
    assert len(list(folder.glob("done-*"))) == 1, "no other job is begun"

    second = start(folder, seconds=0, in_fork=True)
    said = second.communicate(timeout=60)[0].decode()
    assert second.returncode == 0, said
    assert json.loads((folder / "results/demo/probe.json").read_text())["rates"] == {}
    assert not small.exists()
    note = json.loads((folder / "results/demo/telemetry/probe.progress").read_text())
    assert (note["done"], note["total"], note["unit"]) == (4, 4, " jobs")


def test_a_second_probe_waits_for_one_that_outlived_its_snakemake(folder: Path) -> None:
    first = start(folder, seconds=2)
    wait_until(lambda: any((folder / "results/demo-probe").glob("at-work-*")))
    second = start(folder, seconds=0, in_fork=True)
    said = second.communicate(timeout=60)[0].decode()
    assert f"waiting for process {first.pid} of" in said
    assert (first.wait(10), second.returncode) == (0, 0), said
    assert not (folder / "results/demo-probe").exists()


def test_a_run_of_the_user_s_with_the_probe_s_name_is_kept(folder: Path) -> None:
    mine = folder / "results/demo-probe/report/index.html"
    mine.parent.mkdir(parents=True)
    mine.touch()
    said = start(folder, seconds=0, in_fork=True).communicate(timeout=60)[0].decode()
    assert "error: results/demo-probe is not of a probe, which would use and remove it" in said
    assert mine.exists()
