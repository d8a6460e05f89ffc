"""Plots as inline SVG. Colours are the page's CSS variables, so that light and dark both work."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

NUM_COLOURS = 8
"""Of the classes c0, c1, ... in the style sheet."""


def tag(name: str, *children: str, **attributes: str | float) -> Markup:
    """One SVG element, all of it escaped; `class_` becomes class, underscores hyphens."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
    )
    inner = "".join(str(escape(child)) for child in children)
    return Markup(f"<{name}{pairs}>{inner}</{name}>")  # noqa: S704 (all parts are escaped)


def _text(value: str | float) -> str:
    """A coordinate with two decimals; text as it is."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def svg(width: int, height: int, label: str, *children: str) -> Markup:
    """A figure that scales with the page; `label` is what a screen reader says."""
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label=label,
        class_="plot",
        style=f"max-inline-size: {width}px",
    )


@dataclass(frozen=True)
class Scale:
    """A mapping of values to pixels, linear or logarithmic."""

    low: float
    high: float
    begin_px: float
    end_px: float
    is_log: bool = False
    marks: tuple[float, ...] = ()
    """Values to label instead of round ones."""

    def at(self, value: float) -> float:
        """The pixel of a value."""
        low, high, value = (
            (math.log10(number) for number in (self.low, self.high, value))
            if self.is_log
            else (self.low, self.high, value)
        )
        share = (value - low) / (high - low) if high > low else 0.5
        return self.begin_px + share * (self.end_px - self.begin_px)

    @property
    def ticks(self) -> list[float]:
        """The marks that do not collide, else round values inside the range."""
        if self.marks:
            return self._spaced_marks()
        return log_ticks(self.low, self.high) if self.is_log else ticks(self.low, self.high)

    def _spaced_marks(self) -> list[float]:
        """Ascending marks that are at least 28 px apart."""
        kept: list[float] = []
        for mark in sorted(self.marks):
            if not kept or abs(self.at(mark) - self.at(kept[-1])) >= 28:
                kept.append(mark)
        return kept


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` values at a distance of 1, 2 or 5 times a power of ten, inside the range."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten times 1, 2 and 5 inside the range; only powers over more than three decades."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1,) if math.log10(high / low) > 3 else (1, 2, 5)
    values = (factor * 10.0**decade for decade in decades for factor in factors)
    return [value for value in values if low * 0.999 <= value <= high * 1.001]


def short(value: float) -> str:
    """A tick's label: 12.8k instead of 12800, no trailing zeros."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.4g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.4g}k"
    return f"{value:.4g}"


@dataclass(frozen=True)
class Frame:
    """The axes of a plot."""

    x: Scale
    y: Scale
    x_label: str
    y_label: str

    def draw(self) -> list[Markup]:
        """Grid lines, tick labels and the names of the axes."""
        left, right = self.x.begin_px, self.x.end_px
        bottom = self.y.begin_px
        parts = []
        for value in self.y.ticks:
            y = self.y.at(value)
            parts.append(tag("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
            parts.append(tag("text", short(value), x=left - 8, y=y + 4, class_="tick end"))
        for value in self.x.ticks:
            x = self.x.at(value)
            parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 5, class_="axis"))
            parts.append(tag("text", short(value), x=x, y=bottom + 19, class_="tick middle"))
        parts.append(tag("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis"))
        centre = (left + right) / 2
        parts.append(tag("text", self.x_label, x=centre, y=bottom + 38, class_="label middle"))
        parts.append(tag("text", self.y_label, x=left, y=self.y.end_px - 12, class_="label"))
        return parts


# ---- lines -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One series; `colour` is a class of the style sheet."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    is_main: bool = True


