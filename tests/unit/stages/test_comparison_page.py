"""How the page of two runs shows differences that have one bound alone."""

import pytest

from distillery.measures.intervals import ConfidenceInterval
from distillery.report.compare import _result, _shown, _word


@pytest.mark.parametrize(
    ("interval", "text", "word"),
    [
        ((0.5, 0.25, 1.0), "0.5 (0.25 to 1)", "better"),
        ((0.5, 0.25, None), "0.5 (0.25 to \N{INFINITY})", "better"),
        ((0.5, None, 1.0), "0.5 (-\N{INFINITY} to 1)", ""),
        ((-0.5, None, -0.25), "-0.5 (-\N{INFINITY} to -0.25)", "worse"),
        ((0.5, None, None), "0.5", ""),
        ((0.1, -0.25, 0.5), "0.1 (-0.25 to 0.5)", ""),
    ],
)
def test_a_bound_that_is_there_is_shown_and_counts(
    interval: tuple[float, float | None, float | None], text: str, word: str
) -> None:
    found = ConfidenceInterval(*interval)
    assert _shown(found) == text
    assert _word(found, +1) == word
    other = {"better": "worse", "worse": "better"}
    assert _word(found, -1) == other.get(word, "")
    assert _word(found, 0) == ""


def test_the_result_comes_first_in_a_sentence() -> None:
    words = {"CLIP score": "better", "PSNR": "worse", "R@1": "", "motion": None}
    rows = [
        {"title": title, "word": word or "", "paired": None if word is None else object()}
        for title, word in words.items()
    ]
    assert _result("student", rows, "mine2") == (
        "student: mine2 is better in CLIP score and worse in PSNR; 1 measure cannot be told apart."
    )
    level = "student: no difference beyond the intervals, in 1 measure."
    assert _result("student", rows[2:], "mine2") == level
    assert _result("student", rows[3:], "mine2") == "student: nothing can be paired."
