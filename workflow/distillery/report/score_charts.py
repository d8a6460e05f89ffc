"""Quality over network calls: the student beside the curves of its teacher."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distillery.config.samples import SampledModel
from distillery.measures.lists import MEASURES
from distillery.measures.measure import PERCENT, Named
from distillery.measures.of_judge import CLIP_SCORE
from distillery.measures.of_sets import OF_SETS
from distillery.report.charts import LOG_FROM, Chart, Spec
from distillery.report.roles import MARKS, OF_STEPS, Part, Roles, part_of, teacher_part
from distillery.report.verdict import read_interval
from distillery.words import counted, noun_of

HEIGHT, WIDTH = 290, 420
"""Of the plot in pixels; the width, which the page decides, is guessed to lay out labels."""
LETTER_PX, LINE_PX = 7, 15
"""Of a label's text."""
ROOM = 0.06
"""Of the plot, above and below the values."""


@dataclass(frozen=True)
class Score:
    """A model at a cost: its mean, with an interval (None for a single prompt).

    Attributes:
        part: what it is, which decides on its colour and shape.
        curve: the part whose line it lies on; None without a line.
        label: beside its point; empty: the model's name.
    """

    model: str
    network_calls: float
    mean: float
    low: float | None = None
    high: float | None = None
    part: Part = "other"
    curve: Part | None = None
    label: str = ""


@dataclass(frozen=True)
class Line:
    """What a chart's points are held to: a dashed line, or the upper end of a band."""

    at: float
    name: str
    is_band: bool = False


@dataclass(frozen=True)
class Axis:
    """The vertical axis: its ends, and where on the plot a value stands."""

    low: float
    high: float
    is_log: bool

    @classmethod
    def of(cls, scores: Sequence[Score], line: Line | None) -> "Axis":
        """From the least value to the largest, with room for the marks."""
        ends = [end for it in scores for end in (it.mean, it.low, it.high) if end is not None]
        values = [*ends, *([line.at] if line else [])]
        least, most = min(values), max(values)
        if least > 0 and most >= LOG_FROM * least:
            room = (most / least) ** ROOM
            return cls(least / room, most * room, True)
        room = ROOM * (most - least or abs(most) or 1.0)
        return cls(least - room, most + room, False)

    def to_px(self, value: float) -> float:
        """Below the upper end."""
        form: Callable[[float], float] = math.log if self.is_log else float
        return HEIGHT * (form(self.high) - form(value)) / (form(self.high) - form(self.low))

    def from_px(self, px: float) -> float:
        """The value there."""
        share = px / HEIGHT
        if self.is_log:
            return float(self.high ** (1 - share) * self.low**share)
        return self.high - share * (self.high - self.low)


def score_chart(
    scores: Sequence[Score],
    y_title: str,
    title: str,
    noun: str = "image",
    y_format: str = ".4~g",
    line: Line | None = None,
) -> Chart | None:
    """Scores of models over their network calls; None for fewer than two.

    Network calls are in proportion (log), so models of equal cost stand at one place. Scores of one
    curve are joined, and an arrow leads from the untrained student to the trained one.
    """
    if len(scores) < 2:
        return None
    axis = Axis.of(scores, line)
    y = {
        "field": "mean",
        "type": "quantitative",
        "title": y_title + (" (log)" if axis.is_log else ""),
        "scale": {"type": "log" if axis.is_log else "linear", "nice": False, "zero": False}
        | {"domain": [axis.low, axis.high]},
        "axis": {"format": y_format, "tickCount": 5},
    }
    parts = [part for part in MARKS if any(part == it.part for it in scores)]
    colour = {"color": _by_part(parts, [f"var(--{MARKS[it].colour})" for it in parts])}
    shape = _by_part(parts, [MARKS[it].shape for it in parts])
    is_known = {"filter": "isValid(datum.low) && isValid(datum.high)"}
    interval = {"y": y | {"field": "low"}, "y2": {"field": "high"}, **colour}
    dot = {"y": y, **colour, "shape": shape, "tooltip": _score_tooltip(y_title)}
    curves = [part for part in MARKS if any(part == it.curve for it in scores)]
    layers: list[Spec] = [
        *(_held_to(line, axis, y) if line else []),
        *(_curve(scores, curve, y) for curve in curves),
        *_arrow(scores, axis, y),
        {"transform": [is_known], "mark": {"type": "rule", "strokeWidth": 2}, "encoding": interval},
        {"mark": {"type": "point", "filled": True, "size": 90, "opacity": 1}, "encoding": dot},
        *_labels(scores, axis, y, line),
    ]
    spec: Spec = {
        "height": HEIGHT,
        "data": {"values": [_score_row(score) for score in scores]},
        "encoding": {"x": _calls(scores, noun)},
        "layer": layers,
    }
    return Chart(title, spec, spec, can_zoom=False)


