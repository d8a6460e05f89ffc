"""Charts as specs: the data in them, and that Vega-Lite takes them."""

import math
import re

import pytest
import vl_convert

from chart_parts import layer, rows, title_of_y
from distillery.report.charts import VEGA_LITE, Chart, Series, colours, finish, line_chart
from distillery.report.html import own_file
from distillery.report.roles import MARKS
from distillery.report.score_charts import Score, score_chart

FALLING = [(8.0, 0.9), (16.0, 0.3), (24.0, 0.1)]
HOSTILE = "</script>\"'`${x}<b>\\"


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


def test_a_chart_that_cannot_be_json_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        _ = Chart("a", {"height": math.nan}, {}).script
