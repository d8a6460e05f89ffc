"""Times by a small run: its configuration, the rates in its telemetry, and the plan of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from checkout import REPOSITORY
from distillery.config.run import Config, RunConfig, parse_config
from distillery.evaluation.timeline import Attempt, hold_against_plan
from distillery.planning.duration import plan_duration, summarise_duration
from distillery.planning.probe import (
    Planned,
    Rate,
    amounts_of,
    kind_of_probe,
    plan_times,
    probe_config,
    prompts_needed,
    rates_of,
)
from distillery.run_folder import RunFolder
from distillery.telemetry import Event

SHIPPED = ("config.yaml", "sdxl-4-steps.yaml", "flux-lora-4-steps.yaml", "dataset.yaml")


def shipped(name: str, **training: Any) -> RunConfig:
    raw = yaml.safe_load((REPOSITORY / "config" / name).read_text())
    if training:
        raw["training"] |= training
    return parse_config(raw, name)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_small_run_is_a_run(name: str) -> None:
    config = shipped(name)
    files = {split: f"{split}.csv" for split in prompts_needed(config)}
    raw = probe_config(config) | {"prompts": files}
    small = parse_config(json.loads(json.dumps(raw)), "the probe")
    assert small.run == f"{config.run}-probe"
    assert small.teacher == config.teacher
    assert small.samples.models == config.samples.models
    if isinstance(small, Config) and isinstance(config, Config):
        assert small.student == config.student
        assert small.training.global_batch_size == config.training.global_batch_size
        assert small.training.num_samples <= 16 * config.training.global_batch_size
        needed = prompts_needed(config)["train"] * config.targets.samples_per_prompt
        assert needed >= 2 * config.targets.chunk_size, "the first of two loads and compiles"


def test_a_finish_is_left_out_of_the_small_run() -> None:
    rounds = {"count": 2, "samples": 320}
    adversarial = {"samples": 320}
    config = shipped("config.yaml", rounds=rounds, adversarial=adversarial, rollout_samples=32)
    small = probe_config(config)["training"]
    assert small["rounds"] is None
    assert small["adversarial"] is None
    assert small["rollout_samples"] == 0


def test_how_much_is_done_is_no_other_kind_of_probe() -> None:
    kind = kind_of_probe(shipped("config.yaml"))
    assert kind == kind_of_probe(shipped("config.yaml", num_samples=16000))
    assert kind != kind_of_probe(shipped("config.yaml", global_batch_size=64, micro_batch_size=8))
    assert kind != kind_of_probe(shipped("dataset.yaml"))


def attempt(job: str, begin_s: float, end_s: float, *pieces: tuple[int, float, dict[str, Any]]):  # type: ignore[no-untyped-def]
    """An attempt with pieces of work: items, seconds, facts."""
    stage = job.split("-")[0]
    work = [
        Event("work", stage, job, "cpu", "host", 0.0, seconds, items, facts)
        for items, seconds, facts in pieces
    ]
    return Attempt(stage, job, "host", "cpu", begin_s, end_s, work=work)


def test_the_first_piece_loads_and_counts_as_the_start() -> None:
    rates = rates_of([attempt("targets-0-of-1", 0, 40, (64, 25.0, {}), (64, 10.0, {}))])
    assert rates["targets"].item_s == pytest.approx(10 / 64)
    assert rates["targets"].start_s == pytest.approx(20), "5 s of it outside of work"


def test_jobs_of_one_piece_tell_by_their_difference() -> None:
    jobs = [
        attempt("embeddings-train", 0, 9, (200, 8.0, {})),
        attempt("embeddings-eval", 0, 5, (100, 4.0, {})),
    ]
    rate = rates_of(jobs)["embeddings"]
    assert rate.item_s == pytest.approx(0.04)
    assert rate.start_s == pytest.approx(1.0)


def test_a_training_counts_the_samples_of_all_processes() -> None:
    def process(name: str, mine: int) -> Attempt:
        seen = [(mine, 8.0, {"samples_seen": 64}), (mine, 4.0, {"samples_seen": 128})]
        found: Attempt = attempt(name, 0, 20, *seen)
        return found

    rates = rates_of([process("training", 32), process("training-rank-1", 32)])
    assert rates == {"training": Rate(start_s=12.0, item_s=4 / 64, num_processes=2)}


def test_each_model_has_its_own_rate() -> None:
    jobs = [
        attempt("samples-a-b-0-of-1", 0, 3, (8, 2.0, {}), (8, 1.0, {})),
        attempt("samples-c-0-of-1", 0, 30, (8, 20.0, {}), (8, 10.0, {})),
    ]
    assert {kind: rate.item_s for kind, rate in rates_of(jobs).items()} == {
        "samples-a-b": 1 / 8,
        "samples-c": 10 / 8,
    }


def test_times_add_up_over_jobs_and_workers() -> None:
    rates = {
        "targets": Rate(5.0, 0.1),
        "training": Rate(10.0, 0.01, num_processes=4),
        "samples-a": Rate(1.0, 0.5),
        "samples-b": Rate(1.0, 0.25),
    }
    amounts = [
        ("targets", 8, 1000), ("training", 1, 2000), ("samples-a", 2, 100), ("samples-b", 2, 100),
        ("report", 1, 0), ("targets", 0, 0),
    ]  # fmt: skip
    assert plan_times(rates, amounts, num_workers=4) == [
        Planned("targets", 8, busy_s=140.0, wall_s=35.0),
        Planned("training", 1, busy_s=120.0, wall_s=30.0),
        Planned("samples", 4, busy_s=79.0, wall_s=39.5),
    ]


def test_the_plan_tells_time_where_it_was_measured(tmp_path: Path) -> None:
    config, run = shipped("config.yaml"), RunFolder(tmp_path)
    num_prompts = {"train": 1024, "eval": 256}
    assert plan_duration(config, num_prompts, run, 0, 2) == {}
    assert "measures it" in summarise_duration({}, "results/demo/probe.json")[0]
    rates = {
        kind: {"start_s": 2.0, "item_s": 0.1, "num_processes": 1}
        for kind, _, _ in amounts_of(config, num_prompts, 2)
    }
    run.probe.write_text(json.dumps({"kind": kind_of_probe(config), "rates": rates}))
    time = plan_duration(config, num_prompts, run, 0, 2)
    by_stage = {row["stage"]: row for row in time["stages"]}
    assert by_stage["targets"]["busy_s"] == pytest.approx(4 * 2 + 1024 * 0.1)
    assert by_stage["targets"]["wall_s"] == pytest.approx((4 * 2 + 1024 * 0.1) / 2)
    assert by_stage["samples"]["num_jobs"] == 10
    assert time["gpu_hours"] is None
    assert plan_duration(config, num_prompts, run, 4, 2)["gpu_hours"] is not None
    lines = summarise_duration(time, "x")
    assert lines[0].startswith("  time          about ")
    assert "targets" in lines[1]


@pytest.mark.parametrize("content", ["{", "{}", '{"kind": "another", "rates": {}}'])
def test_a_probe_of_no_use_is_said(tmp_path: Path, content: str) -> None:
    run = RunFolder(tmp_path)
    run.probe.write_text(content)
    time = plan_duration(shipped("config.yaml"), {"train": 8, "eval": 8}, run, 0, 2)
    assert "remove it and ask for it again" in summarise_duration(time, "x")[0]


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    run, config = RunFolder(tmp_path), shipped("config.yaml", rollout_samples=320)
    run.probe.write_text(json.dumps({"kind": kind_of_probe(config), "rates": {}}))
    time = plan_duration(config, {"train": 8, "eval": 8}, run, 0, 2)
    assert "take more" in time["note"]


def test_planned_and_measured_stand_side_by_side() -> None:
    plan = {"time": {"stages": [{"stage": "targets", "busy_s": 10.0}, {"stage": "report"}]}}
    attempts = [attempt("targets-0-of-2", 0, 6), attempt("targets-1-of-2", 2, 8)]
    (row,) = hold_against_plan(attempts, plan)
    assert (row.planned_s, row.measured_s, row.ratio) == (10.0, 12.0, 1.2)
    assert hold_against_plan(attempts, None) == []
    assert hold_against_plan(attempts, {}) == []