def line_plot(
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    label: str,
    width: int = 520,
    can_be_log: bool = True,
    marks: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Series over a common axis, named at their right end; logarithmic where that tells more.

    `can_be_log` is false for what may fall to zero by design, as a learning rate does. Points that
    are not finite are left out. `marks` are dashed vertical lines: where, and what begins there.
    Returns an empty string if no point is left.
    """
    kept = [_finite(line) for line in lines]
    kept = [line for line in kept if line.points]
    if not kept:
        return Markup()
    values = [y for line in kept for _, y in line.points]
    is_log = can_be_log and min(values) > 0 and max(values) > 8 * min(values)
    low, high = (min(values) / 1.1, max(values)) if is_log else (min(0.0, *values), max(values))
    height = 300
    right = width - (110.0 if any(line.name for line in kept) else 20.0)
    xs = [x for line in kept for x, _ in line.points]
    frame = Frame(
        Scale(min(xs), max(xs), 64.0, right),
        Scale(low, high if high > low else low + 1.0, height - 48.0, 34.0, is_log),
        x_label,
        y_label + (" (log)" if is_log else ""),
    )
    parts = frame.draw() + [_draw_mark(frame, *mark) for mark in marks]
    for line in kept:
        path = " ".join(f"{frame.x.at(x):.1f},{frame.y.at(y):.1f}" for x, y in line.points)
        style = f"line {line.colour}" + ("" if line.is_main else " thin")
        parts.append(tag("polyline", tag("title", line.name), points=path, class_=style))
    ends = [frame.y.at(line.points[-1][1]) for line in kept]
    for line, y in zip(kept, spread_labels(ends, 15.0, 34.0, height - 48.0), strict=True):
        style = f"name {line.colour}" + (" bold" if line.is_main else "")
        parts.append(tag("text", line.name, x=right + 8, y=y + 4, class_=style))
    return svg(width, height, label, *parts)


def _draw_mark(frame: Frame, at: float, title: str) -> Markup:
    """A vertical line over the whole height."""
    x = frame.x.at(at)
    ends = {"y1": frame.y.begin_px, "y2": frame.y.end_px}
    return tag("line", tag("title", title), x1=x, x2=x, class_="mark", **ends)


def _finite(line: Line) -> Line:
    """A line without points that cannot be drawn."""
    points = [(x, y) for x, y in line.points if math.isfinite(x) and math.isfinite(y)]
    return Line(line.name, points, line.colour, line.is_main)


def spread_labels(wanted: Sequence[float], distance: float, low: float, high: float) -> list[float]:
    """Positions near the wanted ones, in the same order, at least `distance` apart."""
    order = sorted(range(len(wanted)), key=lambda number: wanted[number])
    placed = [0.0] * len(wanted)
    floor = low
    for number in order:
        placed[number] = max(wanted[number], floor)
        floor = placed[number] + distance
    ceiling = high
    for number in reversed(order):
        placed[number] = min(placed[number], ceiling)
        ceiling = placed[number] - distance
    return placed


# ---- quality against cost ----------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A model: its cost, and its score with an interval (None for a single prompt)."""

    name: str
    x: float
    mean: float
    low: float | None
    high: float | None
    is_main: bool


def interval_plot(points: Sequence[Point], x_label: str, y_label: str, label: str) -> Markup:
    """Scores with whiskers over a logarithmic cost."""
    width, height = 560, 300
    lows = [point.mean if point.low is None else point.low for point in points]
    highs = [point.mean if point.high is None else point.high for point in points]
    margin = (max(highs) - min(lows)) * 0.12 or abs(highs[0]) * 0.1 or 1.0
    costs = [point.x for point in points]
    frame = Frame(
        Scale(min(costs) / 1.5, max(costs) * 1.5, 64.0, width - 24.0, True, tuple(set(costs))),
        Scale(min(lows) - margin, max(highs) + margin, height - 48.0, 34.0),
        x_label,
        y_label,
    )
    parts = frame.draw()
    for cost in sorted(set(costs)):
        group = [point for point in points if point.x == cost]
        wanted = [frame.y.at(point.mean) for point in group]
        for point, name_y in zip(
            group, spread_labels(wanted, 15.0, 34.0, height - 58.0), strict=True
        ):
            parts += _draw_point(point, frame, name_y)
    return svg(width, height, label, *parts)


def _draw_point(point: Point, frame: Frame, name_y: float) -> list[Markup]:
    """One dot, its whisker and its name, on the side that has room, at a height of its own."""
    x, y = frame.x.at(point.x), frame.y.at(point.mean)
    style = "main" if point.is_main else "other"
    parts = []
    if point.low is not None and point.high is not None:
        ends = {"y1": frame.y.at(point.low), "y2": frame.y.at(point.high)}
        parts.append(tag("line", x1=x, x2=x, class_=f"whisker {style}", **ends))
    hint = tag("title", f"{point.name}: {point.mean:.4g} at {point.x:g}")
    parts.append(tag("circle", hint, cx=x, cy=y, r=5.0, class_=f"dot {style}"))
    to_left = x > (frame.x.begin_px + frame.x.end_px) / 2
    side = "end" if to_left else ""
    offset = -11.0 if to_left else 11.0
    text_style = f"name {style} {side}" + (" bold" if point.is_main else "")
    parts.append(tag("text", point.name, x=x + offset, y=name_y + 4, class_=text_style))
    return parts