def _held_to(line: Line, axis: Axis, y: Spec) -> list[Spec]:
    """The line or the band, with its name at the right edge."""
    data = {"values": [{"at": line.at, "end": axis.low}]}
    there = {"x": None, "y": y | {"field": "at"}}
    drawn: Spec = {
        "mark": {"type": "rule", "color": "var(--muted)", "strokeDash": [5, 4]},
        "encoding": there,
    }
    if line.is_band:
        drawn = {
            "mark": {"type": "rect", "color": "var(--grid)"},
            "encoding": there | {"y2": {"field": "end"}},
        }
    name = {"type": "text", "align": "right", "dx": -4, "dy": 9, "color": "var(--muted)"}
    words = there | {"x": {"value": "width"}, "text": {"value": line.name}}
    return [{"data": data} | drawn, {"data": data, "mark": name, "encoding": words}]


def _curve(scores: Sequence[Score], curve: Part, y: Spec) -> Spec:
    """The thin line through all scores of one curve."""
    mark = MARKS[curve]
    drawn = {"color": f"var(--{mark.colour})", "strokeDash": list(mark.dash), "strokeWidth": 1.2}
    values = [_score_row(score) for score in scores if score.curve == curve]
    return {"data": {"values": values}, "mark": {"type": "line", **drawn}, "encoding": {"y": y}}


def _arrow(scores: Sequence[Score], axis: Axis, y: Spec) -> list[Spec]:
    """What the training did: from the untrained student to the trained one, of equal cost."""
    by_part = {it.part: it for it in scores}
    before, after = by_part.get("untrained"), by_part.get("student")
    if before is None or after is None:
        return []
    begin_px, end_px = axis.to_px(before.mean), axis.to_px(after.mean)
    if abs(end_px - begin_px) < 2 * LINE_PX:
        return []
    is_up = end_px < begin_px
    head_px = end_px + (11 if is_up else -11)
    row = {"network_calls": after.network_calls, "mean": before.mean, "to": axis.from_px(head_px)}
    data = {"values": [row]}
    shape = "triangle-up" if is_up else "triangle-down"
    head = {"type": "point", "shape": shape, "filled": True, "opacity": 1, "size": 60}
    line = {"type": "rule", "strokeWidth": 1.5, "color": "var(--muted)"}
    return [
        {"data": data, "mark": line, "encoding": {"y": y, "y2": {"field": "to"}}},
        {
            "data": data,
            "mark": head | {"color": "var(--muted)"},
            "encoding": {"y": y | {"field": "to"}},
        },
    ]


def _labels(scores: Sequence[Score], axis: Axis, y: Spec, line: Line | None) -> list[Spec]:
    """The models' names beside their points, on the side that has more room, apart."""
    calls = [math.log(score.network_calls) for score in scores]
    first, length = min(calls), max(calls) - min(calls) or 1.0
    x_px = [WIDTH * (it - first) / length for it in calls]
    points = [(x, axis.to_px(score.mean)) for x, score in zip(x_px, scores, strict=True)]
    taken = [(x - 7, x + 7, at) for x, at in points]
    if line and not line.is_band:
        taken.append((0.0, WIDTH, axis.to_px(line.at)))
    rows: dict[str, list[Mapping[str, Any]]] = {"left": [], "right": []}
    for (x, at), score in zip(points, scores, strict=True):
        text = score.label or score.model
        align = "left" if x <= WIDTH / 2 else "right"
        begin = x + 10 if align == "left" else x - 10 - LETTER_PX * len(text)
        end = begin + LETTER_PX * len(text)
        place = _free_place(at, begin, end, taken)
        taken.append((begin, end, place))
        row = {"network_calls": score.network_calls, "text": text, "part": score.part}
        rows[align].append(row | {"mean": axis.from_px(place)})
    return [
        {
            "data": {"values": values},
            "mark": {"type": "text", "align": align, "dx": 10 if align == "left" else -10}
            | {"color": "var(--ink)", "fontSize": 12},
            "encoding": {"y": y, "text": {"field": "text"}},
        }
        for align, values in rows.items()
        if values
    ]


def _free_place(
    at: float, begin: float, end: float, taken: Sequence[tuple[float, float, float]]
) -> float:
    """Where a label stands that overlaps none, as near to its point as it can, within the plot."""
    for number in range(2 * HEIGHT // LINE_PX):
        step = (number + 1) // 2 * LINE_PX
        place = at - step if number % 2 else at + step
        is_free = all(
            end < left or right < begin or abs(place - other) >= LINE_PX - 1
            for left, right, other in taken
        )
        if is_free and 0 <= place <= HEIGHT:
            return place
    return at


def _calls(scores: Sequence[Score], noun: str) -> Spec:
    """Network calls, in proportion."""
    counts = sorted({score.network_calls for score in scores})
    return {
        "field": "network_calls",
        "title": f"network calls per {noun} (log)",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "domain": [counts[0] / 1.2, counts[-1] * 1.2]},
        "axis": {"values": counts, "format": "~g", "grid": False, "labelOverlap": True},
    }


