"""A short demo through a real SLURM: one-GPU jobs, two-GPU training that meets its time limit.

Not part of `make test`, since it needs root and twenty minutes: `make test-slurm`.
"""

import itertools
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

import cluster
from distillery.telemetry import Event, read_events
from training_phases import phases

REPOSITORY = Path(__file__).parents[2]
RUN = "slurm-demo"
TIMEOUT_S = 1500
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(TIMEOUT_S)]


@pytest.fixture(scope="module")
def finished_run(slurm: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demo's results and Snakemake's output, from a clone, on the test cluster."""
    checkout = tmp_path_factory.mktemp("slurm") / "distillery"
    subprocess.run(["git", "clone", "--quiet", REPOSITORY, checkout], check=True)
    config = yaml.safe_load((checkout / "config/config.yaml").read_text())
    config["run"] = RUN
    # Enough to meet the first limit.
    config["training"]["phases"] = phases(stored=4800)
    config["samples"]["num_prompts"] = 16
    del config["samples"]["steps"]
    (checkout / "config/slurm-demo.yaml").write_text(yaml.safe_dump(config))
    profile = yaml.safe_load((checkout / "profiles/slurm/config.yaml").read_text())
    profile["slurm-init-seconds-before-status-checks"] = 3
    profile["retries"] = 10  # a slow machine meets more limits than the first
    profile["default-resources"] |= {"mem_mb": 1500, "runtime": 15}
    # One minute is SLURM's smallest limit; training is longer, so it must be survived. Each attempt
    # has a minute more, or one of a busy machine would end before its first update.
    profile["set-resources"]["training"] |= {
        "mem_mb": 1500, "runtime": "attempt", "slurm_extra": "'--signal=TERM@20'"
    }  # fmt: skip
    (checkout / "test-profile").mkdir()
    (checkout / "test-profile/config.yaml").write_text(yaml.safe_dump(profile))
    result = subprocess.run(
        ["snakemake", "--profile", "test-profile", "--configfile", "config/slurm-demo.yaml"],
        cwd=checkout, capture_output=True, text=True, timeout=TIMEOUT_S - 60, check=False,
        env=os.environ | {
            "PYTHONPATH": str(checkout / "workflow"),
            "DISTILLERY_PRETEND_GPUS": str(cluster.NUM_GPUS),
        },
    )  # fmt: skip
    output = result.stdout + result.stderr
    (REPOSITORY / "results").mkdir(exist_ok=True)
    (REPOSITORY / "results/slurm-demo.log").write_text(output)
    assert result.returncode == 0, output[-4000:]
    return checkout / "results" / RUN, output


def starts(run: Path, stage: str) -> list[Event]:
    return [e for e in read_events(run / "telemetry") if e.stage == stage and e.kind == "start"]


def test_every_shard_job_runs_once_and_sees_one_gpu(finished_run: tuple[Path, str]) -> None:
    run, _ = finished_run
    for stage in ("embeddings", "targets", "samples"):
        events = starts(run, stage)
        assert len(events) == len({event.job for event in events}) > 0
        for event in events:
            assert re.fullmatch(r"\d+", event.facts["visible_devices"]), event


def test_jobs_beside_each_other_never_share_a_gpu(finished_run: tuple[Path, str]) -> None:
    run, _ = finished_run
    spans: dict[tuple[str, str], list[tuple[float, float]]] = {}
    events = [e for e in read_events(run / "telemetry") if e.stage in ("targets", "samples")]
    for start in (event for event in events if event.kind == "start"):
        end = next(e for e in events if e.kind == "end" and e.job == start.job)
        key = (start.facts["slurm_node"], start.facts["visible_devices"])
        spans.setdefault(key, []).append((start.begin_s, end.end_s))
    for times in spans.values():
        times.sort()
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(times))


def test_training_has_two_gpus_and_survives_its_time_limit(
    finished_run: tuple[Path, str],
) -> None:
    run, output = finished_run
    events = starts(run, "training")
    tries = {event.facts["slurm_job"] for event in events}
    assert len(tries) >= 2, "the time limit was not met"
    assert "training is tried again" in output
    for event in events:
        assert len(event.facts["visible_devices"].split(",")) == 2
    assert {event.job for event in events} == {"training", "training-rank-1"}


def test_the_report_is_there(finished_run: tuple[Path, str]) -> None:
    run, _ = finished_run
    metrics = json.loads((run / "report/metrics.json").read_text())
    assert metrics["quality"]
    assert (run / "report/index.html").stat().st_size > 10_000
