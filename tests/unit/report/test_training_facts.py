"""What the report says of a training: facts of its telemetry, and its log as charts."""

import math
import re

import pandas as pd
import pytest

from chart_parts import layer, rows, title_of_y
from distillery.config.training import Training
from distillery.report import training_facts
from distillery.report.training_facts import (
    MAX_LOSS_POINTS,
    find_held_out,
    gather_training,
    loss_charts,
    speed_chart,
)
from distillery.telemetry import Event
from training_phases import phases

GIB = 1 << 30
PLAIN = Training(phases=phases(stored=64), global_batch_size=8)


def event(kind, job, begin_s, end_s, num_items=0, **facts):
    return Event(kind, "training", job, "cpu", "host", begin_s, end_s, num_items, facts)


def work(job, seen, begin_s, end_s, recipe="ours", memory=GIB, **facts):
    facts = {"samples_seen": seen, "recipe": recipe, "peak_memory_bytes": memory} | facts
    return event("work", job, begin_s, end_s, 32, **facts)


def alarm(seen, recipe="ours"):
    return event(
        "alarm", "training", 5, 5, name="loss_growth", subject="segment 1", value=3.0,
        threshold=2.0,
        meaning="it grows", advice="do less", samples_seen=seen, recipe=recipe,
    )  # fmt: skip


def test_speed_is_of_all_ranks_without_drawing():
    events = [
        work("training", 64, 0, 4, drawing_s=2.0),
        work("training-rank-1", 64, 0, 3, drawing_s=2.0),
    ]
    facts = gather_training(events, ["ours"])
    assert facts.speed == [(64, 32.0)]


def test_an_interval_that_was_trained_again_counts_once_as_the_last_time():
    events = [
        work("training", 64, 0, 1),
        work("training", 64, 10, 14),
        work("training", 128, 14, 16),
    ]
    assert gather_training(events, ["ours"]).speed == [(64, 8.0), (128, 16.0)]


