"""Scores by category: the student and the reference on the prompts of each kind.

A column `category` of the prompt file says which kind a prompt is of. It is a note: no image is
made from it.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from distillery.measures.intervals import (
    ConfidenceInterval,
    FloatArray,
    Groups,
    bootstrap_ratio,
    draw_weights,
)
from distillery.measures.lists import MEASURES
from distillery.measures.manifests import KEY
from distillery.measures.measure import Column, Measure
from distillery.report.roles import Roles
from distillery.report.tables import Cell, Table, as_cell, reach
from distillery.report.verdict import describe_interval

CATEGORY = "category"
"""The column of a prompt file."""
UNCLEAR = "their intervals do not tell them apart"


@dataclass(frozen=True)
class Compared:
    """One measure on the prompts of one category; None where it is not defined.

    Attributes:
        against: the student against the reference on the same samples: the ratio where the measure
            has one, else the difference.
    """

    student: ConfidenceInterval | None
    reference: ConfidenceInterval | None
    against: ConfidenceInterval | None = None

    @property
    def ranked_by(self) -> ConfidenceInterval | None:
        """What categories are ranked by: some prompts are harder for the reference, too."""
        return self.student if self.reference is None else self.against


@dataclass(frozen=True)
class Category:
    """The scores of the prompts of one category, by measure."""

    num_prompts: int
    measures: Mapping[str, Compared]


@dataclass(frozen=True)
class Extremes:
    """The categories in which the student is best and worst by one measure.

    Attributes:
        is_clear: whether the intervals of the two do not overlap.
        text: both, with their numbers.
    """

    best: str
    worst: str
    is_clear: bool
    text: str


@dataclass(frozen=True)
class Categories:
    """All categories of a run's prompts.

    Attributes:
        by_name: as they first stand.
        num_without: prompts of no category.
        extremes: by measure, of those where more or less is better.
    """

    by_name: Mapping[str, Category]
    num_without: int
    extremes: Mapping[str, Extremes]

    def as_json(self) -> dict[str, Any]:
        """The keys of metrics.json."""
        return asdict(self)


def find_categories(
    table: pd.DataFrame, scores: pd.DataFrame, roles: Roles, num_resamples: int
) -> Categories | None:
    """Score each category; None without a student, or where there are not two categories.

    Args:
        table: of a model's samples, with the prompts' notes.
    """
    if CATEGORY not in table or roles.student is None:
        return None
    named = table[KEY].assign(**{CATEGORY: [as_name(value) for value in table[CATEGORY]]})
    student, reference = (
        named.merge(scores[scores["model"] == model], on=KEY)
        for model in (roles.student, roles.reference)
    )
    names = [name for name in dict.fromkeys(named[CATEGORY]) if name]
    if len(names) < 2 or not len(student) == len(reference) == len(named):
        return None
    by_name = {
        name: _score_one(
            student[student[CATEGORY] == name],
            reference[reference[CATEGORY] == name],
            num_resamples,
        )
        for name in names
    }
    found = {measure.name: find_extremes(measure, by_name) for measure in MEASURES}
    return Categories(
        by_name,
        int(named.loc[named[CATEGORY] == "", "prompt_id"].nunique()),
        {name: extremes for name, extremes in found.items() if extremes},
    )


def as_name(value: Any) -> str:
    """A category as text; empty for an empty cell."""
    return "" if pd.api.types.is_scalar(value) and pd.isna(value) else str(value).strip()


def _score_one(student: pd.DataFrame, reference: pd.DataFrame, num_resamples: int) -> Category:
    """All measures on one category's samples, which both models have in one order."""
    groups = Groups.of([str(name) for name in student["prompt_id"]])
    weights_rp = draw_weights(groups.num_groups, num_resamples)
    return Category(
        groups.num_groups,
        {
            measure.name: _compare(
                measure, measure.values(student), measure.values(reference), groups, weights_rp
            )
            for measure in MEASURES
            if measure.in_scores in student
        },
    )


def _compare(
    measure: Measure,
    student_b: FloatArray,
    reference_b: FloatArray,
    groups: Groups,
    weights_rp: FloatArray,
) -> Compared:
    own, its = (
        None if np.any(np.isnan(values_b)) else measure.summarise(values_b, groups, weights_rp)
        for values_b in (student_b, reference_b)
    )
    if own is None or its is None:
        return Compared(own, its)
    if measure.ratio:
        return Compared(own, its, bootstrap_ratio(student_b, reference_b, groups, weights_rp))
    return Compared(own, its, measure.difference(reference_b, student_b, groups, weights_rp))


def find_extremes(measure: Measure, by_name: Mapping[str, Category]) -> Extremes | None:
    """Where the student is best and worst; None where neither is better, or all are level."""
    compared = {
        name: category.measures[measure.name]
        for name, category in by_name.items()
        if measure.name in category.measures
    }
    found = {name: value for name, it in compared.items() if (value := it.ranked_by) is not None}
    if measure.direction == 0 or not found:
        return None
    order = sorted(found, key=lambda name: (-measure.direction * found[name].mean, name))
    best, worst = order[0], order[-1]
    if found[best].mean == found[worst].mean:
        return None
    is_clear = reach(found[best], measure.direction)[0] > reach(found[worst], measure.direction)[1]
    is_against = compared[best].reference is not None
    form = _against(measure, "").form if is_against else measure.form
    text = "; ".join(
        f"{word} in {name}: {describe_interval(found[name], form)}"
        for word, name in (("best", best), ("worst", worst))
    )
    return Extremes(best, worst, is_clear, text if is_clear else f"{text}; {UNCLEAR}")


# ---- the table ----------------------------------------------------------------------------------


def categories_table(categories: Categories | None, roles: Roles) -> Table | None:
    """A row for each category: the student, the reference, and the one against the other."""
    if categories is None or roles.student is None:
        return None
    columns: list[Column] = []
    rows: dict[str, list[Cell]] = {name: [] for name in categories.by_name}
    for measure in MEASURES:
        compared = {
            name: category.measures.get(measure.name, Compared(None, None))
            for name, category in categories.by_name.items()
        }
        for column, value_of in _columns(measure, compared, roles.student, roles.reference):
            columns.append(column)
            for name, it in compared.items():
                rows[name].append(as_cell(column.form, value_of(it)))
    return Table(tuple(columns), {name: tuple(cells) for name, cells in rows.items()})


Value = Callable[[Compared], ConfidenceInterval | None]


def _columns(
    measure: Measure, compared: Mapping[str, Compared], student: str, reference: str
) -> list[tuple[Column, Value]]:
    """The columns of one measure, with what stands in them; none that are empty."""
    if not any(it.reference for it in compared.values()):
        has_values = any(it.student for it in compared.values())
        return [(measure, lambda it: it.student)] if has_values else []
    return [
        (Column(title=measure.title, hint=student, form=measure.form), lambda it: it.student),
        (Column(title=measure.title, hint=reference, form=measure.form), lambda it: it.reference),
        (_against(measure, f"{student} less {reference}"), lambda it: it.against),
    ]


def _against(measure: Measure, hint: str) -> Column:
    """The column of the ratio where there is one, else of the difference."""
    return measure.ratio or Column(title=measure.title, hint=hint, form=measure.form.signed)
