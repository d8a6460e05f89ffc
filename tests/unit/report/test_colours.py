"""The palette: no two colours that somebody cannot tell apart, on light and on dark paper."""

import re
from itertools import combinations

import numpy as np
import pytest

from distillery.report.charts import NUM_COLOURS
from distillery.report.html import own_file
from distillery.report.roles import MARKS

LEAST = 12.0
"""CIEDE2000 of two colours of one page: 1 is just to be seen, side by side and large."""
LEAST_CONTRAST = 3.0
"""Of a line or a dot to the paper, WCAG 2.2, 1.4.11."""
SEEN = {
    "all": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}  # fmt: skip
"""Linear RGB as it is seen: Machado, Oliveira and Fernandes 2009, table 1, severity 1.0."""
XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def palette(scheme: str, sheet: str = "report.css") -> dict[str, np.ndarray]:
    """The variables of a scheme that are colours, as linear RGB."""
    light, dark = own_file(sheet).split("prefers-color-scheme: dark", 1)
    text = light if scheme == "light" else dark.split("* {")[0]
    found = {}
    for name, value in re.findall(r"--([a-z0-9-]+): #([0-9a-f]{6});", text):
        share = np.array([int(value[at : at + 2], 16) for at in (0, 2, 4)]) / 255
        found[name] = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return found


def lab(linear: np.ndarray) -> np.ndarray:
    """CIELAB under D65."""
    ratios = XYZ @ np.clip(linear, 0, 1) / XYZ.sum(axis=1)
    small = ratios / (3 * (6 / 29) ** 2) + 4 / 29
    x, y, z = np.where(ratios > (6 / 29) ** 3, np.cbrt(ratios), small)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """CIEDE2000 (Sharma, Wu and Dalal 2005)."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    grey = 1.5 - 0.5 * np.sqrt(mean**7 / (mean**7 + 25**7))
    c1, c2 = np.hypot(grey * a1, b1), np.hypot(grey * a2, b2)
    h1, h2 = (np.degrees(np.arctan2(b, grey * a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180
    hue = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn) / 2)
    middle_h = (h1 + turn / 2) % 360
    middle_l, middle_c = (l1 + l2) / 2, (c1 + c2) / 2
    waves = ((0.17, 1, -30, -1), (0.24, 2, 0, 1), (0.32, 3, 6, 1), (0.2, 4, -63, -1))
    t = 1 + sum(s * f * np.cos(np.radians(n * middle_h + at)) for f, n, at, s in waves)
    of_l = 1 + 0.015 * (middle_l - 50) ** 2 / np.sqrt(20 + (middle_l - 50) ** 2)
    of_c, of_h = 1 + 0.045 * middle_c, 1 + 0.015 * middle_c * t
    turning = np.sin(np.radians(60 * np.exp(-(((middle_h - 275) / 25) ** 2))))
    skew = -2 * np.sqrt(middle_c**7 / (middle_c**7 + 25**7)) * turning
    parts = (l2 - l1) / of_l, (c2 - c1) / of_c, hue / of_h
    return float(np.sqrt(sum(part**2 for part in parts) + skew * parts[1] * parts[2]))


def test_the_formula_of_a_difference_is_the_published_one() -> None:
    """Pairs 1, 7 and 17 of Sharma's table."""
    for one, other, expected in (
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 0, 0), (50, -1, 2), 2.3669),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
    ):
        assert difference(np.array(one), np.array(other)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("eyes", SEEN)
def test_no_two_colours_are_seen_alike(scheme: str, eyes: str) -> None:
    drawn = palette(scheme)
    seen = {f"c{it}": lab(np.array(SEEN[eyes]) @ drawn[f"c{it}"]) for it in range(NUM_COLOURS)}
    alike = {
        pair: round(difference(seen[pair[0]], seen[pair[1]]), 1) for pair in combinations(seen, 2)
    }
    assert {pair: it for pair, it in alike.items() if it < LEAST} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_stands_out_from_the_paper(scheme: str) -> None:
    drawn = palette(scheme)
    light = {name: float(XYZ[1] @ linear) + 0.05 for name, linear in drawn.items()}
    for name in (f"c{number}" for number in range(NUM_COLOURS)):
        both = light[name], light["paper"]
        assert max(both) / min(both) >= LEAST_CONTRAST, name
    assert {mark.colour for mark in MARKS.values()} <= drawn.keys()


def test_the_gallery_has_the_colours_of_the_report() -> None:
    sheet = own_file("gallery/gallery.css")
    report = own_file("report.css").split("prefers-color-scheme: dark", 1)
    for colour in {mark.colour for mark in MARKS.values()}:
        both = [re.search(rf"--{colour}: (#[0-9a-f]+)", text)[1] for text in report]  # type: ignore[index]
        assert f".mark.{colour} {{ color: light-dark({both[0]}, {both[1]}); }}" in sheet
