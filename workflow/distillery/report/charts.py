"""Data in, Vega-Lite out: lines over samples, and scores of models over network calls."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distillery.report.marks import MARKS, Part
from distillery.report.vega import ZOOM, Chart, Spec, colours

DIGITS = 4
"""Significant digits of a drawn number: a pixel is a thousandth of a chart."""
LOG_FROM = 8.0
"""Values that span this factor are drawn on a logarithmic axis."""
SOLID: tuple[int, ...] = (1, 0)
"""A line without gaps."""


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        name: in the legend and beside the pointer.
        points: (x, y); those that are not finite are left out.
        is_main: drawn thicker.
        has_dots: drawn dashed, with a dot per point: measured now and then.
        colour: number of its colour; None for the next one.
        dash: lengths that are drawn and left out, where dots do not tell the line apart.
    """

    name: str
    points: Sequence[tuple[float, float]]
    is_main: bool = True
    has_dots: bool = False
    colour: int | None = None
    dash: Sequence[int] = SOLID


def line_chart(
    series: Sequence[Series],
    x_title: str,
    y_title: str,
    title: str,
    *,
    is_wide: bool = False,
    log_from: float = LOG_FROM,
    marks: Sequence[tuple[float, str]] = (),
) -> Chart | None:
    """Lines over a common axis; None if no point is finite.

    Args:
        series: the lines, at least one.
        x_title, y_title, title: of the axes and the chart.
        is_wide: whether it takes the page's whole width.
        log_from: the factor that values must span for a logarithmic axis; infinite for what may
            fall to zero by design, as a learning rate does.
        marks: dashed vertical lines: where, and what begins there.
    """
    kept = [(one, points) for one in series if (points := _finite(one.points))]
    if not kept:
        return None
    values = [y for _, points in kept for _, y in points]
    is_log = min(values) > 0 and max(values) >= log_from * min(values)
    y_title += " (log)" if is_log else ""
    lines = [one for one, _ in kept]
    shared: Spec = {
        "height": 300 if is_wide else 240,
        "data": {"values": _rows([points for _, points in kept])},
        "encoding": {"x": _x_axis(x_title, [x for _, points in kept for x, _ in points])},
    }
    drawn = [_lines(lines, y_title, is_log), *_dots(lines), *_marks(marks)]
    live = {"layer": [_pointer(lines, x_title), *drawn]}
    return Chart(title, shared | live, shared | {"layer": drawn}, is_wide)


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that can be drawn."""
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def rounded(value: float) -> float:
    """A number with as many digits as a chart shows."""
    return float(f"{value:.{DIGITS}g}")


def _rows(lines: Sequence[Sequence[tuple[float, float]]]) -> list[dict[str, float]]:
    """One row per x, with y0, y1, ... of the lines that have a point there."""
    rows: dict[float, dict[str, float]] = {}
    for number, points in enumerate(lines):
        for x, y in points:
            rows.setdefault(x, {"x": round(x, 1)})[f"y{number}"] = rounded(y)
    return [rows[x] for x in sorted(rows)]


def _x_axis(title: str, xs: Sequence[float]) -> Spec:
    """From the first value to the last."""
    return {
        "field": "x",
        "type": "quantitative",
        "title": title,
        "scale": {"domain": [min(xs), max(xs)], "nice": False, "zero": False},
        "axis": {"format": "~s", "grid": False, "tickCount": {"expr": "width / 90"}},
    }


def _by_series(lines: Sequence[Series], values: Sequence[Any]) -> Spec:
    """A channel that gives each series its value; the channels share one legend."""
    return {
        "field": "series",
        "type": "ordinal",
        "scale": {
            "type": "ordinal",
            "domain": [f"y{number}" for number in range(len(lines))],
            "range": list(values),
        },
        "legend": _legend(lines) if len(lines) > 1 else None,
    }


def _legend(lines: Sequence[Series]) -> Spec:
    """The names of the series, in as many columns as fit."""
    names = json.dumps([one.name for one in lines])  # JSON is also an expression of Vega's
    return {
        **_columns([one.name for one in lines]),
        "labelExpr": f"{names}[+slice(datum.value, 1)]",
        "symbolType": "stroke",
        "symbolOpacity": 1,
    }


def _palette(lines: Sequence[Series]) -> list[str]:
    """Each series' colour."""
    numbers = [number if one.colour is None else one.colour for number, one in enumerate(lines)]
    palette = colours(max(numbers) + 1)
    return [palette[number] for number in numbers]


