"""Charts as specs: the data in them, and that Vega-Lite takes them."""

import math
import re

import pandas as pd
import pytest
import vl_convert

from distillery.config.training import Training
from distillery.report.charts import VEGA_LITE, Chart, Series, colours, finish, line_chart, runtime
from distillery.report.html import own_file
from distillery.report.roles import MARKS
from distillery.report.score_charts import Score, score_chart
from distillery.report.training_facts import MAX_LOSS_POINTS, loss_charts, speed_chart
from training_phases import phases

PLAIN = Training(phases=phases(stored=64), global_batch_size=8)
FALLING = [(8.0, 0.9), (16.0, 0.3), (24.0, 0.1)]
HOSTILE = "</script>\"'`${x}<b>\\"


def rows(chart):
    return chart.spec["data"]["values"]


def layer(chart, mark):
    (found,) = [it for it in chart.spec["layer"] if it["mark"]["type"] == mark]
    return found


def title_of_y(chart):
    return layer(chart, "line")["encoding"]["y"]["title"]


def losses(**columns):
    return pd.DataFrame({"samples_seen": [8, 16], "loss": [0.1, 0.2], "grad_norm": 1.0} | columns)


def test_rows_hold_all_series_and_nothing_that_is_not_finite():
    broken = [(8.0, 1.0), (16.0, math.nan), (24.0, math.inf)]
    chart = line_chart([Series("a", FALLING), Series("b", broken)], "samples", "loss", "Loss")
    assert rows(chart) == [
        {"x": 8, "y0": 0.9, "y1": 1.0},
        {"x": 16, "y0": 0.3},
        {"x": 24, "y0": 0.1},
    ]
    assert line_chart([Series("b", broken[1:])], "samples", "loss", "Loss") is None


@pytest.mark.parametrize(
    ("values", "log_from", "is_log"),
    [
        ((0.9, 0.1), 8.0, True),
        ((0.9, 0.2), 8.0, False),
        ((0.9, 0.2), 1.0, True),
        ((0.9, 0.0), 1.0, False),
        ((0.9, 0.1), math.inf, False),
    ],
)
def test_an_axis_is_logarithmic_where_that_tells_more(values, log_from, is_log):
    points = list(enumerate(values))
    chart = line_chart([Series("a", points)], "x", "loss", "Loss", log_from=log_from)
    assert title_of_y(chart) == ("loss (log)" if is_log else "loss")
    scale = layer(chart, "line")["encoding"]["y"]["scale"]
    assert (scale.get("type") == "log") == is_log


def test_what_needs_a_pointer_is_not_in_the_still():
    chart = line_chart([Series("a", FALLING)], "samples", "loss", "Loss")
    pointed = chart.spec["layer"][0]
    assert [it["name"] for it in pointed["params"]] == ["near", "zoom"]
    assert chart.spec["layer"][1:] == chart.still["layer"]
    assert not any("params" in it for it in chart.still["layer"])
    assert "url(" not in chart.svg, "ids of two charts on a page would collide"


def test_the_pointer_tells_every_series():
    chart = line_chart([Series("a", FALLING), Series("b", FALLING)], "samples", "loss", "Loss")
    told = chart.spec["layer"][0]["encoding"]["tooltip"]
    assert [(it["field"], it["title"]) for it in told] == [
        ("x", "samples"), ("y0", "a"), ("y1", "b")
    ]  # fmt: skip


def scores():
    reference = Score("teacher", 48, 0.5, part="reference", curve="teacher, guided")
    return [reference, Score("student", 2, 0.4, 0.3, 0.5, 2, part="student")]


def charts():
    dotted = Series(HOSTILE, FALLING[:1], has_dots=True)
    lines = [Series("all", FALLING), dotted, Series("c", FALLING, is_main=False)]
    return [
        line_chart(lines, "samples", "loss", "Loss", marks=[(16, "round 1")], is_wide=True),
        line_chart(lines[:1], "samples", "loss", "Loss"),
        score_chart(scores(), "CLIP", "CLIP"),
        score_chart([*scores(), Score(HOSTILE, 4, 0.1, part="untrained")], "CLIP", "CLIP"),
    ]


@pytest.mark.parametrize("chart", charts())
def test_vega_lite_takes_every_chart_without_a_warning(chart, capfd):
    for spec in (chart.spec, chart.still):
        vl_convert.vegalite_to_vega(finish(spec), vl_version=VEGA_LITE, show_warnings=True)
    assert "WARN" not in "".join(capfd.readouterr())
    assert chart.svg.startswith("<svg")


def test_names_from_users_stay_text():
    chart = charts()[0]
    assert "</script" not in chart.script
    assert "<" not in chart.script
    assert "<b>" not in chart.svg
    assert "&lt;b&gt;" in chart.svg, "the legend says it"


