"""The report's words and charts, made of its numbers."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pandas as pd

from distillery.config.samples import SampledModel
from distillery.config.training import Training
from distillery.measures.lists import MEASURES
from distillery.measures.manifests import ModelSamples
from distillery.measures.of_sets import OF_SETS
from distillery.report.charts import Score, Series, line_chart, score_chart
from distillery.report.marks import Part, part_of
from distillery.report.timeline import RunClock, StageTime, Worker
from distillery.report.timeline_chart import Timeline, timeline_chart
from distillery.report.vega import NUM_COLOURS, Chart
from distillery.report.verdict import Roles, read_interval
from distillery.stage import Stage
from distillery.training.watchers.alarms import COMPANIONS, HELD_OUT, KNOT, ROLLOUT
from distillery.words import counted

MIN_CURVE = 3
"""Numbers of steps that make a curve."""
DASHES = ((1, 0), (8, 3), (2, 2), (8, 3, 2, 3))
"""Of the segments' lines, in turn: who cannot tell two colours apart sees two lines."""
MAX_LOSS_POINTS = 600
"""Points of a curve; a longer log is averaged down to as many."""


def training_parts(training: Training) -> str:
    """What the samples of a training are, in their order; empty if all are stored segments."""
    return "" if training.is_plain else training.words


def restarts(training: Training) -> list[tuple[int, str]]:
    """After how many samples the learning rate begins anew, and what begins there."""
    if training.schedule == "constant":
        return []
    spans = [span for span in training.spans if span.phase.restarts]
    return [(span.begin, span.title) for span in spans if span.begin > 0]


def black_images(samples: Mapping[str, ModelSamples]) -> str | None:
    """Which models have images whose every pixel is 0, and what that does to the scores."""
    named = [
        f"{model.num_black:,} of {counted(len(model.table), 'image')} of {name}"
        for name, model in samples.items()
        if model.num_black
    ]
    if not named:
        return None
    return (
        f"{', '.join(named)}: every pixel is 0. They are scored like all others; two black "
        "images are equal, so a PSNR of 100 dB between them says nothing."
    )


# ---- charts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scored:
    """What charts of scores are made of.

    Attributes:
        quality: quality.json, each model under one name.
        models: as configured, by name.
        roles: which of them play a part.
    """

    quality: Mapping[str, Any]
    models: Mapping[str, SampledModel]
    roles: Roles

    def part(self, name: str) -> Part:
        """What a model is."""
        return part_of(name, self.models, self.quality, self.roles)

    def curve(self, name: str) -> Part | None:
        """The curve of the teacher's models that a model is a point of; None for students."""
        names = [name, *self.roles.same.names.get(name, ())]
        if not any(self.models[it].source == "teacher" for it in names):
            return None
        is_guided = self.quality["models"][name]["guidance_scale"] > 1
        return "teacher, guided" if is_guided else "teacher, no guidance"

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
        scored: the models; None without scores.
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
        charts.append(score_chart(scores, title, of_each))
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
    return StepsChart(title, score_chart(scores, title, f"{title} over network calls"), scores)


def loss_charts(
    loss: pd.DataFrame | None, training: Training, timesteps: Sequence[float] = ()
) -> list[Chart]:
    """Loss with its segments, gradient norm and learning rate; empty without training.

    Args:
        loss: the training's log.
        training: its settings.
        timesteps: of the student's steps, for the names of its segments; empty if not known.
    """
    if loss is None or loss.empty:
        return []
    axis = "training samples seen"
    charts = [
        line_chart(_losses(loss, timesteps), axis, "loss", "Loss", is_wide=True, log_from=1.0),
        line_chart(
            _errors(loss),
            axis,
            "mean square of latents",
            "Distance from the teacher, step by step",
            is_wide=True,
            log_from=1.0,
        ),
        line_chart([_series(loss, "grad_norm", "gradient norm")], axis, "", "Gradient norm"),
        line_chart(
            [_series(loss, "learning_rate", "learning rate")],
            axis,
            "",
            "Learning rate",
            log_from=math.inf,
            marks=restarts(training),
        ),
        *(
            line_chart([_series(loss, f"loss_{name}", "loss")], axis, "", f"Loss of the {name}")
            for name in COMPANIONS
        ),
    ]
    return [chart for chart in charts if chart]


