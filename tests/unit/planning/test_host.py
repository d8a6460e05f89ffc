"""Host memory and time of jobs, against what a cluster's profile asks for."""

from pathlib import Path

from distillery.config.run import parse_config
from distillery.files import read_json
from distillery.pipeline import STAGES
from distillery.planning.host import on_requests
from distillery.planning.jobs import StageJobs
from distillery.planning.plan import make_plan
from distillery.planning.requests import Request, read_requests, write_requests
from runs import settings


def test_what_is_not_asked_for_is_not_doubted() -> None:
    jobs = [StageJobs("targets", 4, gpus=1)]
    time = {"stages": [{"stage": "targets", "gpu_s": 4 * 3600.0}]}
    needs = {"targets": 10**10}
    assert list(on_requests({}, needs, time, jobs)) == []
    assert list(on_requests({"targets": Request(None, None)}, needs, time, jobs)) == []
    assert list(on_requests({"targets": Request(10_000, 60)}, needs, time, jobs)) == []
    assert len(list(on_requests({"targets": Request(9_999, 59)}, needs, time, jobs))) == 2


def test_the_plan_doubts_what_a_cluster_is_asked_for(teacher: Path, tmp_path: Path) -> None:
    asked = {"training": Request(1, 5, 2)}
    assert read_requests(write_requests(asked)) == asked
    config = parse_config(settings(tmp_path, teacher), "my.yaml")
    for requests, is_doubted in ((write_requests(asked), True), (None, False)):
        output = tmp_path / "results/plan.json"
        make_plan(STAGES, config, output, requests=requests)
        plan = read_json(output)
        assert plan["requests"] == (requests or {})
        doubts = [it for it in plan["advice"] if it.startswith("training asks the cluster for")]
        assert bool(doubts) == is_doubted
    loads = {"embeddings", "targets", "samples", "student", "training", "export"}
    assert plan["host_bytes"].keys() == loads
    assert plan["host_bytes"]["embeddings"] != plan["host_bytes"]["targets"]
    costs = {part["title"]: dict(part["facts"]) for part in plan["page"]["parts"]}["Costs"]
    assert "training " in costs["host memory"]