def test_every_colour_of_a_chart_is_in_the_style_sheet_for_light_and_dark():
    light, dark = own_file("report.css").split("prefers-color-scheme: dark", 1)
    drawn = "".join(chart.svg for chart in charts())
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", drawn)) | {it[4:-1] for it in colours(8)}
    assert {"--ink", "--muted", "--grid", "--c0", "--c7"} <= used
    for name in used:
        assert f"{name}:" in light
        assert f"{name}:" in dark.split("* {")[0]
    assert not re.search(r'(fill|stroke)="(#|rgb)', drawn), "a fixed colour"


def test_a_part_has_one_colour_and_shape_in_all_charts():
    """Whatever else is drawn, and in which order."""
    alone = scores()
    everything = [Score(part, 2, 0.1, part=part) for part in reversed(MARKS)]
    for chosen in (alone, everything):
        encoding = score_chart(chosen, "CLIP", "CLIP").spec["layer"][-1]["encoding"]
        for channel, drawn in (("color", "colour"), ("shape", "shape")):
            scale = encoding[channel]["scale"]
            found = dict(zip(scale["domain"], scale["range"], strict=True))
            expected = {part: getattr(MARKS[part], drawn) for part in found}
            if channel == "color":
                expected = {part: f"var(--{name})" for part, name in expected.items()}
            assert found == expected
    assert score_chart(alone[:1], "CLIP", "CLIP") is None


def test_no_two_parts_look_alike():
    """Shape, glyph and colour; lines by their dashes, where there are lines."""
    for name in ("colour", "shape", "glyph"):
        assert len({getattr(mark, name) for mark in MARKS.values()}) == len(MARKS)
    curves = ("teacher, guided", "teacher, no guidance")
    assert len({MARKS[part].dash for part in curves}) == len(curves)


def test_points_of_equal_cost_stand_at_one_place():
    """On an axis in proportion: nothing moves them aside."""
    found = [Score(name, 2, 0.1 * at, part=name) for at, name in enumerate(MARKS)]
    chart = score_chart([*found, Score("far", 48, 0.5)], "CLIP", "CLIP")
    assert "Offset" not in str(chart.spec)
    assert chart.spec["encoding"]["x"]["type"] == "quantitative"


@pytest.mark.parametrize("is_line", [False, True])
def test_a_legend_has_room_for_the_readers_font(is_line):
    """It is laid out with the fonts of this machine; a reader's are up to a fifth wider."""
    names = ("teacher-2-steps-unguided", "teacher-4-steps-unguided", "untrained", "student")
    if is_line:
        lines = [Series(name, [(0, 1), (1, 2)]) for name in names]
        chart = line_chart(lines, "x", "y", "Lines")
    else:
        scores = [Score(part, number + 1, 0.5, part=part) for number, part in enumerate(MARKS)]
        chart = score_chart(scores, "CLIP score", "Scores")
    entries = re.findall(
        r'translate\(([\d.]+),([\d.]+)\)"><path class="background" aria-hidden="true" '
        r'd="M0,0h([\d.]+)v[\d.]+h-',
        chart.svg.split("role-legend-entry")[1],
    )
    places = [(float(x), float(y), float(width)) for x, y, width in entries if float(width) > 0]
    first, second = places[:2]
    assert first[1] == second[1], "in a row"
    assert first[0] + 1.2 * first[2] < second[0]


def test_a_score_without_an_interval_has_none():
    assert rows(score_chart(scores(), "CLIP", "CLIP")) == [
        {"model": "teacher", "part": "reference", "network_calls": 48, "mean": 0.5},
        {
            "model": "student", "part": "student", "network_calls": 2, "mean": 0.4, "low": 0.3,
            "high": 0.5, "steps": 2,
        },
    ]  # fmt: skip


def test_a_path_joins_the_scores_of_a_curve():
    few = Score("few", 8, 0.4, part="teacher, guided", curve="teacher, guided")
    chart = score_chart([*scores(), few], "CLIP", "CLIP")
    line = layer(chart, "line")
    assert [row["model"] for row in line["data"]["values"]] == ["teacher", "few"]
    assert line["mark"]["color"] == f"var(--{MARKS['teacher, guided'].colour})"
    assert chart.spec["encoding"]["x"]["axis"]["values"] == [2, 8, 48]


def test_the_runtime_is_one_script_that_may_stand_in_a_page():
    script = runtime()
    assert "</script" not in script
    assert "BSD 3-Clause" in script[:200]
    assert len(script.encode()) < 950_000
    assert "figure.chart" in script, "ours is in it"


def test_a_chart_that_cannot_be_json_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        _ = Chart("a", {"height": math.nan}, {}).script


# ---- the training's log ------------------------------------------------------------------------


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
