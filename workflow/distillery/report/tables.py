"""The report's tables: every model's metrics, and the student against the others."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from distillery.measures.image_sets import describe_left_out
from distillery.measures.intervals import ConfidenceInterval
from distillery.measures.lists import MEANS, measures_of
from distillery.measures.manifests import ModelSamples
from distillery.measures.measure import Column, Measure, Need, OfSet
from distillery.measures.of_sets import OF_SETS
from distillery.report.roles import Roles
from distillery.report.speeds import ImageTime
from distillery.report.verdict import decide, describe_bounds, read_interval
from distillery.words import counted, noun_of, significant


@dataclass(frozen=True)
class Span:
    """A number and its interval as drawn under it, in per cent of the column's width.

    Attributes:
        rule: the place of what all are read against; None without such.
    """

    mean: float
    low: float
    high: float
    rule: float | None


@dataclass(frozen=True)
class Cell:
    """One number of the table; empty text where nothing was measured."""

    text: str
    low_high: str = ""
    is_best: bool = False
    span: Span | None = None


@dataclass(frozen=True)
class Table:
    """The metrics of every model."""

    columns: tuple[Column, ...]
    rows: Mapping[str, tuple[Cell, ...]]

    @property
    def has_best(self) -> bool:
        """Whether a cell is marked."""
        return any(cell.is_best for cells in self.rows.values() for cell in cells)


def with_ratios(measures: Iterable[Measure | OfSet]) -> dict[str, Column]:
    """Columns by key: each measure, and behind it its ratio to the reference's."""
    found: dict[str, Column] = {}
    for measure in measures:
        found[measure.name] = measure
        if measure.ratio:
            found[measure.ratio_key] = measure.ratio
    return found


SET_COLUMNS = with_ratios(OF_SETS)
"""Of sets of images, in one vision model."""


def metrics_table(
    quality: Mapping[str, Any] | None, roles: Roles, images: Mapping[str, ImageTime]
) -> Table | None:
    """Means with intervals; the best of a column is marked where no interval overlaps its."""
    if quality is None:
        return None
    columns = columns_of(quality)
    values = {
        name: _values(quality["models"][name], name, roles, images, columns)
        for name in _in_order(quality, roles)
    }
    best = {key: _best(key, column, values) for key, column in columns.items()}
    return _table(columns, values, best, values.get(roles.reference, {}))


def columns_of(quality: Mapping[str, Any]) -> dict[str, Column]:
    """The metrics of a run's images, or clips, by key."""
    seconds = Column(
        title=f"Seconds per {noun_of(quality.get('num_frames', 1))}",
        hint="one device, measured",
        form=lambda seconds: f"{significant(seconds)} s",
    )
    return {**with_ratios(_measures(quality)), "seconds": seconds}


def _measures(quality: Mapping[str, Any]) -> tuple[Measure, ...]:
    """Those of a run's images, or clips; of those that are optional what was scored."""
    scored = {name for facts in quality.get("models", {}).values() for name in facts}
    return tuple(
        measure
        for measure in measures_of(quality.get("num_frames", 1))
        if measure.name in scored or not measure.is_optional
    )


@dataclass(frozen=True)
class SetTable:
    """The measures of sets in one vision model.

    Attributes:
        vision_model, path, num_features: the vision model.
        num_prompts: whose images are compared.
        left_out: what could not be measured, and why; empty if nothing.
        table: the measures of every model; None if all are left out.
    """

    vision_model: str
    path: str
    num_features: int
    num_prompts: int
    left_out: str
    table: Table | None


def set_tables(quality: Mapping[str, Any] | None, roles: Roles) -> list[SetTable]:
    """How near each model's images are to the reference's as a set, for each vision model.

    The reference's own row is its floor, which is never marked as the best. Older scores have none.
    """
    if quality is None:
        return []
    names = _in_order(quality, roles)
    noun = noun_of(quality.get("num_frames", 1))
    return [
        SetTable(
            vision,
            facts["path"],
            facts["num_features"],
            facts["num_prompts"],
            describe_left_out(
                {name: Need(**need) for name, need in facts["left_out"].items()}, noun
            ),
            _set_table({name: quality["models"][name]["sets"][vision] for name in names}, roles),
        )
        for vision, facts in quality.get("vision_models", {}).items()
    ]


def _set_table(sets: Mapping[str, Mapping[str, Any]], roles: Roles) -> Table | None:
    """Of one vision model, without the columns that no model has."""
    values = {
        name: {key: read_interval(found[key]) for key in SET_COLUMNS}
        for name, found in sets.items()
    }
    columns = {
        key: column
        for key, column in SET_COLUMNS.items()
        if any(row[key] for row in values.values())
    }
    if not columns:
        return None
    others = {name: row for name, row in values.items() if name != roles.reference}
    best = {key: _best(key, column, others) for key, column in columns.items()}
    return _table(columns, values, best, values.get(roles.reference, {}))


def _table(
    columns: Mapping[str, Column],
    values: Mapping[str, Mapping[str, ConfidenceInterval | None]],
    best: Mapping[str, frozenset[str]],
    reference: Mapping[str, ConfidenceInterval | None],
) -> Table:
    """A row for each model, each column drawn as a forest plot beside the reference's mean."""
    spans = {
        key: find_spans({name: row[key] for name, row in values.items()}, _mean(reference, key))
        for key in columns
    }
    rows = {
        name: tuple(
            replace(as_cell(column.form, row[key], name in best[key]), span=spans[key].get(name))
            for key, column in columns.items()
        )
        for name, row in values.items()
    }
    return Table(tuple(columns.values()), rows)


