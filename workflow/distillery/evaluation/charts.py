"""Data in, Vega-Lite out: lines over samples, and scores of models over network calls."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distillery.evaluation.vega import ZOOM, Chart, Spec, colours

DIGITS = 4
"""Significant digits of a drawn number: a pixel is a thousandth of a chart."""
LOG_FROM = 8.0
"""Values that span this factor are drawn on a logarithmic axis."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        name: in the legend and beside the pointer.
        points: (x, y); those that are not finite are left out.
        is_main: drawn thicker.
        has_dots: drawn dashed, with a dot per point: measured now and then.
        colour: number of its colour; None for the next one.
    """

    name: str
    points: Sequence[tuple[float, float]]
    is_main: bool = True
    has_dots: bool = False
    colour: int | None = None


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
            "strokeDash": _by_series(lines, [[5, 3] if it.has_dots else [1, 0] for it in lines]),
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
    """A model at a cost: its mean, with an interval (None for a single prompt)."""

    model: str
    network_calls: float
    mean: float
    low: float | None = None
    high: float | None = None
    steps: int | None = None


def score_chart(
    scores: Sequence[Score], models: Sequence[str], y_title: str, title: str
) -> Chart | None:
    """Scores of models over their network calls, one dot a model; None for fewer than two.

    Models of equally many calls stand beside each other.

    Args:
        scores: a model each.
        models: all that the page draws, so that each has its colour and shape in every chart.
        y_title, title: of the vertical axis and of the chart.
    """
    return _score_chart(scores, models, y_title, title, is_path=False)


def steps_chart(
    scores: Sequence[Score], models: Sequence[str], y_title: str, title: str
) -> Chart | None:
    """A metric over network calls, one line a model; None for fewer than two scores."""
    return _score_chart(scores, models, y_title, title, is_path=True)


def _score_chart(
    scores: Sequence[Score], models: Sequence[str], y_title: str, title: str, *, is_path: bool
) -> Chart | None:
    if len(scores) < 2:
        return None
    drawn = [name for name in models if name in {score.model for score in scores}]
    places = [models.index(name) for name in drawn]
    palette = colours(len(models))
    color = _by_model(drawn, [palette[place] for place in places])
    mean: Spec = {"field": "mean", "type": "quantitative", "title": y_title}
    y = {"y": mean | {"scale": {"zero": False}}, "color": color}
    interval = y | {"y": y["y"] | {"field": "low"}, "y2": {"field": "high"}}
    is_known = {"filter": "isValid(datum.low) && isValid(datum.high)"}
    dot = {
        "shape": _by_model(drawn, [SHAPES[place % len(SHAPES)] for place in places]),
        "tooltip": _score_tooltip(scores, y_title),
    }
    layers: list[Spec] = [
        *([{"mark": {"type": "line", "strokeWidth": 1.5}, "encoding": y}] if is_path else []),
        {"transform": [is_known], "mark": {"type": "rule", "strokeWidth": 2}, "encoding": interval},
        {
            "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
            "encoding": y | dot,
        },
    ]
    encoding = {"x": _calls(scores, is_path)} | ({} if is_path else {"xOffset": {"field": "model"}})
    data = {"values": [_score_row(score) for score in scores]}
    spec: Spec = {"height": 240, "data": data, "encoding": encoding, "layer": layers}
    return Chart(title, spec, spec, can_zoom=False)


def _calls(scores: Sequence[Score], is_path: bool) -> Spec:
    """Network calls: in proportion (log) for lines, else one place per number of calls."""
    counts = sorted({score.network_calls for score in scores})
    shared: Spec = {"field": "network_calls", "title": "network calls per image"}
    if not is_path:
        axis = {"labelAngle": 0, "grid": False}
        return shared | {"type": "ordinal", "axis": axis, "scale": {"paddingInner": 0.4}}
    domain = [counts[0] / 1.2, counts[-1] * 1.2]
    return shared | {
        "title": "network calls per image (log)",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "domain": domain},
        "axis": {"values": counts, "format": "~g", "grid": False, "labelOverlap": True},
    }


def _by_model(models: Sequence[str], values: Sequence[str]) -> Spec:
    """A channel that gives each model its value; the channels share one legend."""
    scale = {"domain": list(models), "range": list(values)}
    return {"field": "model", "type": "nominal", "scale": scale, "legend": _columns(models)}


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
    row = {
        "model": score.model,
        "network_calls": score.network_calls,
        "steps": score.steps,
        **{name: getattr(score, name) for name in ("mean", "low", "high")},
    }
    return {name: value for name, value in row.items() if value is not None}
