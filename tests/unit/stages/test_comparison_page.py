"""How the page of two runs shows differences that have one bound alone."""

import pytest

from distillery.measures.intervals import ConfidenceInterval
from distillery.report.compare import _shown, _word


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