def _mean(row: Mapping[str, ConfidenceInterval | None], key: str) -> float | None:
    """A ratio to the reference is 1 of the reference itself, which has none."""
    value = row.get(key)
    if value is None:
        return 1.0 if key.endswith("_ratio") else None
    return value.mean


def find_spans(
    values: Mapping[str, ConfidenceInterval | None], rule: float | None
) -> dict[str, Span]:
    """Where the numbers of a column are drawn, all to one scale; nothing for fewer than two.

    An end that is not known is drawn at the mean.

    Args:
        rule: what all are read against.
    """
    known = {name: it for name, it in values.items() if it is not None}
    ends = {
        name: (
            it.mean,
            it.mean if it.low is None else it.low,
            it.mean if it.high is None else it.high,
        )
        for name, it in known.items()
    }
    everything = [end for three in ends.values() for end in three]
    if len(known) < 2 or min(everything) == max(everything):
        return {}
    if rule is not None:
        everything.append(rule)
    least, most = min(everything), max(everything)

    def place(value: float) -> float:
        return round(100 * (value - least) / (most - least), 1)

    drawn_rule = None if rule is None else place(rule)
    return {
        name: Span(place(mean), place(low), place(high), drawn_rule)
        for name, (mean, low, high) in ends.items()
    }


def _values(
    facts: Mapping[str, Any],
    name: str,
    roles: Roles,
    images: Mapping[str, ImageTime],
    columns: Iterable[str],
) -> dict[str, ConfidenceInterval | None]:
    """One model's numbers by column."""
    against = facts["against"].get(roles.reference, {})
    values = {key: read_interval(facts.get(key) or against.get(key)) for key in columns}
    # Never marked as the best: batches tell nothing of what else the machine did meanwhile.
    values["seconds"] = images[name].interval if name in images else None
    return values


def _best(
    key: str, column: Column, values: Mapping[str, Mapping[str, ConfidenceInterval | None]]
) -> frozenset[str]:
    """The models with the best mean; none if an interval of theirs overlaps another model's.

    A difference within the intervals may be noise. A value measured once, without an interval, such
    as a time, is never marked, and neither are models that are all level.
    """
    intervals = {
        name: interval
        for name, row in values.items()
        if (interval := row[key]) and (interval.low, interval.high) != (None, None)
    }
    if column.direction == 0 or not intervals:
        return frozenset()
    top = max(column.direction * interval.mean for interval in intervals.values())
    best = {name for name, it in intervals.items() if column.direction * it.mean == top}
    others = [reach(it, column.direction)[1] for name, it in intervals.items() if name not in best]
    worst = min(reach(intervals[name], column.direction)[0] for name in best)
    return frozenset(best if others and worst > max(others) else ())


def reach(interval: ConfidenceInterval, direction: int) -> tuple[float, float]:
    """The worst and the best end of an interval, times the direction; an open one is unlimited."""
    low = -math.inf if interval.low is None else interval.low
    high = math.inf if interval.high is None else interval.high
    worst, best = sorted((direction * low, direction * high))
    return worst, best


def as_cell(
    form: Callable[[float], str], value: ConfidenceInterval | None, is_best: bool = False
) -> Cell:
    """One cell's text."""
    if value is None:
        return Cell("")
    return Cell(form(value.mean), describe_bounds(value, form), is_best)


def differences_table(quality: Mapping[str, Any] | None, roles: Roles) -> Table | None:
    """The student less each model but the reference, paired; None where there are not both."""
    if quality is None or roles.student not in quality["models"]:
        return None
    against = quality["models"][roles.student]["against"]
    means = tuple(measure for measure in _measures(quality) if measure in MEANS)
    others = [it for it in _in_order(quality, roles) if it not in (roles.student, roles.reference)]
    values = {
        measure.name: {
            name: read_interval(against[name].get(measure.difference_key)) for name in others
        }
        for measure in means
    }
    spans = {name: find_spans(found, 0.0) for name, found in values.items()}
    rows = {
        name: tuple(
            replace(_difference(values[it.name][name], it), span=spans[it.name].get(name))
            for it in means
        )
        for name in others
    }
    return Table(means, rows) if rows else None


def _difference(value: ConfidenceInterval | None, measure: Measure) -> Cell:
    """One paired difference; marked where the student is better by its whole interval."""
    if value is None:
        return Cell("")
    form = measure.form.signed
    is_better = decide(value, 0.0, measure.direction) == "passed"
    return Cell(form(value.mean), describe_bounds(value, form), is_better)


def _in_order(quality: Mapping[str, Any], roles: Roles) -> list[str]:
    """The scored models: the reference first, then by falling cost."""
    models = quality["models"]
    return sorted(
        models, key=lambda name: (name != roles.reference, -models[name]["network_calls"], name)
    )


def black_images(samples: Mapping[str, ModelSamples]) -> str | None:
    """Which models have images whose every pixel is 0, and what that does to the scores."""
    noun = noun_of(next((model.num_frames for model in samples.values()), 1))
    named = [
        f"{model.num_black:,} of {counted(len(model.table), noun)} of {name}"
        for name, model in samples.items()
        if model.num_black
    ]
    if not named:
        return None
    return (
        f"{', '.join(named)}: every pixel is 0. They are scored like all others; two black "
        f"{noun}s are equal, so a PSNR of 100 dB between them says nothing."
    )
