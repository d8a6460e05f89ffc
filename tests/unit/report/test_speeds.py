"""Seconds per image over batches: intervals, and factors only where batches suffice."""

import math

import pytest

from distillery.report.speeds import speed_ratio, student_quantile, time_images
from distillery.report.timeline import find_attempts
from events import event


def timed(model, seconds, num_items=8):
    """A model whose first batch loads, and whose others take so long."""
    job, now, events = f"samples-{model}-0-of-1", 100.0, []
    for each in (60.0, *seconds):
        events.append(event("work", job, now, now + each, num_items))
        now += each
    return time_images(find_attempts([event("start", job, 99.0, 99.0), *events]), {})[model]


@pytest.mark.parametrize("number", [1, 2, 3, 12])
def test_an_interval_needs_three_batches(number):
    found = timed("a", [8.0 + 0.1 * (-1) ** at for at in range(number)])
    assert found.num_batches == number
    assert (found.low is None) == (found.high is None) == (number < 3)
    if number >= 3:
        assert found.low < found.seconds < found.high


def test_an_interval_is_students():
    """Of 1.0, 1.1 and 1.2 s: 1.1 ± 4.303 · 0.1 / √3, on the scale of logarithms."""
    found = timed("a", [8.0, 8.8, 9.6])
    reach = 4.303 * 0.1 / math.sqrt(3) / 1.1
    assert found.seconds == pytest.approx(1.1)
    assert (found.low, found.high) == pytest.approx(
        (1.1 * math.exp(-reach), 1.1 * math.exp(reach)), rel=1e-6
    )


def test_the_quantiles_go_on_smoothly():
    """Beyond the table by an expansion: 2.201 at 11, 2.086 at 20, 1.984 at 100."""
    for freedom, expected in ((11, 2.201), (20, 2.086), (100, 1.984)):
        assert student_quantile(freedom) == pytest.approx(expected, rel=2e-3)
    for freedom, expected in ((2, 4.303), (7, 2.365), (9, 2.262), (10, 2.228)):
        assert student_quantile(freedom) == expected


def test_a_factor_needs_three_batches_of_both():
    slow, fast, few = timed("a", [8.0, 8.2, 8.1]), timed("b", [4, 4.1, 3.9]), timed("c", [4, 4])
    ratio = speed_ratio(slow, fast)
    assert ratio.mean == pytest.approx(8.1 / 4.0, rel=1e-5)
    assert ratio.low < ratio.mean < ratio.high
    both = (math.log(it.high / it.seconds) for it in (slow, fast))
    assert math.log(ratio.high / ratio.mean) == pytest.approx(math.hypot(*both), rel=1e-3)
    assert speed_ratio(slow, few) is speed_ratio(few, slow) is speed_ratio(None, fast) is None


def test_only_batches_of_the_present_images_recipe_count():
    """A job that was run again under other settings keeps its name; an old one tells no recipe."""
    attempts = []
    for number, (recipe, seconds) in enumerate((("old", 40.0), ("new", 2.0), (None, 4.0))):
        job, begin = "samples-a-0-of-1", 1000.0 * number
        facts = {"recipe": recipe} if recipe else {}
        work = [event("work", job, begin + at, begin + at + seconds, 8, **facts) for at in (1, 50)]
        attempts += find_attempts([event("start", job, begin, begin), *work])
    assert time_images(attempts, {"a": {"new"}})["a"].seconds == pytest.approx((2 + 4) / 16)
    assert time_images(attempts[:2], {"a": {"new"}})["a"].num_batches == 1
    assert time_images(attempts, {"b": {"new"}})["a"].num_batches == 3
    assert time_images(attempts[:1], {"a": {"new"}}) == {}
