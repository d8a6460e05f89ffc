"""Charts as Vega-Lite specs, drawn twice: as SVG for any reader, and by Vega where scripts run.

Every colour is a variable of the page's style sheet, so both drawings follow light and dark. Vega
evaluates expressions by its interpreter (`charts.js`), so a page works where `eval` is forbidden.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import vl_convert
from markupsafe import Markup

from distillery.report.html import own_file

VEGA_LITE = "6.4"
"""Of the versions that vl-convert has."""
NUM_COLOURS = 8
"""Of the variables --c0, --c1, ... in the style sheet."""
LICENCE = (
    "Vega, Vega-Lite, Vega-Embed: BSD 3-Clause, (c) University of Washington Interactive Data Lab"
)
Spec = dict[str, Any]
"""A Vega-Lite specification, or a part of one."""
ZOOM: Spec = {
    "name": "zoom",
    "select": {
        "type": "interval",
        "encodings": ["x"],
        "zoom": "wheel![event.ctrlKey || event.metaKey]",
    },
    "bind": "scales",
}
"""Drag to move, wheel with Ctrl to zoom, double click to see all; `charts.js` adds buttons."""
CONFIG: Spec = {
    "aria": False,  # the page names each chart; a name per bar would be two thirds of its bytes
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "domainColor": "var(--muted)",
        "gridColor": "var(--grid)",
        "labelColor": "var(--muted)",
        "labelFontSize": 12,
        "tickColor": "var(--muted)",
        "titleColor": "var(--muted)",
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {
        "labelColor": "var(--ink)",
        "labelFontSize": 12,
        "labelLimit": 0,
        "orient": "top",
        "titleColor": "var(--muted)",
    },
    "title": {"anchor": "start", "color": "var(--ink)", "fontSize": 13, "fontWeight": 600},
}
DIGITS = 4
"""Significant digits of a drawn number: a pixel is a thousandth of a chart."""
LOG_FROM = 8.0
"""Values that span this factor are drawn on a logarithmic axis."""
SOLID: tuple[int, ...] = (1, 0)
"""A line without gaps."""


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        title: in words; also its name for a screen reader.
        spec: Vega-Lite, as wide as its place.
        still: the same for a reader without scripts: fewer marks, nothing that needs a pointer.
        can_zoom: whether its horizontal axis has `ZOOM`.
    """

    title: str
    spec: Spec
    still: Spec
    is_wide: bool = False
    can_zoom: bool = True

    @property
    def script(self) -> Markup:
        """The spec as JSON that may stand inside a script element."""
        text = json.dumps(finish(self.spec), allow_nan=False, separators=(",", ":"))
        return Markup(text.replace("<", "\\u003c"))  # noqa: S704 (cannot close the element)

    @property
    def svg(self) -> Markup:
        """The still as SVG."""
        spec = finish(self.still) | {"width": 1100 if self.is_wide else 520}
        drawn = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, allowed_base_urls=[])
        return Markup(drawn)  # noqa: S704 (Vega escapes the text in it)


def finish(spec: Mapping[str, Any]) -> Spec:
    """A spec with what all charts share."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        **spec,
        "config": CONFIG,
    }


def colours(count: int) -> list[str]:
    """So many colours of the style sheet, which repeat after the last."""
    return [f"var(--c{number % NUM_COLOURS})" for number in range(count)]


@cache  # bundling takes a second
def runtime() -> Markup:
    """Vega with Vega-Lite, and what puts the charts of a page into their places."""
    script = vl_convert.javascript_bundle(str(own_file("charts.js")), vl_version=VEGA_LITE)
    return Markup(f"/* {LICENCE} */\n{script}".replace("</script", "<\\/script"))  # noqa: S704


# ---- lines over samples -------------------------------------------------------------------------


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
        **columns([one.name for one in lines]),
        "labelExpr": f"{names}[+slice(datum.value, 1)]",
        "symbolType": "stroke",
        "symbolOpacity": 1,
    }


def _palette(lines: Sequence[Series]) -> list[str]:
    """Each series' colour."""
    numbers = [number if one.colour is None else one.colour for number, one in enumerate(lines)]
    palette = colours(max(numbers) + 1)
    return [palette[number] for number in numbers]


def columns(names: Sequence[str]) -> Spec:
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
