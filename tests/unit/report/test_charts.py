"""Charts as specs: the data in them, and that Vega-Lite takes them."""

import math
import re
from itertools import pairwise

import pytest
import vl_convert

from chart_parts import layer, rows, title_of_y
from distillery.config.samples import SampledModel
from distillery.report.charts import VEGA_LITE, Chart, Series, colours, finish, line_chart
from distillery.report.html import own_file
from distillery.report.roles import MARKS, Roles
from distillery.report.score_charts import Axis, Line, Score, Scored, quality_charts, score_chart

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
    return [reference, Score("student", 2, 0.4, 0.3, 0.5, part="student")]


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
        layers = score_chart(chosen, "CLIP", "CLIP").spec["layer"]
        (encoding,) = [it["encoding"] for it in layers if "shape" in it["encoding"]]
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


def test_a_legend_has_room_for_the_readers_font():
    """It is laid out with the fonts of this machine; a reader's are up to a fifth wider."""
    names = ("teacher-2-steps-unguided", "teacher-4-steps-unguided", "untrained", "student")
    chart = line_chart([Series(name, [(0, 1), (1, 2)]) for name in names], "x", "y", "Lines")
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
            "high": 0.5,
        },
    ]  # fmt: skip


def test_a_path_joins_the_scores_of_a_curve():
    few = Score("few", 8, 0.4, part="teacher, guided", curve="teacher, guided")
    chart = score_chart([*scores(), few], "CLIP", "CLIP")
    line = layer(chart, "line")
    assert [row["model"] for row in line["data"]["values"]] == ["teacher", "few"]
    assert line["mark"]["color"] == f"var(--{MARKS['teacher, guided'].colour})"
    assert chart.spec["encoding"]["x"]["axis"]["values"] == [2, 8, 48]


def test_an_arrow_leads_from_the_untrained_student_to_the_trained_one():
    found = [*scores(), Score("untrained", 2, 0.1, part="untrained")]
    heads = [
        (it["mark"]["shape"], it["data"]["values"][0])
        for it in score_chart(found, "CLIP", "CLIP").spec["layer"]
        if it["mark"].get("shape")
    ]
    ((shape, row),) = heads
    assert shape == "triangle-up"
    assert row["mean"] == 0.1
    assert 0.35 < row["to"] < 0.4, "it ends at the student's point"
    assert not any(
        it["mark"].get("shape") for it in score_chart(scores(), "CLIP", "CLIP").spec["layer"]
    )


def test_quality_is_drawn_as_a_share_of_the_reference_s_where_that_is_defined():
    interval = {"mean": 0.9, "low": 0.8, "high": 1.0}
    facts = {"guidance_scale": 1.0, "steps": 2, "network_calls": 2, "sets": {"dino": {}}}
    own = facts | {"clip_score": interval, "against": {"teacher": {"clip_score_ratio": interval}}}
    own["sets"] = {"dino": {"frechet_ratio": interval | {"mean": 1.5}}}
    of_teacher = facts | {"clip_score": interval, "against": {}, "network_calls": 48}
    models = {name: SampledModel(source=name) for name in ("teacher", "student")}
    quality = {"models": {"teacher": of_teacher, "student": own}, "vision_models": {"dino": {}}}
    roles = Roles("student", "teacher")
    clip, frechet = quality_charts(Scored(quality, models, roles, 0.95))
    assert clip.title == "CLIP score as a share of the teacher's, over network calls"
    assert {row["model"]: row["mean"] for row in rows(clip)} == {"teacher": 1.0, "student": 0.9}
    assert "asked for: 95.0\xa0%" in clip.svg
    assert {row["model"]: row["mean"] for row in rows(frechet)} == {"teacher": 1.0, "student": 1.5}
    assert "floor: the reference at other noises" in frechet.svg
    own["against"]["teacher"]["clip_score_ratio"] = None
    plain = quality_charts(Scored(quality, models, roles, 0.95))[0]
    assert plain.title == "CLIP score, over network calls"
    assert "asked for" not in plain.svg


@pytest.mark.parametrize("is_band", [False, True])
def test_points_are_held_to_a_line_or_a_band(is_band):
    chart = score_chart(scores(), "CLIP", "CLIP", line=Line(0.9, "asked for", is_band))
    drawn, name = chart.spec["layer"][:2]
    assert drawn["mark"]["type"] == ("rect" if is_band else "rule")
    assert drawn["data"]["values"][0]["at"] == 0.9
    assert name["encoding"]["text"] == {"value": "asked for"}
    low, high = layer(chart, "point")["encoding"]["y"]["scale"]["domain"]
    assert low < 0.3
    assert high > 0.9


def test_labels_at_the_points_overlap_none():
    """Ten models of equal cost and nearly equal scores."""
    found = [Score(f"model {number}", 2, 0.5 + number / 1000) for number in range(10)]
    chart = score_chart([*found, Score("far", 48, 0.1)], "CLIP", "CLIP")
    texts = [it for it in chart.spec["layer"] if it["mark"]["type"] == "text"]
    axis = Axis.of([*found, Score("far", 48, 0.1)], None)
    places = sorted(axis.to_px(row["mean"]) for row in texts[0]["data"]["values"])
    assert len(places) == 10
    assert min(later - earlier for earlier, later in pairwise(places)) >= 14
    assert [row["text"] for row in texts[1]["data"]["values"]] == ["far"], "on the left of it"


def test_a_chart_that_cannot_be_json_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        _ = Chart("a", {"height": math.nan}, {}).script
