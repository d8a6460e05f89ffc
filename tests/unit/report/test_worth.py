"""What a student is worth in its teacher's network calls, by curves computed by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from distillery.config.samples import SampledModel
from distillery.report import verdict
from distillery.report.roles import Roles
from distillery.report.worth import Calls, Worth, calls_at, find_worth

CURVE, AT = np.array([0.2, 0.6, 0.6, 0.8]), [2, 8, 16, 48]
MODELS = {
    "teacher": SampledModel(source="teacher", steps=24, guidance_scale=4.0),
    "four": SampledModel(source="teacher", steps=4, guidance_scale=4.0),
    "two-unguided": SampledModel(source="teacher", steps=2, guidance_scale=1.0),
    "student": SampledModel(source="student"),
}
STEPS = {"teacher": 24, "four": 4, "two-unguided": 2, "student": 2}
CALLS = {"teacher": 48, "four": 8, "two-unguided": 2, "student": 2}


@pytest.mark.parametrize(
    ("score", "calls"),
    [
        (0.1, 0.0),
        (0.2, 2.0),
        (0.4, 4.0),  # halfway from 2 to 8 in the logarithm
        (0.6, 8.0),  # the least of those that reach it
        (0.7, math.sqrt(16 * 48)),
        (0.8, 48.0),
        (0.81, math.inf),
    ],
)
def test_a_score_is_read_on_the_curve(score, calls):
    assert calls_at(score, CURVE, AT) == pytest.approx(calls)


def scored(means, spread=0.0, num_prompts=20, steps=STEPS):
    """quality.json and scores of these means; the spread is all models' own."""
    random = np.random.default_rng(0)
    rows = []
    for name, mean in means.items():
        noise = spread * random.standard_normal(num_prompts)
        table = {"prompt_id": [f"p-{it:02}" for it in range(num_prompts)], "index": 0}
        values = {"model": name, "clip_score": mean + noise - noise.mean()}
        rows.append(pd.DataFrame(table | values))
    facts = {name: {"steps": steps[name], "network_calls": CALLS[name]} for name in means}
    return {"models": facts}, pd.concat(rows).sample(frac=1, random_state=0)


def worth_of(means, **changes):
    return find_worth(*scored(means, **changes), MODELS, "student", 200)


def test_the_curve_is_of_the_best_that_costs_no_more():
    """The four guided steps are worse than two without guidance: more calls do not lose score."""
    found = worth_of({"teacher": 0.8, "four": 0.3, "two-unguided": 0.4, "student": 0.6})
    assert found.curve == [(2, 0.4), (8, 0.4), (48, 0.8)]
    assert found.calls.network_calls == pytest.approx(math.sqrt(8 * 48), rel=1e-5)
    assert (found.student_calls, found.measure) == (2, "clip_score")


def test_the_interval_is_over_prompts_and_ends_where_the_curve_ends():
    means = {"teacher": 0.8, "four": 0.6, "two-unguided": 0.2, "student": 0.5}
    narrow, wide = worth_of(means, spread=0.05), worth_of(means, spread=1.0)
    for found in (narrow, wide):
        ends = [found.low.network_calls, found.calls.network_calls, found.high.network_calls]
        assert ends == sorted(ends)
    assert narrow.low.network_calls > wide.low.network_calls
    assert narrow.high.beyond == ""
    assert wide.high == Calls(48, "more")
    assert narrow == worth_of(means, spread=0.05), "the same each time"
    few = worth_of(means, spread=0.05, num_prompts=7)
    assert (few.low, few.high) == (None, None)


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (0.9, "are worth more than 48 of the teacher's (more than 48 to more than 48), which"),
        (0.1, "are worth fewer than 2 of the teacher's (fewer than 2 to fewer than 2), which"),
        (0.6, "are worth 8 of the teacher's (8 to 8), which was sampled at 2, 8 and 48."),
    ],
)
def test_a_student_beyond_the_curve_is_told_so(score, words):
    means = {"teacher": 0.8, "four": 0.6, "two-unguided": 0.2, "student": score}
    found = worth_of(means)
    assert words in found.text
    speed = {"network_calls_ratio": 24.0}
    told = verdict.make_claims(Roles("student", "teacher"), None, speed, [], found)
    assert told.worth == found.text
    assert verdict.make_claims(Roles("student", "teacher"), None, speed, []).worth == ""


def test_there_is_no_curve_of_one_number_of_steps_nor_without_a_student():
    means = {"teacher": 0.8, "four": 0.6, "student": 0.5}
    assert worth_of(means) is not None
    assert worth_of(means, steps=STEPS | {"four": 24}) is None, "guided and not is one number"
    assert find_worth(*scored({"teacher": 0.8, "four": 0.6}), MODELS, "student", 200) is None
    assert find_worth(*scored(means), MODELS, None, 200) is None


def test_one_call_is_told_as_one():
    found = Worth("clip_score", 1, Calls(3.456), None, None, [(2, 0.1), (8, 0.2)])
    assert found.text == (
        "By CLIP score the student's 1 network call is worth 3.46 of the teacher's, which was "
        "sampled at 2 and 8."
    )
