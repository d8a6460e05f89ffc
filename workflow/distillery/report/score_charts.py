"""Scores of models over their network calls, as charts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distillery.config.samples import SampledModel
from distillery.measures.lists import MEASURES
from distillery.measures.of_sets import OF_SETS
from distillery.report.charts import Chart, Spec, columns
from distillery.report.roles import MARKS, Part, Roles, part_of, teacher_part
from distillery.report.verdict import read_interval
from distillery.words import noun_of

MIN_CURVE = 3
"""Numbers of steps that make a curve."""


@dataclass(frozen=True)
class Score:
    """A model at a cost: its mean, with an interval (None for a single prompt).

    Attributes:
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


def score_chart(
    scores: Sequence[Score], y_title: str, title: str, noun: str = "image"
) -> Chart | None:
    """Scores of models over their network calls; None for fewer than two.

    Network calls are in proportion (log), so models of equal cost stand at one place. Scores of one
    curve are joined.
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
    spec: Spec = {
        "height": 240,
        "data": data,
        "encoding": {"x": _calls(scores, noun)},
        "layer": layers,
    }
    return Chart(title, spec, spec, can_zoom=False)


def _curve(scores: Sequence[Score], curve: Part, y: Spec) -> Spec:
    """The line through all scores of one curve."""
    mark = MARKS[curve]
    drawn = {"color": f"var(--{mark.colour})", "strokeDash": list(mark.dash), "strokeWidth": 1.5}
    values = [_score_row(score) for score in scores if score.curve == curve]
    return {"data": {"values": values}, "mark": {"type": "line", **drawn}, "encoding": {"y": y}}


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


def _by_part(field: str, parts: Sequence[Part], values: Sequence[str]) -> Spec:
    """A channel that gives each part its value; the channels share one legend."""
    scale = {"domain": list(parts), "range": list(values)}
    # Two columns fit everywhere: a number that follows the width moves rows out of the drawing.
    legend = columns(parts) | {"columns": 2}
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


# ---- of a run -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scored:
    """What charts of scores are made of.

    Attributes:
        quality: quality.json, each model under one name.
    """

    quality: Mapping[str, Any]
    models: Mapping[str, SampledModel]
    roles: Roles

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

    def score(self, name: str, raw: Any, *, on_curve: bool = False) -> Score | None:
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
            facts["steps"] if on_curve else None,
            self.part(name),
            self.curve(name) if on_curve else None,
        )


def quality_charts(scored: Scored | None, has_curves: bool) -> list[Chart]:
    """The measures that are charted, against network calls; empty without scores.

    A chart needs two models.

    Args:
        has_curves: whether `steps_charts` draws some of them.
    """
    if scored is None:
        return []
    charts = []
    for measure in (it for it in MEASURES if it.is_charted):
        if measure.is_over_steps and has_curves:
            continue
        better = "higher" if measure.direction > 0 else "lower"
        title = f"{measure.title} ({better} is better)"
        models = scored.quality["models"].items()
        found = [scored.score(name, facts.get(measure.name)) for name, facts in models]
        scores = [score for score in found if score is not None]
        of_each = f"{title} of each model against its network calls"
        charts.append(score_chart(scores, title, of_each, scored.noun))
    return [chart for chart in charts if chart]


@dataclass(frozen=True)
class StepsChart:
    """A metric at several numbers of steps: the chart, and its rows for who cannot see it."""

    title: str
    chart: Chart | None
    scores: Sequence[Score]


def steps_charts(scored: Scored | None) -> list[StepsChart]:
    """Measures over network calls, those of sets in each vision model.

    The teacher has a curve for each guidance, any other model a point. Empty where no curve has
    `MIN_CURVE` points.
    """
    if scored is None:
        return []
    curves = Counter(filter(None, map(scored.curve, scored.quality["models"])))
    if max(curves.values(), default=0) < MIN_CURVE:
        return []
    models = scored.quality["models"]
    charts = [
        _steps_chart(scored, it.title, {name: facts.get(it.name) for name, facts in models.items()})
        for it in MEASURES
        if it.is_over_steps
    ]
    for vision in scored.quality["vision_models"]:
        for it in (it for it in OF_SETS if it.is_over_steps):
            title = f"{it.title} in {vision}, to other noises"
            sets = {name: facts["sets"].get(vision, {}) for name, facts in models.items()}
            values = {name: found.get(it.name) for name, found in sets.items()}
            charts.append(_steps_chart(scored, title, values))
    return [chart for chart in charts if chart.scores]


def _steps_chart(scored: Scored, title: str, values: Mapping[str, Any]) -> StepsChart:
    """One measure of all models, by name as quality.json holds it."""
    found = [scored.score(name, raw, on_curve=True) for name, raw in values.items()]
    scores = [score for score in found if score is not None]
    scores.sort(key=lambda score: (score.curve or score.part, score.network_calls, score.model))
    chart = score_chart(scores, title, f"{title} over network calls", scored.noun)
    return StepsChart(title, chart, scores)
