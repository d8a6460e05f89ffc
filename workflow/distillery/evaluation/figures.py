"""The report's words and charts, made of its numbers."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pandas as pd

from distillery.config.samples import SampledModel
from distillery.config.training import Training
from distillery.evaluation.charts import Score, Series, line_chart, score_chart, steps_chart
from distillery.evaluation.manifests import ModelSamples
from distillery.evaluation.metrics import ConfidenceInterval
from distillery.evaluation.timeline import RunClock, StageTime, Worker
from distillery.evaluation.timeline_chart import Timeline, timeline_chart
from distillery.evaluation.vega import NUM_COLOURS, Chart
from distillery.evaluation.verdict import Check, Roles, percent, read_interval, summarise_checks
from distillery.training.alarms import COMPANIONS, HELD_OUT, KNOT, ROLLOUT
from distillery.words import counted, times

MIN_CURVE = 3
"""Numbers of steps that make a curve."""
MAX_LOSS_POINTS = 600
"""Points of a curve; a longer log is averaged down to as many."""


def headline(
    roles: Roles, quality: Mapping[str, Any] | None, speed: Mapping[str, float | None] | None
) -> str:
    """The answer to the user's question in one sentence."""
    if roles.student is None or speed is None:
        return "No student was compared with its teacher in this run."
    calls = f"network calls{roles.than_reference}"
    fewer = times(
        speed["network_calls_ratio"] or 1.0,
        "{:.3g} times",
        (f"fewer {calls}", f"as many {calls}", f"more {calls}"),
    )
    if quality is None:
        return f"The student needs {fewer}; its quality was not scored."
    ratio = _kept(quality, roles.student, roles)
    if ratio is None:
        return f"The student needs {fewer}; how much quality it keeps is not defined."
    text = f"The student keeps {percent(ratio.mean)} of {roles.whose} CLIP score with {fewer}"
    before = _kept(quality, roles.untrained, roles)
    return text + (f"; before its training it kept {percent(before.mean)}." if before else ".")


def _kept(quality: Mapping[str, Any], name: str | None, roles: Roles) -> ConfidenceInterval | None:
    """Share of the reference's CLIP score that a model keeps; None where it was not scored."""
    against = quality["models"].get(name, {}).get("against", {}).get(roles.reference, {})
    return read_interval(against.get("clip_score_ratio"))


def training_parts(training: Training) -> str:
    """What the samples of a training are, in their order; empty if all are stored segments."""
    parts = []
    if training.rounds:
        count = counted(training.rounds.count, "round")
        parts.append(
            f"{count} of {training.rounds.samples:,}, half of them from states that the student "
            "visited before the round"
        )
    if training.adversarial:
        parts.append(f"an adversarial finish of {training.adversarial.samples:,}")
    if training.online_samples:
        matched = " and distribution matching" if training.distribution_matching else ""
        parts.append(f"{training.online_samples:,} with online targets{matched}")
    if training.rollout_samples:
        parts.append(f"{training.rollout_samples:,} whole rollouts")
    if parts and training.rounds_begin:
        parts.insert(0, f"{training.rounds_begin:,} from the teacher's stored trajectories")
    return ", then ".join(parts)


def restarts(training: Training) -> list[tuple[int, str]]:
    """After how many samples the learning rate begins anew, and what begins there."""
    if training.schedule == "constant":
        return []
    names = [*(f"round {number}" for number in training.round_numbers), "finish"]
    begins = zip(training.restarts, names, strict=False)
    return [(begin, name) for begin, name in begins if begin > 0]


def summary(checks: list[Check]) -> str | None:
    """One sentence about the thresholds, None if there was nothing to check."""
    return summarise_checks(checks) if checks else None


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


def quality_charts(quality: Mapping[str, Any] | None, has_curves: bool) -> list[Chart]:
    """CLIP score, and distance to the reference, against network calls; empty without scores.

    A chart needs two models.

    Args:
        quality: quality.json.
        has_curves: whether `steps_charts` draws the CLIP score.
    """
    if quality is None:
        return []
    titles = {
        "clip_score": "CLIP score (higher is better)",
        "latents_mse": "Latents MSE (lower is better)",
    }
    if has_curves:
        del titles["clip_score"]
    drawn = (_quality_chart(quality, metric, title) for metric, title in titles.items())
    return [chart for chart in drawn if chart]


def _quality_chart(quality: Mapping[str, Any], metric: str, title: str) -> Chart | None:
    """One metric against network calls."""
    scores = [
        Score(name, facts["network_calls"], score.mean, score.low, score.high)
        for name, facts in quality["models"].items()
        if (score := read_interval(facts[metric])) is not None
    ]
    return score_chart(
        scores, list(quality["models"]), title, f"{title} of each model against its network calls"
    )


@dataclass(frozen=True)
class StepsChart:
    """A metric at several numbers of steps: the chart, and its rows for who cannot see it."""

    title: str
    chart: Chart | None
    scores: Sequence[Score]


def steps_charts(
    quality: Mapping[str, Any] | None, models: Mapping[str, SampledModel]
) -> list[StepsChart]:
    """CLIP score, and Fréchet distance in each vision model, over network calls.

    The teacher has a curve for each guidance, any other model a point. Empty where no curve has
    `MIN_CURVE` points.

    Args:
        quality: quality.json.
        models: as configured, by name.
    """
    if quality is None:
        return []
    curves = {name: _curve_of(name, models[name], quality) for name in quality["models"]}
    if max(Counter(curves.values()).values(), default=0) < MIN_CURVE:
        return []
    charts = [_steps_chart(quality, curves, "CLIP score")]
    for vision in quality["vision_models"]:
        title = f"Fréchet distance in {vision}, to other noises"
        charts.append(_steps_chart(quality, curves, title, vision))
    return [chart for chart in charts if chart.scores]


def _curve_of(name: str, model: SampledModel, quality: Mapping[str, Any]) -> str:
    """The curve that a model is a point of."""
    if model.source != "teacher":
        return name
    scale = quality["models"][name]["guidance_scale"]
    return f"teacher, guidance {scale:g}" if scale > 1 else "teacher, no guidance"


def _steps_chart(
    quality: Mapping[str, Any], curves: Mapping[str, str], title: str, vision: str | None = None
) -> StepsChart:
    """The CLIP score of all models, or the Fréchet distance in a vision model."""

    def read(facts: Mapping[str, Any]) -> Any:
        return facts["sets"].get(vision, {}).get("frechet") if vision else facts["clip_score"]

    scores = [
        Score(curves[name], facts["network_calls"], it.mean, it.low, it.high, facts["steps"])
        for name, facts in quality["models"].items()
        if (it := read_interval(read(facts))) is not None
    ]
    scores.sort(key=lambda score: (score.model, score.network_calls))
    drawn = list(dict.fromkeys(curves.values()))
    return StepsChart(
        title, steps_chart(scores, drawn, title, f"{title} over network calls"), scores
    )


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
        _series(loss, name, title, is_main=False, colour=1 + number % 6)
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
    workers: Sequence[Worker], clock: RunClock, stages: Sequence[StageTime]
) -> StageTimeline | None:
    """The workers' timeline; None without telemetry."""
    if not workers:
        return None
    classes = {it.stage: f"c{number % NUM_COLOURS}" for number, it in enumerate(stages)}
    colours = {stage: f"var(--{name})" for stage, name in classes.items()}
    return StageTimeline(timeline_chart(workers, clock, colours), classes)
