"""The timeline's rows against hand counts, and its size whatever the run."""

import csv
import io
import time

import pytest
import vl_convert

from distillery.pipeline import STAGES
from distillery.report.charts import VEGA_LITE, finish
from distillery.report.timeline import RunClock, find_attempts, find_workers, time_stages
from distillery.report.timeline_chart import (
    MAX_BARS,
    MAX_LANES,
    Bars,
    shorten,
    timeline,
    unit_of,
)
from events import event, job_events, run_events


def drawn(events):
    attempts = find_attempts(events)
    clock = RunClock.of(attempts)
    return timeline(find_workers(attempts, clock), clock, time_stages(attempts), STAGES)


def bars(spec):
    return list(csv.DictReader(io.StringIO(spec["layer"][0]["data"]["values"])))


def bars_of(events, most=MAX_BARS):
    attempts = find_attempts(events)
    clock = RunClock.of(attempts)
    lanes = [lane for worker in find_workers(attempts, clock) for lane in worker.lanes]
    return Bars.of(lanes, clock, 1.0, most)


def many(num_jobs, num_devices):
    """Jobs of 6 s, with two batches each, one after the other on each device."""
    events = []
    for number in range(num_jobs):
        turn, device = divmod(number, num_devices)
        job = f"samples-student-{number}-of-{num_jobs}"
        events += job_events(job, turn * 10.0, 2, 2.0, device=f"cuda:GPU-{device:08d}", load_s=2.0)
    return events


def test_a_job_is_a_pale_bar_with_its_work_inside():
    name = ("samples", "samples-a-0-of-1")
    assert bars_of(job_events("samples-a-0-of-1", 0, 2, 3.0)).rows == [
        (0, 0.0, 13.0, 0.25, *name),
        (0, 1.0, 9.0, 1, *name),
        (0, 9.0, 12.0, 1, *name),
    ]


def test_a_job_that_did_not_finish_says_so():
    events = [event("start", "targets-0-of-1", 0, 0), event("work", "targets-0-of-1", 1, 9, 8)]
    assert {row["job"] for row in bars(drawn(events).chart.spec)} == {
        "targets-0-of-1, not finished"
    }


def test_rows_of_a_worker_have_its_name_once_and_pauses_are_lines():
    attempts = find_attempts(run_events())
    clock = RunClock.of(attempts)
    found = drawn(run_events()).chart
    _, pauses = found.still["layer"]
    (at_s, _), *_ = clock.pauses
    assert [it["x"] for it in pauses["data"]["values"]] == [at_s]
    assert "no job for 11 h 6 min" in pauses["data"]["values"][0]["pause"]
    label = found.spec["layer"][0]["encoding"]["y"]["axis"]["labelExpr"]
    assert label == '["0", "1"][+datum.value]'
    workers = find_workers(attempts, clock)
    assert {shorten(worker, with_host=True) for worker in workers} == {"node1 0", "node1 1"}


def test_neighbours_are_one_bar_of_their_share_of_work_and_main_stage():
    """Of three jobs of 13, 19 and 8 s on one device, which work for 11, 17 and 0 s."""
    events = [
        *job_events("samples-a-0-of-1", 0, 2, 3.0),
        *job_events("targets-0-of-1", 15, 4, 3.0),
        event("start", "targets-0-of-2", 40, 40),
        event("end", "targets-0-of-2", 48, 48),
    ]
    named = ("samples", "samples-a-0-of-1"), ("targets", "targets-0-of-1")
    idle = (0, 40.0, 48.0, 0.15, "targets", "targets-0-of-2")
    alone = bars_of(events, 3)
    assert alone.rows == [(0, 0.0, 13.0, 0.85, *named[0]), (0, 15.0, 34.0, 0.89, *named[1]), idle]
    assert (alone.has_work, alone.piece_s) == (False, 0.0)
    together = bars_of(events, 2)
    assert together.rows == [(0, 0.0, 48.0, 0.58, "targets", "3 jobs")]
    assert together.piece_s == 48.0


@pytest.mark.parametrize(
    ("num_jobs", "num_devices", "is_merged", "has_work"),
    [
        (1_000, 8, False, True),
        (MAX_BARS, 8, False, False),
        (MAX_BARS + 200, 200, True, False),
    ],
)
def test_a_page_stays_small_whatever_the_run(num_jobs, num_devices, is_merged, has_work):
    """With the runtime of 0.9 MB and the rest of a page, 2 MB are not reached."""
    events = many(num_jobs, num_devices)
    begin_s = time.perf_counter()
    found = drawn(events)
    assert (found.bars.piece_s > 0, found.bars.has_work) == (is_merged, has_work)
    script, svg = found.chart.script, found.chart.svg
    assert time.perf_counter() - begin_s < 30, "2 s on two quiet cores"
    assert len(script.encode()) + len(svg.encode()) < 850_000
    assert num_devices < len(bars(found.chart.spec)) <= MAX_BARS
    if not is_merged:
        assert len({row["job"] for row in bars(found.chart.spec)}) == num_jobs


def test_merged_bars_hold_all_the_work():
    events = many(MAX_BARS + 8, 8)
    rows = bars_of(events).rows
    worked_s = sum((end - begin) * share for _, begin, end, share, *_ in rows)
    assert worked_s == pytest.approx(
        sum(it.num_items and it.end_s - it.begin_s for it in events), rel=0.02
    )
    assert len(rows) <= MAX_BARS


def test_workers_beyond_the_rows_are_left_out():
    num_workers = MAX_LANES + 5
    found = drawn(many(2 * num_workers, num_workers))
    assert found.num_shown == MAX_LANES
    assert found.chart.spec["height"] == 16 * MAX_LANES


def test_a_hostile_name_is_text_to_vega():
    name = '"],<script>,\\"\n'
    events = [
        event("start", name, 0, 0, device=name, host=name),
        event("work", name, 1, 5, 8, device=name, host=name),
        event("start", "b", 1, 1, host="other"),
        event("work", "b", 1, 5, 8, host="other"),
    ]
    found = drawn(events).chart
    assert "<script" not in found.script
    assert "<script" not in found.svg
    assert f"{name}, not finished" in {row["job"] for row in bars(found.spec)}


def test_vega_lite_takes_the_timeline_without_a_warning(capfd):
    for spec in (drawn(run_events()).chart.spec, drawn(many(MAX_BARS + 8, 8)).chart.spec):
        vl_convert.vegalite_to_vega(finish(spec), vl_version=VEGA_LITE, show_warnings=True)
    assert "WARN" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("total_s", "unit"), [(7, "seconds"), (249, "minutes"), (9_000, "hours"), (259_200, "days")]
)
def test_the_axis_has_a_unit_that_fits(total_s, unit):
    assert unit_of(total_s)[0] == unit
