"""Charts as Vega-Lite specs, drawn twice: as SVG for any reader, and by Vega where scripts run.

Every colour is a variable of the page's style sheet, so both drawings follow light and dark. Vega
evaluates expressions by its interpreter (`charts.js`), so a page works where `eval` is forbidden.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import vl_convert
from markupsafe import Markup

from distillery.report.pages import own_file

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


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        title: in words; also its name for a screen reader.
        spec: Vega-Lite, as wide as its place.
        still: the same for a reader without scripts: fewer marks, nothing that needs a pointer.
        is_wide: whether it takes the whole width of the page.
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