def _by_part(parts: Sequence[Part], values: Sequence[str]) -> Spec:
    """A channel that gives each part its value; the labels say what a legend would."""
    scale = {"domain": list(parts), "range": list(values)}
    return {"field": "part", "type": "nominal", "scale": scale, "legend": None}


def _score_tooltip(y_title: str) -> list[Spec]:
    """What is told beside the pointer."""
    numbers = [("mean", y_title), ("low", "interval from"), ("high", "interval to")]
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
    names = ("model", "part", "network_calls", "mean", "low", "high")
    row = {name: getattr(score, name) for name in names}
    return {name: value for name, value in row.items() if value is not None}


# ---- of a run -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scored:
    """What charts of scores are made of.

    Attributes:
        quality: quality.json, each model under one name.
        least: share of the reference's CLIP score that is asked for.
    """

    quality: Mapping[str, Any]
    models: Mapping[str, SampledModel]
    roles: Roles
    least: float

    @property
    def noun(self) -> str:
        """What the models make."""
        return noun_of(self.quality.get("num_frames", 1))

    def part(self, name: str) -> Part:
        """What a model is."""
        return part_of(name, self.models, self.quality, self.roles)

    def curve(self, name: str) -> Part | None:
        """The curve of the teacher's models that a model is a point of; None for students."""
        names = [name, *self.roles.same.names.get(name, ())]
        if not any(self.models[it].source == "teacher" for it in names):
            return None
        return teacher_part(self.quality["models"][name]["guidance_scale"])

    def label(self, name: str) -> str:
        """A few words; the axis says the cost."""
        if not OF_STEPS.fullmatch(name):
            return name
        facts = self.quality["models"][name]
        guided = "guided" if facts["guidance_scale"] > 1 else "no guidance"
        return f"{counted(facts['steps'], 'step')}, {guided}"

    def score(self, name: str, raw: Any) -> Score | None:
        """A metric of a model; None where it was not measured."""
        value, facts = read_interval(raw), self.quality["models"][name]
        if value is None:
            return None
        return Score(
            self.roles.label(name),
            facts["network_calls"],
            value.mean,
            value.low,
            value.high,
            self.part(name),
            self.curve(name),
            self.label(name),
        )


def quality_charts(scored: Scored | None) -> list[Chart]:
    """Measures over network calls, as multiples of the reference's where they have such.

    The first is the CLIP score; those of sets are drawn in each vision model. Empty without scores.
    """
    if scored is None:
        return []
    models, reference = scored.quality["models"], scored.roles.reference
    against = {name: facts["against"].get(reference, {}) for name, facts in models.items()}
    asked = Line(scored.least, f"asked for: {PERCENT(scored.least)}")
    charts = [
        _chart(scored, it, models, against, asked if it is CLIP_SCORE else None)
        for it in MEASURES
        if it.is_over_steps
    ]
    floor = Line(1.0, "floor: the reference at other noises", is_band=True)
    for vision in scored.quality.get("vision_models", {}):
        sets = {name: facts["sets"].get(vision, {}) for name, facts in models.items()}
        where = f" in {vision}" if len(scored.quality["vision_models"]) > 1 else ""
        charts += [
            _chart(scored, it, sets, sets, floor, where) for it in OF_SETS if it.is_over_steps
        ]
    return [chart for chart in charts if chart]


def _chart(
    scored: Scored,
    measure: Named,
    values: Mapping[str, Mapping[str, Any]],
    ratios: Mapping[str, Mapping[str, Any]],
    line: Line | None,
    where: str = "",
) -> Chart | None:
    """One measure of all models: its ratio to the reference's, or itself where it has none.

    Args:
        values, ratios: by model, as quality.json holds them.
        line: that the ratios are held to.
    """
    title, raw, y_format = measure.title, {}, ".4~g"
    if measure.ratio:
        is_share = measure.ratio.form is PERCENT
        own = f" as a share of {scored.roles.whose}" if is_share else f" {measure.ratio.title}"
        title = measure.title + own
        raw = {name: facts.get(measure.ratio_key) for name, facts in ratios.items()}
    others = [name for name in raw if name != scored.roles.reference]
    if others and all(read_interval(raw[name]) for name in others):
        raw[scored.roles.reference] = {"mean": 1.0, "low": None, "high": None}
        y_format = ".0%" if measure.ratio and measure.ratio.form is PERCENT else y_format
    else:
        title, line = measure.title, None
        raw = {name: facts.get(measure.name) for name, facts in values.items()}
    found = [scored.score(name, it) for name, it in raw.items() if name in values]
    scores = [score for score in found if score is not None]
    scores.sort(key=lambda score: (score.curve or score.part, score.network_calls, score.model))
    words = title + where
    return score_chart(scores, title, f"{words}, over network calls", scored.noun, y_format, line)