def test_each_rank_has_its_peak_memory_and_its_waiting():
    events = [
        work("training-rank-10", 64, 0, 4),
        work("training", 64, 0, 4, waiting_s=1.0),
        work("training-rank-2", 64, 0, 4, memory=2 * GIB),
        work("training", 128, 4, 8, memory=3 * GIB),
    ]
    processes = gather_training(events, ["ours"]).processes
    assert [process.rank for process in processes] == [0, 2, 10]
    assert [process.peak_memory_bytes // GIB for process in processes] == [3, 2, 1]
    assert processes[0].waiting_share == pytest.approx(1 / 8)


def test_saves_are_a_share_of_the_trainings_time():
    saves = [
        event("save", "training", at, at + 1, stall_s=stall) for at, stall in ((4, 0.1), (8, 0.3))
    ]
    facts = gather_training(
        [work("training", 64, 0, 4), work("training", 128, 4, 8), *saves], ["ours"]
    )
    assert (facts.saves.number, facts.saves.longest_stall_s) == (2, 0.3)
    assert facts.saves.share == pytest.approx(0.4 / 8)


def test_alarms_of_this_training_are_told_once():
    events = [work("training", 64, 0, 4), alarm(64), alarm(64), alarm(64, recipe="theirs")]
    (found,) = gather_training(events, ["ours"]).alarms
    assert found.title == "loss growth, segment 1"


def test_what_earlier_trainings_did_belongs_to_the_one_that_took_them_up():
    events = [
        work("training-0-rounds", 32, 0, 1, recipe="first"),
        work("training-0-rounds", 64, 1, 2, recipe="first"),
        work("training-1-rounds", 96, 2, 4, recipe="second"),
        work("training-1-rounds-rank-1", 96, 2, 4, recipe="second"),
        alarm(64, recipe="first"),
        event("save", "training-0-rounds", 2, 2, stall_s=0.6),
        work("training", 128, 4, 6),
    ]
    facts = gather_training(events, ["ours", "second", "first"])
    assert facts.speed == [(32, 32.0), (64, 32.0), (96, 32.0), (128, 16.0)]
    assert [process.rank for process in facts.processes] == [0, 1]
    assert facts.taken_up == [64, 96]
    assert facts.saves.share == pytest.approx(0.6 / 6)
    assert len(facts.alarms) == 1
    again = [work("training", seen, 10, 11) for seen in (32, 64, 96)]
    again.append(work("training-rank-1", 96, 10, 11))
    assert gather_training([*events, *again], ["ours", "second", "first"]).taken_up == []


def test_another_training_or_none_has_nothing_to_tell():
    assert gather_training([work("training", 64, 0, 4, recipe="theirs")], ["ours"]) is None
    assert gather_training([work("training", 64, 0, 4)], []) is None


@pytest.mark.parametrize(
    ("changes", "parts", "restarts"),
    [
        ({}, "", []),
        (
            {"phases": phases(stored=24, rounds={"count": 2, "samples": 16}, adversarial=8)},
            "24 from the teacher's stored trajectories, then 2 rounds of 16, half of them from "
            "states that the student visited before the round, then an adversarial finish of 8",
            [(24, "round 1"), (40, "round 2"), (56, "finish")],
        ),
        (
            {"phases": phases(stored=40, online=16, rollouts=8)},
            "40 from the teacher's stored trajectories, then 16 with online targets, then 8 whole "
            "rollouts",
            [(40, "finish")],
        ),
        (
            {"phases": phases(online={"samples": 64, "distribution_matching": {}})},
            "64 with online targets and distribution matching",
            [],
        ),
        (
            {"phases": phases(stored=48, rounds=16), "schedule": "constant"},
            "48 from the teacher's stored trajectories, then 1 round of 16, half of them from "
            "states that the student visited before the round",
            [],
        ),
    ],
)
def test_the_parts_of_a_training_are_told(changes, parts, restarts):
    training = Training(**PLAIN.model_dump(exclude_unset=True) | changes)
    assert training_facts.training_parts(training) == parts
    assert training_facts.restarts(training) == restarts


def names_of(chart):
    return re.findall(
        r"'?\"([^\"]+)\"", layer(chart, "line")["encoding"]["color"]["legend"]["labelExpr"]
    )


def test_the_loss_over_all_stands_out_among_its_segments():
    log = losses(loss_segment_1=[0.1, 0.2], loss_segment_0=[0.3, 0.4])
    loss, norm = loss_charts(log, PLAIN, (999, 500.5))
    assert names_of(loss) == [
        "segment 0, t 999 to 500.5",
        "segment 1, t 500.5 to clean",
        "all segments",
    ]
    assert rows(loss)[0] == {"x": 8, "y0": 0.3, "y1": 0.1, "y2": 0.1}
    widths = layer(loss, "line")["encoding"]["strokeWidth"]["scale"]["range"]
    assert widths[2] > widths[0] == widths[1]
    assert title_of_y(loss) == "loss (log)"
    assert norm.title == "Gradient norm"


def test_the_steps_of_an_any_step_student_are_named_by_their_ends():
    log = losses(**{f"loss_segment_{number}": [0.3, 0.4] for number in range(3)})
    assert names_of(loss_charts(log, PLAIN, (1000.0, 750.0))[0])[:3] == [
        "t 1000 to clean, of 1 step",
        "t 1000 to 750, of 2 steps",
        "t 750 to clean, of 2 steps",
    ]


def test_segments_of_unknown_timesteps_have_numbers():
    log = losses(loss_segment_0=[0.3, 0.4], loss_segment_1=[0.1, 0.2])
    assert names_of(loss_charts(log, PLAIN, (999,))[0])[:2] == [
        "segment 0",
        "segment 1",
    ]


def test_the_held_out_loss_is_drawn_where_it_was_measured():
    log = losses(held_out_loss=[math.nan, 0.5])
    loss = loss_charts(log, PLAIN)[0]
    assert names_of(loss) == ["loss", "held out"]
    assert rows(loss) == [{"x": 8, "y0": 0.1}, {"x": 16, "y0": 0.2, "y1": 0.5}]
    (dots,) = [it for it in loss.spec["layer"] if it["mark"]["type"] == "point"]
    assert dots["transform"][-1] == {"filter": {"field": "series", "oneOf": ["y1"]}}
    assert (
        loss_charts(losses(held_out_loss=[math.nan] * 2), PLAIN)[0]
        == (loss_charts(losses(), PLAIN)[0])
    )


def test_a_long_log_is_averaged_of_what_was_measured():
    number = 10 * MAX_LOSS_POINTS
    log = pd.DataFrame({"samples_seen": range(number), "loss": 1.0})
    log["held_out_loss"] = [2.0 if it % 20 == 0 else math.nan for it in range(number)]
    found = rows(loss_charts(log, PLAIN)[0])
    assert len(found) == MAX_LOSS_POINTS
    assert [row.get("y1") for row in found[:4]] == [2.0, None, 2.0, None]


def test_a_finish_of_rollouts_is_a_line_of_its_own():
    log = losses(loss_rollout=[math.nan, 0.2])
    loss = loss_charts(log, PLAIN)[0]
    assert names_of(loss) == ["loss", "rollout"]
    assert rows(loss) == [{"x": 8, "y0": 0.1}, {"x": 16, "y1": 0.2}]


def test_what_learns_beside_the_student_has_a_chart_of_its_own_phase():
    titles = [chart.title for chart in loss_charts(losses(), PLAIN)]
    assert titles == ["Loss", "Gradient norm"]
    found = loss_charts(losses(loss_heads=[math.nan, 1.4]), PLAIN)
    assert [chart.title for chart in found] == [*titles, "Loss of the heads"]
    assert rows(found[-1]) == [{"x": 16, "y0": 1.4}]


def test_the_learning_rate_alone_is_marked_where_it_begins_anew():
    training = Training(phases=phases(stored=32, rounds=32), global_batch_size=8)
    log = pd.DataFrame(
        {"samples_seen": [8, 32, 64], "loss": 1.0, "grad_norm": 1.0, "learning_rate": [3, 0.1, 3]}
    )
    found = {chart.title: chart for chart in loss_charts(log, training)}
    marks = {
        title: [it["data"]["values"] for it in chart.still["layer"] if "data" in it]
        for title, chart in found.items()
    }
    expected = [[{"x": 32, "name": "round 1"}]] * 2  # the line and its name
    assert marks == {"Loss": [], "Gradient norm": [], "Learning rate": expected}
    assert layer(found["Learning rate"], "line")["encoding"]["y"]["scale"] == {"zero": True}


def test_speed_needs_two_intervals():
    assert speed_chart([(8, 1.0)]) is None
    assert rows(speed_chart([(8, 1.0), (16, 2.0)])) == [
        {"x": 8, "y0": 1},
        {"x": 16, "y0": 2},
    ]


def losses(**columns):
    return pd.DataFrame({"samples_seen": [8, 16], "loss": [0.1, 0.2], "grad_norm": 1.0} | columns)


@pytest.mark.parametrize(
    ("held_out", "found"),
    [
        ((0.9, 0.5, 0.4, 0.3), "lowest, 0.3, after 40 samples: it was still falling"),
        (
            (0.9, 0.3, 0.299, 0.301),
            "after 30 samples, and came within 1.0\xa0% of that after 20",
        ),
        ((0.9, 0.3, 0.4, 0.5), "0.3, after 20 samples, and rose to 0.5 by the end"),
    ],
)
def test_what_held_out_losses_say_is_told(held_out, found):
    table = pd.DataFrame({"samples_seen": [10, 20, 30, 40], "held_out_loss": held_out})
    assert found in find_held_out(table).text
    assert find_held_out(table.head(2)) is None
    assert find_held_out(table[["samples_seen"]]) is None
