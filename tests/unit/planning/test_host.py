"""Host memory and time of jobs, against what a cluster's profile asks for."""

from pathlib import Path

from distillery.config.run import parse_config
from distillery.files import read_json
from distillery.planning.first import plan_first
from distillery.planning.host import advise_requests
from distillery.planning.jobs import StageJobs
from distillery.planning.requests import Request, read_requests, write_requests
from distillery.run_folder import RunFolder
from distillery.stages.plan import make_plan
from runs import settings


def test_what_is_not_asked_for_is_not_doubted() -> None:
    jobs = [StageJobs("targets", 4, gpus=1)]
    time = {"stages": [{"stage": "targets", "gpu_s": 4 * 3600.0}]}
    needs = {"targets": 10**10}
    assert advise_requests({}, needs, time, jobs) == []
    assert advise_requests({"targets": Request(None, None)}, needs, time, jobs) == []
    assert advise_requests({"targets": Request(10_000, 60)}, needs, time, jobs) == []
    assert len(advise_requests({"targets": Request(9_999, 59)}, needs, time, jobs)) == 2


def test_the_plan_doubts_and_is_made_again_for_other_requests(
    teacher: Path, tmp_path: Path
) -> None:
    config = parse_config(settings(tmp_path, teacher), "my.yaml")
    run = RunFolder(tmp_path / "results" / config.run)
    asked = {"training": Request(1, 5, 2)}
    assert read_requests(write_requests(asked)) == asked
    sources = config.prompts.files
    plan_first(config, run, sources, requests=asked)
    plan = read_json(run.plan)
    assert any("training asks the cluster for mem_mb: 1 and needs" in it for it in plan["advice"])
    written = run.plan.stat().st_mtime_ns
    plan_first(config, run, sources, requests=asked)
    plan_first(config, run, sources)
    assert run.plan.stat().st_mtime_ns == written
    plan_first(config, run, sources, requests={"training": Request(10**6, 5, 2)})
    assert not any("asks the cluster" in it for it in read_json(run.plan)["advice"])
    make_plan(config, tmp_path / "other/plan.json")
    assert read_json(tmp_path / "other/plan.json")["requests"] == {}
