"""Times by a small run: its configuration, the rates in its telemetry, and the plan of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from checkout import REPOSITORY
from distillery.config.run import Config, RunConfig, parse_config
from distillery.pipeline import STAGES
from distillery.planning.duration import is_named, on_duration, plan_duration
from distillery.planning.gpus import Gpus
from distillery.planning.jobs import Room, StageJobs, list_jobs
from distillery.planning.probe import (
    Amount,
    Planned,
    Rate,
    amounts_of,
    kind_of_probe,
    plan_times,
    probe_config,
    prompts_needed,
    rates_of,
    wall_time,
)
from distillery.planning.scaling import Networks, networks_of, scale_rates
from distillery.report.timeline import Attempt, hold_against_plan
from distillery.run_folder import RunFolder
from distillery.stage import Counts
from distillery.telemetry import Event
from probes import write_probe
from training_phases import phases

SHIPPED = ("config.yaml", "sdxl-4-steps.yaml", "flux-lora-4-steps.yaml", "dataset.yaml")


ROUNDS = phases(stored=7360, rounds={"count": 2, "samples": 320})


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
    some = phases(stored=320, rounds={"count": 2, "samples": 320}, adversarial=320, rollouts=32)
    small = probe_config(shipped("config.yaml", phases=some))["training"]
    assert [phase["learn"] for phase in small["phases"]] == ["stored"]


def test_how_much_is_done_is_no_other_kind_of_probe() -> None:
    kind = kind_of_probe(shipped("config.yaml"))
    assert kind == kind_of_probe(shipped("config.yaml", phases=phases(stored=16000)))
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


ROOM_OF_FOUR = Room(
    [
        StageJobs("targets", 8, gpus=1),
        StageJobs("training", 1, processes=4, gpus=4),
        StageJobs("samples", 4, gpus=2),
        StageJobs("export", 1),
    ],
    num_gpus=4,
    cpu_jobs=16,
)


def test_times_add_up_over_jobs_and_gpus() -> None:
    rates = {
        "targets": Rate(5.0, 0.1),
        "training": Rate(10.0, 0.01, num_processes=4),
        "samples-a": Rate(1.0, 0.5),
        "samples-b": Rate(1.0, 0.25),
        "export": Rate(7.0, 0.0),
    }
    amounts = [
        Amount("targets", 8, 1000),
        Amount("training", 1, 2000),
        Amount("samples-a", 2, 100),
        Amount("samples-b", 2, 100),
        Amount("export"),
        Amount("report"),
        Amount("targets", 0, 0),
    ]
    assert plan_times(rates, amounts, ROOM_OF_FOUR) == [
        Planned("targets", 8, busy_s=140.0, wall_s=35.0, gpu_s=140.0),
        Planned("training", 1, busy_s=120.0, wall_s=30.0, gpu_s=120.0),
        # Two GPUs a job, so that two jobs run at once: those of one model, then of the other.
        Planned("samples", 4, busy_s=79.0, wall_s=39.5, gpu_s=158.0),
        Planned("export", 1, busy_s=7.0, wall_s=7.0, gpu_s=0.0),
    ]


@pytest.mark.parametrize(("num_jobs", "num_gpus"), [(9, 8), (4, 3), (5, 4), (16, 8), (1, 8)])
def test_equal_jobs_run_in_waves_of_which_the_last_may_have_room(
    num_jobs: int, num_gpus: int
) -> None:
    """Nine jobs of 110 s on eight GPUs take 220 s."""
    room = Room([StageJobs("targets", num_jobs, gpus=1)], num_gpus, cpu_jobs=1)
    (row,) = plan_times(
        {"targets": Rate(10.0, 1.0)}, [Amount("targets", num_jobs, 100 * num_jobs)], room
    )
    assert row.wall_s == 110 * -(-num_jobs // num_gpus)
    assert row.busy_s == row.gpu_s == 110 * num_jobs


def test_a_job_begins_where_another_has_ended() -> None:
    assert wall_time([5, 1, 1, 1, 4], 2) == 7, "1 + 1 + 1 + 4 beside 5"
    assert wall_time([2, 3], 8) == 3
    assert wall_time([2, 3], 1) == 5


def test_rounds_wait_for_each_other(tmp_path: Path) -> None:
    """Two rounds of three jobs, for four at once: twice the time of one job, not that of half."""
    config = shipped("config.yaml", phases=ROUNDS)
    assert isinstance(config, Config)
    config = config.model_copy(
        update={"targets": config.targets.model_copy(update={"num_shards": 3})}
    )
    rates = dict.fromkeys(("round_states", "training_before_round", "training"), Rate(2.0, 0.1))
    room = Room(list_jobs(STAGES, config, Gpus(), 1), 0, cpu_jobs=4)
    rows = {
        row.stage: row
        for row in plan_times(
            rates, amounts_of(STAGES, config, Counts(NUM_PROMPTS, NUM_TEXTS)), room
        )
    }
    assert rows["round_states"].wall_s == pytest.approx(2 * (2 + 1024 / 3 * 0.1))
    assert rows["round_states"].busy_s == pytest.approx(3 * rows["round_states"].wall_s)
    before = rows["training_before_round"]
    assert before.wall_s == before.busy_s == pytest.approx(2 * 2 + (8000 - 320) * 0.1)


def test_a_teacher_of_several_gpus_does_not_multiply_the_trainings() -> None:
    raw = yaml.safe_load((REPOSITORY / "config/sdxl-4-steps.yaml").read_text())
    raw["teacher"]["num_gpus"] = 2
    config = parse_config(raw, "sdxl")
    by_stage = {row.stage: row for row in list_jobs(STAGES, config, Gpus(4), num_processes=4)}
    assert (by_stage["training"].processes, by_stage["training"].gpus) == (4, 4)
    assert by_stage["targets"].gpus == by_stage["samples"].gpus == 2
    assert by_stage["evaluation"].gpus == 1
    assert by_stage["export"].gpus == by_stage["report"].gpus == 0
    too_few = Room(list_jobs(STAGES, config, Gpus(1), 1), 1, cpu_jobs=64)
    assert too_few.at_once("targets") == 1, "not as many as there are cores"
    assert Room([StageJobs("targets", 4, gpus=2)], 1, cpu_jobs=64).at_once("targets") == 1


NUM_PROMPTS = {"train": 1024, "eval": 256}
NUM_TEXTS = {"train": 900, "eval": 101}
ONE = Networks(calls_per_step=2, size=0.5, num_processes=1), None


def measured(run: RunFolder, config: RunConfig, *gpus: str, **rates: float) -> None:
    write_probe(run.probe, config, NUM_PROMPTS, *gpus, **rates)


def times(config: RunConfig, run: RunFolder, num_gpus: int = 0) -> dict[str, Any]:
    room = Room(list_jobs(STAGES, config, Gpus(num_gpus), 1), num_gpus, cpu_jobs=2)
    return plan_duration(STAGES, config, Counts(NUM_PROMPTS, NUM_TEXTS), run, room, ONE)


def by_stage(time: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["stage"]: row for row in time["stages"]}


def test_the_plan_tells_time_where_it_was_measured(tmp_path: Path) -> None:
    config, run = shipped("config.yaml"), RunFolder(tmp_path)
    assert times(config, run) == {}
    measured(run, config)
    time = times(config, run)
    rows = by_stage(time)
    assert rows["targets"]["busy_s"] == pytest.approx(4 * 2 + 1024 * 0.1)
    assert rows["targets"]["wall_s"] == pytest.approx((4 * 2 + 1024 * 0.1) / 2)
    assert rows["samples"]["num_jobs"] == 14
    assert time["gpu_hours"] is None
    assert time["counted"] == []
    on_gpus = times(config, run, num_gpus=4)
    gpu_s = sum(row["gpu_s"] for row in on_gpus["stages"])
    assert on_gpus["gpu_hours"] == pytest.approx(gpu_s / 3600)
    held = by_stage(on_gpus)["training"]
    assert held["gpu_s"] == pytest.approx(4 * held["wall_s"]), "it holds all four"


def test_rounds_take_the_passes_that_they_have(tmp_path: Path) -> None:
    """The demo: 24 guided steps of the teacher for a trajectory, 2 steps of a student."""
    config, run = shipped("config.yaml", phases=ROUNDS), RunFolder(tmp_path)
    measured(run, config, targets=4.8)
    rows, of_pass = by_stage(times(config, run)), 4.8 / 48
    jobs_s = 2 * 4 * 2.0
    states = jobs_s + 2 * 1024 * 2 * of_pass * 0.5
    assert rows["round_states"]["busy_s"] == pytest.approx(states)
    assert rows["round_targets"]["busy_s"] == pytest.approx(jobs_s + 2 * 1024 * 12 * 2 * of_pass)
    before = rows["training_before_round"]["busy_s"]
    assert before == pytest.approx(2 * 2.0 + (8000 - 320) * 0.1)
    assert before + rows["training"]["busy_s"] == pytest.approx(3 * 2.0 + 8000 * 0.1)
    assert "round_states" in times(config, run)["counted"]


def more_s(run: RunFolder, **last: Any) -> float:
    """Seconds beyond those of plain updates, of which one sample takes 0.3 s: 0.1 s a pass."""
    (samples,) = (phase["samples"] for phase in phases(**last))
    config = shipped("config.yaml", phases=phases(stored=8000 - samples, **last))
    measured(run, config, targets=4.8, training=0.3)
    assert times(config, run)["counted"] == ["training"]
    busy: float = by_stage(times(config, run))["training"]["busy_s"]
    return busy - 2.0 - 8000 * 0.3


def test_finishes_take_the_passes_that_they_have(tmp_path: Path) -> None:
    run, of_teacher = RunFolder(tmp_path), 4.8 / 48
    # Half a step to where it stands, then one guided step of the teacher.
    online = {"samples": 800, "steps": 1}
    assert more_s(run, online=online) == pytest.approx(800 * (0.5 * 0.1 + 2 * of_teacher))
    assert more_s(run, rollouts=320) == pytest.approx(320 * 0.3), "a second step"
    assert more_s(run, adversarial=320) == pytest.approx(320 * 6 / 2 * 0.1)


def test_processes_that_wait_for_one_teacher_are_counted(tmp_path: Path) -> None:
    rates = {"targets": Rate(0.0, 4.8), "training": Rate(0.0, 0.3, num_processes=2)}
    online = phases(online={"samples": 8000, "steps": 1})
    config = shipped("config.yaml", phases=online, held_out_prompts=0)
    assert isinstance(config, Config)

    def of(processes: int, answered: int) -> float:
        networks = Networks(2, 1.0, processes, answered)
        return scale_rates(config, rates, networks, True)["training"].item_s

    # 0.6 s of one process for an update; half a step of 0.2 s; two passes of the teacher's 0.1 s.
    assert of(4, 1) == pytest.approx((0.6 + 0.1 + 0.2) / 4)
    assert of(4, 4) == pytest.approx((0.6 + 0.1) / 4 + 0.2)


def test_a_teacher_in_the_hosts_memory_has_no_estimate(tmp_path: Path) -> None:
    machine = {"world_size": 2, "num_nodes": 1}
    training = {"machine": machine, "teacher": {"place": "shared"}}
    networks, unknown = networks_of(training, 2, 1.0)
    assert networks.num_answered == 1
    assert unknown is not None
    assert "without the answers" in unknown
    assert networks_of({"machine": machine, "teacher": {"place": "one_rank"}}, 2, 1.0) == (
        Networks(2, 1.0, 2, num_answered=2),
        None,
    )


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"kind": "another", "rates": {}}'])
def test_a_probe_of_no_use_is_said(tmp_path: Path, content: str) -> None:
    run = RunFolder(tmp_path)
    run.probe.write_text(content)
    (note,) = map(str, on_duration(times(shipped("config.yaml"), run), Gpus(), str(run.probe)))
    assert "remove it and ask for it again" in note


def test_a_probe_of_another_gpu_is_said(tmp_path: Path) -> None:
    config, run = shipped("config.yaml"), RunFolder(tmp_path)
    measured(run, config, "NVIDIA H200")
    time = times(config, run, num_gpus=1)
    assert not list(on_duration(time, Gpus(1, names=("H200",)), "probe.json"))
    assert not list(on_duration(time, Gpus(1, names=("NVIDIA H200",)), "probe.json"))
    (note,) = map(str, on_duration(time, Gpus(1, names=("H100",)), "probe.json"))
    assert note.startswith("probe.json was measured on NVIDIA H200 and the plan is for H100")
    (note,) = map(str, on_duration(times(config, run), Gpus(), "probe.json"))
    assert "is for the CPU" in note


@pytest.mark.parametrize(
    ("name", "driver", "expected"),
    [
        ("H100", "NVIDIA H100 80GB HBM3", True),
        ("RTX4090", "NVIDIA GeForce RTX 4090", True),
        ("RTX 4090", "NVIDIA GeForce RTX 4090", True),
        ("A100", "NVIDIA A100-SXM4-80GB", True),
        ("A10", "NVIDIA A100-SXM4-80GB", False),
        ("L4", "NVIDIA L40S", False),
    ],
)
def test_names_of_gpus_are_compared_by_words(name: str, driver: str, expected: bool) -> None:
    assert is_named(name, driver) == expected


def test_trainings_before_rounds_are_held_against_their_own_plan() -> None:
    """All report as stage `training`; their jobs' names tell them apart."""
    rows = [
        {"stage": "training_before_round", "busy_s": 100.0},
        {"stage": "training", "busy_s": 50.0},
    ]
    attempts = [
        attempt("training-0-rounds", 0, 60),
        attempt("training-0-rounds-rank-1", 0, 20),
        attempt("training-11-rounds", 60, 80),
        attempt("training", 80, 120),
        attempt("training-rank-1", 80, 90),
    ]
    found = {row.stage: row for row in hold_against_plan(attempts, {"time": {"stages": rows}})}
    assert found["training_before_round"].measured_s == 100.0
    assert found["training"].measured_s == 50.0


def test_planned_and_measured_stand_side_by_side() -> None:
    plan = {"time": {"stages": [{"stage": "targets", "busy_s": 10.0}, {"stage": "report"}]}}
    attempts = [attempt("targets-0-of-2", 0, 6), attempt("targets-1-of-2", 2, 8)]
    (row,) = hold_against_plan(attempts, plan)
    assert (row.planned_s, row.measured_s, row.ratio) == (10.0, 12.0, 1.2)
    assert hold_against_plan(attempts, None) == []
    assert hold_against_plan(attempts, {}) == []
