"""What a training tells of itself: whole tables, judged in constant time, and no fatal log."""

import os
import shutil
import signal
import time
from math import isfinite, isnan, nan
from statistics import fmean

import numpy as np
import pytest

import tiny
from distillery.telemetry import Reporter, read_events
from distillery.training import loop
from distillery.training.watchers.alarms import Course, LossJudge, Variation, judge_variation
from distillery.training.watchers.tensorboard import TensorBoard
from distillery.training.watchers.variation import CollapseProbe, prompt_variation, state_variation
from in_process import checkpoints, log_of, losses_of, open_dataset, outputs, train

STEPS = 4


@pytest.fixture(scope="module")
def by_update(data, tmp_path_factory):
    """A training with a row of each update."""
    folder = tmp_path_factory.mktemp("by-update")
    assert train(data, folder) == 0
    return folder


@pytest.fixture(scope="module")
def by_three(data, tmp_path_factory):
    """The same with rows of three updates, and a last one of two."""
    folder = tmp_path_factory.mktemp("by-three")
    assert train(data, folder, log_every_samples=24) == 0
    return folder


# ---- the last interval -------------------------------------------------------------------------


@pytest.mark.parametrize("expected", [[24, 48, 64], [64]])
def test_the_last_interval_is_in_the_table_though_it_is_shorter(
    data, by_update, by_three, tmp_path, expected
):
    ours = by_three if len(expected) > 1 else tmp_path
    if ours == tmp_path:
        assert train(data, ours, log_every_samples=1024) == 0
    found = losses_of(ours)
    assert found["samples_seen"].tolist() == expected
    updates = losses_of(by_update).set_index("samples_seen")
    first = ([0, *expected])[-2]
    last = updates[updates.index > first]
    assert found["loss"].iloc[-1] == pytest.approx(last["loss"].mean())
    assert found["learning_rate"].iloc[-1] == updates["learning_rate"].iloc[-1]
    work = [event for event in read_events(ours / "telemetry") if event.kind == "work"]
    assert [event.facts["samples_seen"] for event in work] == expected
    assert "loss" in work[-1].facts


def test_the_speed_of_the_last_interval_is_of_its_own_samples(data, tmp_path, monkeypatch):
    shown = {}
    monkeypatch.setattr(
        TensorBoard,
        "numbers",
        lambda _, values, seen: shown.update({seen: values["speed/samples_per_s"]}),
    )
    assert train(data, tmp_path, log_every_samples=56) == 0
    work = [event for event in read_events(tmp_path / "telemetry") if event.kind == "work"]
    seconds = work[-1].end_s - work[-1].begin_s
    assert 4 / seconds < shown[64] < 9 / seconds  # the event's own writing is counted too


@pytest.mark.parametrize("num_updates", [4, 7])
def test_an_interruption_changes_no_byte_of_a_table_with_a_shorter_last_row(
    data, by_three, tmp_path, monkeypatch, num_updates
):
    """The signal comes in the last whole interval, and in the last update but one."""
    parts, calls = tmp_path, []
    settings = {"log_every_samples": 24}
    real = loop.reduce_totals

    def interrupted(*given):
        calls.append(given)
        if len(calls) == num_updates:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*given)

    monkeypatch.setattr(loop, "reduce_totals", interrupted)
    assert train(data, parts, **settings) == 75
    monkeypatch.undo()
    assert train(data, parts, **settings) == 0
    assert losses_of(parts)["samples_seen"].tolist() == [24, 48, 64]
    assert outputs(parts) == outputs(by_three)


# ---- a store with one trajectory ---------------------------------------------------------------


@pytest.fixture(scope="module")
def lonely(tmp_path_factory):
    """A run whose store has one trajectory."""
    folder = tmp_path_factory.mktemp("lonely")
    tiny.make_tiny_run(folder, num_prompts=1, samples_per_prompt=1)
    return folder


def test_one_trajectory_can_be_learned_and_raises_no_alarm(lonely, tmp_path):
    assert train(lonely, tmp_path) == 0
    assert len(losses_of(tmp_path)) == 8
    assert all(event.kind != "alarm" for event in read_events(tmp_path / "telemetry"))