def _losses(loss: pd.DataFrame, timesteps: Sequence[float]) -> list[Series]:
    """All kinds of loss in a training's log: of segments, of all of them, held out, of rollouts."""
    segments = segments_of(loss)
    lines = [
        replace(
            _series(loss, name, title, is_main=False, colour=1 + number % 6),
            dash=DASHES[number % len(DASHES)],
        )
        for number, (name, title) in enumerate(segment_titles(segments, timesteps).items())
    ]
    of_segments = loss.assign(loss=loss["loss"].mask(find_rollouts(loss)))
    name = "all segments" if segments else "loss"
    return [
        *lines,
        _series(of_segments, "loss", name, colour=0),
        _series(loss, HELD_OUT, "held out", has_dots=True, colour=0),
        _series(loss, ROLLOUT, "rollout", colour=7),
    ]


def _errors(loss: pd.DataFrame) -> list[Series]:
    """How far the student's own walks from held-out noise are from the teacher's, by knot."""
    columns = _numbered(loss, KNOT)
    titles = [f"after step {number}" for number in range(1, len(columns))] + ["at the clean end"]
    return [
        _series(loss, column, title, has_dots=True, colour=number % 7)
        for number, (column, title) in enumerate(zip(columns, titles, strict=False))
    ]


def segments_of(loss: pd.DataFrame) -> list[str]:
    """The columns of the segments' losses, in order."""
    return _numbered(loss, "loss_segment_")


def _numbered(loss: pd.DataFrame, beginning: str) -> list[str]:
    """The columns with such a beginning, in the order of the numbers at their ends."""
    names = (name for name in loss.columns if name.startswith(beginning))
    return sorted(names, key=lambda name: int(name.rsplit("_", 1)[1]))


def segment_titles(segments: Sequence[str], timesteps: Sequence[float]) -> dict[str, str]:
    """What each segment is called: its number and, where known, its first and last timestep."""
    names = [f"segment {number}" for number in range(len(segments))]
    if len(timesteps) == len(segments):
        ends = [f"{timestep:g}" for timestep in timesteps] + ["clean"]
        names = [
            f"{it}, t {begin} to {end}"
            for it, (begin, end) in zip(names, pairwise(ends), strict=True)
        ]
    return dict(zip(segments, names, strict=True))


def find_rollouts(loss: pd.DataFrame) -> "pd.Series[bool]":
    """Which rows of the log are of the finishing phase, whose loss is of another kind."""
    if ROLLOUT not in loss.columns:
        return pd.Series(False, index=loss.index)
    return loss[ROLLOUT].notna()


def speed_chart(speed: Sequence[tuple[float, float]]) -> Chart | None:
    """Samples per second over the samples seen; None for fewer than two intervals."""
    if len(speed) < 2:
        return None
    table = pd.DataFrame(speed, columns=["samples_seen", "speed"])
    series = _series(table, "speed", "samples per second")
    return line_chart([series], "training samples seen", "", "Training speed, samples per second")


def _series(
    loss: pd.DataFrame,
    column: str,
    name: str,
    is_main: bool = True,
    has_dots: bool = False,
    colour: int | None = None,
) -> Series:
    """A column of the log over the samples seen; without points where there is none.

    Averaged down to `MAX_LOSS_POINTS`, of what was measured.
    """
    if column not in loss.columns:
        return Series(name, ())
    kept = loss[["samples_seen", column]].astype(float)
    size = -(-len(kept) // MAX_LOSS_POINTS)
    if size > 1:
        kept = kept.groupby([number // size for number in range(len(kept))]).mean()
    points = list(zip(kept["samples_seen"].tolist(), kept[column].tolist(), strict=True))
    return Series(name, points, is_main, has_dots, colour)


@dataclass(frozen=True)
class StageTimeline:
    """The timeline, and the class of each stage in the style sheet."""

    timeline: Timeline
    colours: Mapping[str, str]


def timeline(
    workers: Sequence[Worker],
    clock: RunClock,
    times: Sequence[StageTime],
    stages: Iterable[Stage],
) -> StageTimeline | None:
    """The workers' timeline, each stage in its colour; None without telemetry."""
    if not workers:
        return None
    own = {stage.name: stage.colour for stage in stages if stage.colour is not None}
    numbers = {it.stage: own.get(it.stage, at) for at, it in enumerate(times)}
    classes = {stage: f"c{number % NUM_COLOURS}" for stage, number in numbers.items()}
    colours = {stage: f"var(--{name})" for stage, name in classes.items()}
    return StageTimeline(timeline_chart(workers, clock, colours), classes)
