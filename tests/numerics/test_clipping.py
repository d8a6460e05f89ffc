"""A scheduler that clips is refused in the plan, and what we advise instead is taken and exact."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_families import LANDED, Subject, misses

from distillery.schedulers import ADVICE
from families.case import FamilyCase
from families.made import empty_run, fill, made_teacher
from families.pixart import CASE as PIXART
from families.sdxl import CASE as SDXL
from runs import loaded, planned, settings


def advised() -> dict[str, Any]:
    """The scheduler of our advice for these families."""
    found = re.search(r"example ({.*?}) for SDXL", ADVICE)
    assert found
    return dict(yaml.safe_load(found[1]))


def by_name(case: FamilyCase) -> str:
    return case.name


@pytest.mark.parametrize("case", [SDXL, PIXART], ids=by_name)
@pytest.mark.parametrize(
    ("scheduler", "setting"),
    [
        # What Diffusers does unless it is told otherwise.
        ({"class": "DDIMScheduler", "timestep_spacing": "trailing"}, "clip_sample"),
        (advised() | {"thresholding": True}, "thresholding"),
    ],
    ids=["clip_sample", "thresholding"],
)
def test_the_plan_refuses_clipping(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    case: FamilyCase,
    scheduler: dict[str, Any],
    setting: str,
) -> None:
    size = {**case.in_call, "max_sequence_length": case.max_tokens}
    teacher = size | {"negative_prompt": None, "scheduler": scheduler}
    raw = settings(tmp_path, made_teacher(tmp_path_factory, case), teacher=teacher)
    with pytest.raises(ValueError, match=f"{setting}: true.*teacher.scheduler: {{{setting}: fal"):
        planned(raw, tmp_path)
    raw["teacher"]["scheduler"] = scheduler | {setting: False}
    assert planned(raw, tmp_path)["work"]["num_trajectories"] == 9


@pytest.mark.parametrize("case", [SDXL, PIXART], ids=by_name)
def test_a_perfect_student_lands_on_the_knots_of_the_advised_scheduler(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, case: FamilyCase
) -> None:
    teacher = made_teacher(tmp_path_factory, case)
    case = replace(case, teacher={"scheduler": advised()})
    run = empty_run(case, tmp_path, teacher)
    fill(run)
    subject = Subject(case, run, loaded(run.config.teacher))
    for steps in (1, 2, 4):
        assert all(distance < LANDED for distance in misses(subject, steps))
