"""Every class of the pinned Diffusers that makes images or videos of text alone, traced or refused.

What is learnt of each is told by docs/families.md.
"""

from types import ModuleType

import pytest

from checkout import load_script
from distillery.files import read_json
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
    start, end = text.index(classes.LEARNT) + len(classes.LEARNT), text.index(classes.WHOLE)
    lines = text[start:end].splitlines()
    assert len(lines) == len(ROWS)
    assert classes.page(lines) == text, "run python tools/classes.py"


def test_every_class_that_passes_came_through_a_whole_run(classes: ModuleType) -> None:
    """But for a teacher of two networks, which the plan refuses."""
    runs = read_json(classes.RUNS)["classes"]
    assert runs.keys() == {name for name, row in ROWS.items() if not row.refused}
    assert [name for name in runs if "error" in runs[name]] == ["WanPipeline with two experts"]
    for name, run in runs.items():
        if "error" not in run:
            assert run["trajectories"] <= 1e-5, name
            assert max(run["teacher"], run["student"]) <= 1, name
