"""`teacher.max_sequence_length`: what the stock call takes, and no more."""

import ast
import inspect
import re
from pathlib import Path

import diffusers
import pytest

from distillery.config.teacher import Teacher
from distillery.families import FAMILIES, Family, family_named
from distillery.planning.prompts import on_sequence_length
from families import flux_dev
from runs import planned, settings

LIMIT = re.compile(r"max_sequence_length > (\d+)")
each = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def refused(family: Family, length: int | None) -> str:
    teacher = Teacher(path="x", height=8, width=8, max_sequence_length=length)
    return "".join(map(str, on_sequence_length(teacher, family)))


@each
def test_the_limit_is_the_stock_pipelines(family: Family) -> None:
    stock = getattr(diffusers, family.pipeline_classes[0])
    if "max_sequence_length" in inspect.signature(stock.__call__).parameters:
        source = ast.unparse(ast.parse(inspect.getsource(inspect.getmodule(stock))))
        (limit,) = set(LIMIT.findall(source)) or {None}
        assert family.longest_sequence == (limit and int(limit))
    else:
        assert family.longest_sequence == family.max_sequence_length == 77


@each
def test_lengths_up_to_it_are_taken_and_others_refused(family: Family) -> None:
    longest = family.longest_sequence
    assert not refused(family, None)
    assert not refused(family, family.max_sequence_length)
    if longest is None:
        assert not refused(family, 5000)
        return
    assert not refused(family, longest)
    told = refused(family, longest + 1)
    assert f"teacher.max_sequence_length is {longest + 1}" in told
    assert str(longest) in told.partition("use ")[2]


@pytest.mark.parametrize("length", [1, 12, 40, 76, 78, 200])
@pytest.mark.parametrize("name", ["sd", "sdxl"])
def test_one_without_effect_is_refused(name: str, length: int) -> None:
    assert "has no effect" in refused(family_named(name), length)
    assert "use null or 77" in refused(family_named(name), length)


def test_the_plan_refuses_it(tmp_path: Path) -> None:
    flux_dev.make(tmp_path / "teacher")
    size = {"height": 32, "width": 24, "max_sequence_length": 600, "negative_prompt": None}
    with pytest.raises(ValueError, match=r"is 600, and FluxPipeline takes 512 at the most"):
        planned(settings(tmp_path, tmp_path / "teacher", teacher=size), tmp_path)
