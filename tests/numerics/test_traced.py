"""Every class of the pinned Diffusers that makes images or videos of text alone, traced or refused.

What is learnt of each is told by docs/families.md.
"""

from types import ModuleType

import pytest

from checkout import load_script
from traced import ROWS, UNTRIED
from traced.walk import text_classes, verdict


@pytest.fixture(scope="module")
def classes() -> ModuleType:
    return load_script("classes")


def test_every_class_of_diffusers_is_here() -> None:
    rows = {name.split()[0] for name in ROWS}
    assert text_classes() == rows | UNTRIED.keys()
    assert not rows & UNTRIED.keys()


@pytest.mark.parametrize("name", ROWS)
def test_a_class_is_proved_or_refused_for_its_reason_and_the_page_says_so(
    classes: ModuleType, name: str
) -> None:
    reason, refused = verdict(name).reason, ROWS[name].refused
    assert reason.startswith(refused) if refused else not reason
    lines = classes.PAGE.read_text(encoding="utf-8").splitlines()
    assert classes.line_of(name) in lines, "run python tools/classes.py"


def test_the_page_is_up_to_date_but_for_its_verdicts(classes: ModuleType) -> None:
    text = classes.PAGE.read_text(encoding="utf-8")
    start, end = text.index(classes.LEARNT) + len(classes.LEARNT), text.index(classes.UNMADE)
    lines = text[start:end].splitlines()
    assert len(lines) == len(ROWS)
    assert classes.page(lines) == text, "run python tools/classes.py"