def _columns(names: Sequence[str]) -> Spec:
    """A legend's columns, as many as fit, apart by more than a wider font takes.

    The still is laid out here and read elsewhere: there a name is up to a fifth wider.
    """
    longest = max(map(len, names))
    return {
        "title": None,
        "columns": {"expr": f"max(1, floor(width / {45 + 7 * longest}))"},
        "columnPadding": 18 + 1.2 * longest,
    }


def _folded(lines: Sequence[Series]) -> list[Spec]:
    """From one row per x to one row per point."""
    names = [f"y{number}" for number in range(len(lines))]
    return [{"fold": names, "as": ["series", "y"]}, {"filter": "isValid(datum.y)"}]


def _lines(lines: Sequence[Series], y_title: str, is_log: bool) -> Spec:
    """The lines, with both axes and the legend."""
    scale: Spec = {"type": "log", "nice": False} if is_log else {"zero": True}
    return {
        "transform": _folded(lines),
        "mark": {"type": "line", "strokeJoin": "round"},
        "encoding": {
            "y": {
                "field": "y",
                "type": "quantitative",
                "title": y_title,
                "scale": scale,
                "axis": {"format": ".4~r", "tickCount": 5},
            },
            "color": _by_series(lines, _palette(lines)),
            "strokeWidth": _by_series(lines, [2.4 if one.is_main else 1.2 for one in lines]),
            "strokeDash": _by_series(
                lines, [[5, 3] if it.has_dots else list(it.dash) for it in lines]
            ),
        },
    }


def _dots(lines: Sequence[Series]) -> list[Spec]:
    """A dot per point of the series that have them."""
    dotted = [f"y{number}" for number, one in enumerate(lines) if one.has_dots]
    if not dotted:
        return []
    return [
        {
            "transform": [*_folded(lines), {"filter": {"field": "series", "oneOf": dotted}}],
            "mark": {"type": "point", "filled": True, "opacity": 1, "size": 35},
            "encoding": {
                "y": {"field": "y", "type": "quantitative"},
                "color": {"field": "series", "type": "ordinal"},
            },
        }
    ]


def _marks(marks: Sequence[tuple[float, str]]) -> list[Spec]:
    """Vertical lines over the whole height, with their names."""
    if not marks:
        return []
    data = {"values": [{"x": at, "name": name} for at, name in marks]}
    x = {"x": {"field": "x", "type": "quantitative"}}
    rule = {"type": "rule", "color": "var(--muted)", "strokeDash": [3, 3]}
    text = {"type": "text", "align": "left", "dx": 4, "y": 8, "color": "var(--muted)"}
    return [
        {"data": data, "mark": rule, "encoding": x},
        {"data": data, "mark": text, "encoding": x | {"text": {"field": "name"}}},
    ]


def _pointer(lines: Sequence[Series], x_title: str) -> Spec:
    """A vertical line at the x nearest to the pointer, which tells all values there."""
    told = [
        {"field": f"y{number}", "type": "quantitative", "title": one.name, "format": ".4~g"}
        for number, one in enumerate(lines)
    ]
    at = {"field": "x", "type": "quantitative", "title": x_title, "format": ",.0f"}
    nearest = {"type": "point", "on": "pointerover", "nearest": True, "encodings": ["x"]}
    shown = {"param": "near", "empty": False, "value": 0.6}
    return {
        "params": [{"name": "near", "select": nearest, "clear": "pointerout"}, ZOOM],
        "mark": {"type": "rule", "color": "var(--muted)"},
        "encoding": {"opacity": {"condition": shown, "value": 0}, "tooltip": [at, *told]},
    }