def test_targets_that_do_not_vary_are_no_measure(lonely):
    dataset = open_dataset(lonely, STEPS)
    probe = CollapseProbe.of(dataset)
    answers = probe.last.target.unsqueeze(1)
    assert state_variation(answers, probe.last, dataset) is None
    assert prompt_variation(answers, probe.first, dataset) is None
    assert judge_variation(Variation(None, None)) == []


# ---- alarms over long trainings ----------------------------------------------------------------


def growth_of_all(rows, size):
    """As it is defined, from all rows at once."""
    if len(rows) < 2 * size:
        return nan
    means = [fmean(rows[start : start + size]) for start in range(len(rows) - 2 * size + 1)]
    lowest = min((mean for mean in means if isfinite(mean)), default=nan)
    return fmean(rows[-size:]) / lowest if lowest else nan


@pytest.mark.parametrize("size", [1, 3, 16])
def test_growth_row_by_row_is_that_of_the_whole_history(size):
    random = np.random.default_rng(size)
    history = (random.random(200) * np.linspace(1, 3, 200)).tolist()
    for row in random.choice(200, 12, replace=False):
        history[row] = nan
    course = Course(size)
    for number, loss in enumerate(history, 1):
        course.add(loss)
        expected = growth_of_all(history[:number], size)
        assert course.growth == expected or (isnan(course.growth) and isnan(expected))


def test_growth_from_nothing_has_no_number():
    course = Course(1)
    for loss in (0.0, 1.0):
        course.add(loss)
    assert isnan(course.growth)


def test_a_late_row_is_judged_as_fast_as_an_early_one():
    judge = LossJudge([1.0] * STEPS, 512, 512 * 20_000)
    row = {"loss": 0.1} | {f"loss_segment_{segment}": 0.1 for segment in range(STEPS)}
    took = []
    for number in range(1, 20_001):
        begin = time.perf_counter()
        judge.add(row | {"samples_seen": 512 * number})
        judge.judge()
        took.append(time.perf_counter() - begin)
    assert np.median(took[-500:]) < 4 * np.median(took[500:1000])


def test_a_resumed_training_is_judged_by_all_its_rows(data, by_update, tmp_path, monkeypatch):
    """It resumes from the sixth row; the first new one is held against those before."""
    taken = []
    real = LossJudge.add
    shutil.copytree(by_update, tmp_path, dirs_exist_ok=True)
    newest = checkpoints(tmp_path)[-1]
    shutil.rmtree(newest)
    monkeypatch.setattr(
        LossJudge, "add", lambda self, row: (taken.append(row["samples_seen"]), real(self, row))
    )
    assert train(data, tmp_path) == 0
    assert taken == list(range(8, 72, 8))


def test_a_last_row_of_too_few_samples_is_not_judged(data, tmp_path, monkeypatch):
    judged = []
    monkeypatch.setattr(LossJudge, "judge", lambda self: judged.append(self) or [])
    assert train(data, tmp_path, log_every_samples=24) == 0
    assert len(judged) == 2
    assert losses_of(tmp_path)["samples_seen"].tolist() == [24, 48, 64]


# ---- a log that fails --------------------------------------------------------------------------


def test_a_training_goes_on_without_telemetry_that_cannot_be_written(
    data, tmp_path, monkeypatch, capsys
):
    real = Reporter.__init__

    def full(self, *given):
        real(self, *given)
        self.path.symlink_to("/dev/full")

    monkeypatch.setattr(Reporter, "__init__", full)
    assert train(data, tmp_path) == 0
    assert len(losses_of(tmp_path)) == 8
    assert capsys.readouterr().err.count("continues without telemetry") == 1


def test_the_first_error_is_told_though_the_log_fails_too(data, tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise ValueError("the first one")

    def fail_too(*_):
        raise ValueError("the second one")

    monkeypatch.setattr(loop, "check_finite", fail)
    monkeypatch.setattr(TensorBoard, "close", fail_too)
    assert train(data, tmp_path) == 1
    assert "error: the first one" in capsys.readouterr().err
    assert "was not ended: ValueError('the second one')" in log_of(tmp_path)
