"""Time left, replayed from recorded runs: told only where it is about right."""

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from distillery.run_folder import RunFolder
from distillery.terminal.board import Board
from distillery.terminal.jobs import Job

SMALL = """
freeze 0 3; freeze 0 3; freeze 3 6; freeze 3 6; freeze 6 8; freeze 6 9; freeze 8 11; freeze 9
12; freeze 11 14; freeze 12 16; freeze 14 18; freeze 16 20; prompts 18 38; prompts 20 39; freeze
38 40; freeze 39 42; student 40 94; embeddings 42 99; export 94 139; targets 100 208; embeddings
139 200; samples 200 284; samples 208 290; samples 285 422; samples 290 421; samples 421 490;
samples 422 493; samples 490 579; merge_samples 493 500; targets 500 591; samples 579 621;
merge_targets 591 607; merge_samples 607 610; merge_samples 610 613; training 621 723;
merge_samples 723 732; export 723 787; samples 787 887; samples 787 895; merge_samples 895 903;
evaluation 903 972; gallery 972 991; report 992 1036; all 1036 1036
"""
"""Rule, begin and end in seconds: 44 jobs on two busy cores, most of them loading."""
PASSES = {"samples": 124.8, "targets": 1024.0, "training": 1920.0}
STEADY = "; ".join(
    ["freeze 0 1", "embeddings 1 31"]
    + [f"targets {31 + 600 * it} {631 + 600 * it}" for it in range(10)]
    + ["training 6031 12031", "samples 12031 12331", "report 12331 12361"]
)
"""A long run whose jobs compute far longer than they load."""
QUICK_TARGETS = """
freeze 0 1; student 1 20; embeddings 1 25; targets 25 40; training 40 1500; samples 1500 1560;
report 1560 1590
"""
"""The job with most passes is also the shortest that loads."""
OF_QUICK = {"targets": 3_000.0, "training": 2_000.0, "samples": 100.0}
OF_STEADY = {"targets": 10_000.0, "training": 100_000.0, "samples": 5_000.0}
ABOUT = 1.6
"""A time that is told is wrong by this factor at the most, or by a minute."""


def jobs_of(trace: str) -> list[tuple[str, int, int]]:
    found = [entry.split() for entry in trace.replace("\n", " ").split(";")]
    return [(rule, int(begin), int(end)) for rule, begin, end in found]


def replay(
    trace: str, plan: dict[str, object], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[int, tuple[int, float | None]]:
    """A hundred times or so: what is left, and what the board tells."""
    now = [0.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    jobs = jobs_of(trace)
    run = RunFolder(folder / "results/tiny")
    run.path.mkdir(parents=True)
    run.plan.write_text(json.dumps(plan))
    board = Board(begin_s=0.0)
    board.plan(Counter(rule for rule, _, _ in jobs) | {"total": len(jobs)})
    end_s, told = max(end for _, _, end in jobs), {}
    step_s = end_s // 100
    for second in sorted({at for _, *both in jobs for at in both} | {*range(0, end_s, step_s)}):
        now[0] = float(second)
        for number, (rule, begin, end) in enumerate(jobs):
            if end == second:
                board.end(number)
            if begin == second:
                board.begin(number, rule, run.log(f"{rule}-{number}"), now[0])
        if second % step_s == 0 and second < end_s:
            for number, job in board.running.items():
                if job.rule in PASSES:
                    write_note(run, job, jobs[number][2], now[0])
            board.look()
            told[second] = end_s - second, board.left_s
    return told


def write_note(run: RunFolder, job: Job, end_s: float, now_s: float) -> None:
    """How far a job is that loads for a third of its time, or for a minute."""
    load_s = min((end_s - job.begin_s) / 3, 60)
    done = max(0.0, (now_s - job.begin_s - load_s) / (end_s - job.begin_s - load_s))
    note = {"done": int(100 * done), "total": 100, "unit": " images", "initial": 0, "at_s": now_s}
    path = run.progress(job.name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(note))


@pytest.mark.parametrize(
    ("trace", "passes"), [(SMALL, PASSES), (STEADY, OF_STEADY), (QUICK_TARGETS, OF_QUICK)]
)
def test_what_is_told_is_about_right(
    trace: str,
    passes: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = replay(trace, {"passes_per_job": passes}, tmp_path, monkeypatch)
    told = {at: (true, said) for at, (true, said) in found.items() if said is not None}
    wrong = {
        at: (true, round(said))
        for at, (true, said) in told.items()
        if not (abs(said - true) <= 60 or true / ABOUT <= said <= true * ABOUT)
    }
    assert wrong == {}, told
    assert len(told) > 0.4 * len(found), "and it is told for most of the later part"
    assert min(told) > 0.2 * max(found), "not before anybody can know"


def test_a_plan_with_rates_tells_from_the_first_jobs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_of(STEADY)
    stages = [
        {
            "stage": rule,
            "num_jobs": sum(it[0] == rule for it in jobs),
            "busy_s": sum(end - begin for it, begin, end in jobs if it == rule),
            "wall_s": sum(end - begin for it, begin, end in jobs if it == rule),
        }
        for rule in dict.fromkeys(rule for rule, _, _ in jobs)
    ]
    plan = {"passes_per_job": OF_STEADY, "time": {"stages": stages}}
    found = replay(STEADY, plan, tmp_path, monkeypatch)
    assert all(said is not None for _, said in [*found.values()][1:])
    off = {
        at: (true, said)
        for at, (true, said) in found.items()
        if abs((said or 0.0) - true) > max(120, 0.05 * true) and at
    }
    assert off == {}
