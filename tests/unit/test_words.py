"""Numbers and times in words."""

import pytest

from distillery.words import duration, listed_numbers


def test_numbers_are_listed_in_words():
    found = [listed_numbers(numbers) for numbers in ([8], [8, 16], [8, 16, 2400])]
    assert found == ["8", "8 and 16", "8, 16 and 2,400"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.25, "0.25 s"),
        (42.4, "42 s"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (18_720, "5 h 12 min"),
        (2 * 86_400 + 3 * 3600, "2 d 3 h"),
    ],
)
def test_durations_in_words(seconds, text):
    assert duration(seconds) == text
