"""What a student is worth: the network calls with which its teacher reaches the same score.

The teacher's curve is the CLIP score over network calls: at each number of calls that of the best
of the teacher's models that take at most so many, guided or not. So it never falls, and each score
between its ends is reached at one number of calls, which is interpolated in their logarithm.

Shapes: b images, p prompts, r resamples, m models of the teacher, c numbers of calls.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from distillery.config.samples import SampledModel
from distillery.measures.intervals import (
    CONFIDENCE,
    MIN_RESAMPLED,
    FloatArray,
    Groups,
    draw_weights,
    round_significant,
)
from distillery.measures.manifests import KEY
from distillery.measures.of_judge import CLIP_SCORE
from distillery.words import counted, listed_numbers

MIN_STEPS = 2
"""Numbers of the teacher's steps that make a curve."""


@dataclass(frozen=True)
class Calls:
    """A number of the teacher's network calls.

    Attributes:
        beyond: the curve's end, which `network_calls` is then.
    """

    network_calls: float
    beyond: Literal["", "more", "fewer"] = ""

    def __str__(self) -> str:
        """In words."""
        return (
            f"{self.beyond} than {self.network_calls:g}"
            if self.beyond
            else (f"{self.network_calls:.3g}")
        )


@dataclass(frozen=True)
class Worth:
    """What the student is worth.

    Attributes:
        measure: by which.
        student_calls: the network calls that it takes.
        calls, low, high: the teacher's for its score, with the 95 % interval; None where too few
            prompts give none.
        curve: of the teacher, pairs of network calls and score.
    """

    measure: str
    student_calls: int
    calls: Calls
    low: Calls | None
    high: Calls | None
    curve: Sequence[tuple[int, float]]

    def as_json(self) -> dict[str, Any]:
        """The keys of metrics.json."""
        return asdict(self)

    @property
    def text(self) -> str:
        """A sentence."""
        bounds = f" ({self.low} to {self.high})" if self.low and self.high else ""
        sampled = listed_numbers([calls for calls, _ in self.curve])
        return (
            f"By CLIP score the student's {counted(self.student_calls, 'network call')} "
            f"{'is' if self.student_calls == 1 else 'are'} worth {self.calls} of the "
            f"teacher's{bounds}, which was sampled at {sampled}."
        )


def find_worth(
    quality: Mapping[str, Any],
    scores: pd.DataFrame,
    models: Mapping[str, SampledModel],
    student: str | None,
    num_resamples: int,
) -> Worth | None:
    """Read the student's score on the teacher's curve; None without a student or a curve.

    Args:
        quality, scores: quality.json and scores.parquet.
        models: as configured.
        num_resamples: of the bootstrap over prompts, whose percentiles are the interval: one by
            deviations would need a number beyond the curve's ends.
    """
    facts = quality["models"]
    scored = set(scores["model"])
    teachers = [
        name
        for name in facts
        if name in scored and name in models and models[name].source == "teacher"
    ]
    if student is None or student not in scored:
        return None
    if len({facts[name]["steps"] for name in teachers}) < MIN_STEPS:
        return None
    by_model = {str(name): rows.sort_values(KEY) for name, rows in scores.groupby("model")}
    groups = Groups.of([str(name) for name in by_model[student]["prompt_id"]])
    values = {name: CLIP_SCORE.values(by_model[name]) for name in (*teachers, student)}
    calls_m = np.array([facts[name]["network_calls"] for name in teachers])
    calls_c = [int(it) for it in np.unique(calls_m)]

    def read(weights_rp: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Curves (r, c), and the calls that are read on them (r,)."""
        num_r = weights_rp @ groups.sizes()
        means = {name: weights_rp @ groups.sums(it) / num_r for name, it in values.items()}
        teachers_rm = np.stack([means[name] for name in teachers], axis=1)
        best_rc = np.stack([teachers_rm[:, calls_m <= it].max(axis=1) for it in calls_c], axis=1)
        found = [calls_at(*each, calls_c) for each in zip(means[student], best_rc, strict=True)]
        return best_rc, np.array(found)

    (curve_c,), (calls,) = read(np.ones((1, groups.num_groups)))
    low = high = None
    if groups.num_groups >= MIN_RESAMPLED:
        _, calls_r = read(draw_weights(groups.num_groups, num_resamples))
        tail = (1 - CONFIDENCE) / 2
        # "nearest" never averages with what is beyond an end, which is infinite or 0.
        low, high = (
            _as_calls(it, calls_c)
            for it in np.quantile(calls_r, [tail, 1 - tail], method="nearest")
        )
    return Worth(
        measure=CLIP_SCORE.name,
        student_calls=facts[student]["network_calls"],
        calls=_as_calls(calls, calls_c),
        low=low,
        high=high,
        curve=[(at, round_significant(it)) for at, it in zip(calls_c, curve_c, strict=True)],
    )


def calls_at(score: float, curve_c: FloatArray, calls_c: Sequence[int]) -> float:
    """The least number of calls at which a curve that never falls reaches a score.

    0 below the curve's first score, infinity above its last.
    """
    if score < curve_c[0]:
        return 0.0
    above = int(np.searchsorted(curve_c, score))  # the first that is not less
    if above == len(curve_c):
        return math.inf
    if above == 0:
        return float(calls_c[0])
    part = (score - curve_c[above - 1]) / (curve_c[above] - curve_c[above - 1])
    before, after = math.log(calls_c[above - 1]), math.log(calls_c[above])
    return math.exp(before + part * (after - before))


def _as_calls(calls: float, calls_c: Sequence[int]) -> Calls:
    """A number of calls, or that it is beyond the curve."""
    if calls == 0:
        return Calls(calls_c[0], "fewer")
    if math.isinf(calls):
        return Calls(calls_c[-1], "more")
    return Calls(round_significant(calls))