# ---- scores over network calls -----------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """A model at a cost: its mean, with an interval (None for a single prompt).

    Attributes:
        model: its name.
        part: what it is, which decides on its colour and shape.
        curve: the part whose line it lies on; None without a line.
    """

    model: str
    network_calls: float
    mean: float
    low: float | None = None
    high: float | None = None
    steps: int | None = None
    part: Part = "other"
    curve: Part | None = None


def score_chart(scores: Sequence[Score], y_title: str, title: str) -> Chart | None:
    """Scores of models over their network calls; None for fewer than two.

    Network calls are in proportion (log), so models of equal cost stand at one place. Scores of one
    curve are joined.

    Args:
        scores: a model each.
        y_title, title: of the vertical axis and of the chart.
    """
    if len(scores) < 2:
        return None
    parts = [part for part in MARKS if any(part in (it.part, it.curve) for it in scores)]
    curves = [part for part in MARKS if any(part == it.curve for it in scores)]
    y = {"field": "mean", "type": "quantitative", "title": y_title, "scale": {"zero": False}}
    colour = {"color": _by_part("part", parts, [f"var(--{MARKS[it].colour})" for it in parts])}
    is_known = {"filter": "isValid(datum.low) && isValid(datum.high)"}
    interval = {"y": y | {"field": "low"}, "y2": {"field": "high"}, **colour}
    shape = _by_part("part", parts, [MARKS[it].shape for it in parts])
    dot = {"y": y, **colour, "shape": shape, "tooltip": _score_tooltip(scores, y_title)}
    layers: list[Spec] = [
        *(_curve(scores, curve, y) for curve in curves),
        {"transform": [is_known], "mark": {"type": "rule", "strokeWidth": 2}, "encoding": interval},
        {"mark": {"type": "point", "filled": True, "size": 90, "opacity": 1}, "encoding": dot},
    ]
    data = {"values": [_score_row(score) for score in scores]}
    spec: Spec = {"height": 240, "data": data, "encoding": {"x": _calls(scores)}, "layer": layers}
    return Chart(title, spec, spec, can_zoom=False)


def _curve(scores: Sequence[Score], curve: Part, y: Spec) -> Spec:
    """The line through all scores of one curve."""
    mark = MARKS[curve]
    drawn = {"color": f"var(--{mark.colour})", "strokeDash": list(mark.dash), "strokeWidth": 1.5}
    values = [_score_row(score) for score in scores if score.curve == curve]
    return {"data": {"values": values}, "mark": {"type": "line", **drawn}, "encoding": {"y": y}}


def _calls(scores: Sequence[Score]) -> Spec:
    """Network calls, in proportion."""
    counts = sorted({score.network_calls for score in scores})
    return {
        "field": "network_calls",
        "title": "network calls per image (log)",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "domain": [counts[0] / 1.2, counts[-1] * 1.2]},
        "axis": {"values": counts, "format": "~g", "grid": False, "labelOverlap": True},
    }


def _by_part(field: str, parts: Sequence[Part], values: Sequence[str]) -> Spec:
    """A channel that gives each part its value; the channels share one legend."""
    scale = {"domain": list(parts), "range": list(values)}
    # Two columns fit everywhere: a number that follows the width moves rows out of the drawing.
    legend = _columns(parts) | {"columns": 2}
    return {"field": field, "type": "nominal", "scale": scale, "legend": legend}


def _score_tooltip(scores: Sequence[Score], y_title: str) -> list[Spec]:
    """What is told beside the pointer."""
    numbers = [("mean", y_title), ("low", "interval from"), ("high", "interval to")]
    if any(score.steps is not None for score in scores):
        numbers.insert(0, ("steps", "steps"))
    return [
        {"field": "model", "title": "model"},
        {"field": "network_calls", "title": "network calls"},
        *(
            {"field": name, "type": "quantitative", "title": title, "format": ".4~g"}
            for name, title in numbers
        ),
    ]


def _score_row(score: Score) -> Mapping[str, Any]:
    """A row of a chart's data, without what was not measured."""
    names = ("model", "part", "network_calls", "steps", "mean", "low", "high")
    row = {name: getattr(score, name) for name in names}
    return {name: value for name, value in row.items() if value is not None}
