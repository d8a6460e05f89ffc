"""The report's words and plots, made of its numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

from distillery.config.training import Training
from distillery.evaluation.manifests import ModelSamples
from distillery.evaluation.metrics import ConfidenceInterval
from distillery.evaluation.plots import Line, Point, interval_plot, line_plot
from distillery.evaluation.timeline import RunClock, StageTime, Worker
from distillery.evaluation.timeline_plot import stage_colours, timeline_plot
from distillery.evaluation.verdict import Check, Roles, percent, read_interval, summarise_checks
from distillery.evaluation.words import counted, times
from distillery.training.alarms import COMPANIONS, ROLLOUT

MAX_LOSS_POINTS = 600
"""Points of a curve; a longer log is averaged down to as many."""


def headline(
    roles: Roles, quality: Mapping[str, Any] | None, speed: Mapping[str, float | None] | None
) -> str:
    """The answer to the user's question in one sentence."""
    if roles.student is None or speed is None:
        return "No student was compared with its teacher in this run."
    fewer = times(
        speed["network_calls_ratio"] or 1.0,
        "{:.3g} times",
        ("fewer network calls", "as many network calls", "more network calls"),
    )
    if quality is None:
        return f"The student needs {fewer}; its quality was not scored."
    ratio = _kept(quality, roles.student, roles)
    if ratio is None:
        return f"The student needs {fewer}; how much quality it keeps is not defined."
    text = f"The student keeps {percent(ratio.mean)} of the teacher's CLIP score with {fewer}"
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


# ---- plots -------------------------------------------------------------------------------------


def quality_plots(quality: Mapping[str, Any] | None, roles: Roles) -> list[Markup]:
    """CLIP score, and distance to the reference, against network calls; empty without scores."""
    if quality is None:
        return []
    drawings = (
        _quality_plot(quality, roles, "clip_score", "CLIP score (higher is better)"),
        _quality_plot(quality, roles, "latents_mse", "latents MSE (lower is better)"),
    )
    return [drawing for drawing in drawings if drawing]


def _quality_plot(quality: Mapping[str, Any], roles: Roles, metric: str, title: str) -> Markup:
    """One metric against network calls; nothing for fewer than two models."""
    points = [
        Point(
            name, facts["network_calls"], score.mean, score.low, score.high, name == roles.student
        )
        for name, facts in quality["models"].items()
        if (score := read_interval(facts[metric])) is not None
    ]
    if len(points) < 2:
        return Markup()
    label = f"{title} of each model against its network calls"
    return interval_plot(points, "network calls per image (log)", title, label)


@dataclass(frozen=True)
class Plot:
    """A plot and its caption."""

    title: str
    drawing: Markup


def loss_plots(loss: pd.DataFrame | None, training: Training) -> list[Plot]:
    """Loss with its segments, gradient norm and learning rate; empty without training.

    Args:
        loss: the training's log.
        training: its settings.
    """
    if loss is None or loss.empty:
        return []
    segments = sorted(
        (name for name in loss.columns if name.startswith("loss_segment_")),
        key=lambda name: int(name.rsplit("_", 1)[1]),
    )
    lines = [
        _line(loss, name, f"segment {name.rsplit('_', 1)[1]}", f"c{1 + number % 7}", is_main=False)
        for number, name in enumerate(segments)
    ]
    is_rollout = find_rollouts(loss)
    if not is_rollout.all():
        of_segments = loss.assign(loss=loss["loss"].mask(is_rollout))
        lines.append(_line(of_segments, "loss", "all" if segments else "loss", "c0"))
    if is_rollout.any():
        lines.append(_line(loss, ROLLOUT, "rollout", "c7"))
    axis = "training samples seen"
    plots = [Plot("Loss", line_plot(lines, axis, "loss", "Training loss", width=1100))]
    for name, title in (("grad_norm", "Gradient norm"), ("learning_rate", "Learning rate")):
        if name in loss.columns:
            line = _line(loss, name, "", "c0")
            is_measured = name != "learning_rate"
            marks = [] if is_measured else restarts(training)
            drawing = line_plot(
                [line], axis, title.lower(), title, can_be_log=is_measured, marks=marks
            )
            plots.append(Plot(title, drawing))
    return plots + _companion_plots(loss, axis)


def _companion_plots(loss: pd.DataFrame, axis: str) -> list[Plot]:
    """The loss of what learned beside the student in a finish, over the samples of that."""
    plots = []
    for name in COMPANIONS:
        column = f"loss_{name}"
        if column in loss.columns and loss[column].notna().any():
            title = f"Loss of the {name}"
            line = _line(loss[loss[column].notna()], column, "", "c0")
            plots.append(Plot(title, line_plot([line], axis, "loss", title)))
    return plots


def find_rollouts(loss: pd.DataFrame) -> "pd.Series[bool]":
    """Which rows of the log are of the finishing phase, whose loss is of another kind."""
    if ROLLOUT not in loss.columns:
        return pd.Series(False, index=loss.index)
    return loss[ROLLOUT].notna()


def speed_plot(speed: Sequence[tuple[float, float]]) -> Markup:
    """Samples per second over the samples seen; nothing for fewer than two intervals."""
    if len(speed) < 2:
        return Markup()
    table = pd.DataFrame(speed, columns=["samples_seen", "speed"])
    line = _line(table, "speed", "", "c0")
    return line_plot([line], "training samples seen", "samples per second", "Training speed")


def _line(loss: pd.DataFrame, column: str, name: str, colour: str, is_main: bool = True) -> Line:
    """A column of the log over the samples seen, averaged down to `MAX_LOSS_POINTS`."""
    size = -(-len(loss) // MAX_LOSS_POINTS)
    kept = loss[["samples_seen", column]].astype(float)
    if size > 1:
        kept = kept.groupby([number // size for number in range(len(kept))]).mean()
    points = list(zip(kept["samples_seen"].tolist(), kept[column].tolist(), strict=True))
    return Line(name, points, colour, is_main)


@dataclass(frozen=True)
class Timeline:
    """The timeline, how many workers it shows, and the colour class of each stage."""

    drawing: Markup
    num_shown: int
    colours: Mapping[str, str]


def timeline(
    workers: Sequence[Worker], clock: RunClock, stages: Sequence[StageTime]
) -> Timeline | None:
    """The per-worker timeline; None without telemetry."""
    if not workers:
        return None
    colours = stage_colours([stage.stage for stage in stages])
    drawing, num_shown = timeline_plot(workers, clock, colours)
    return Timeline(drawing, num_shown, colours)
