"""Runs of two families, ready to train, with the `SECTIONS` of the file that asks for them."""

from pathlib import Path
from typing import Any

import pytest

from families.made import made_teacher
from families.sdxl import CASE as SDXL
from runs import Run, make_run


@pytest.fixture(scope="module")
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, teacher: Path
) -> Run:
    """Of Wan, whose training is the quickest; `OF_WAN` are settings of its teacher."""
    own = getattr(request.module, "OF_WAN", {})
    return ready(request, tmp_path_factory.mktemp("wan"), teacher, **own)


@pytest.fixture(scope="module")
def scaled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Of SDXL, whose states have a scale, whose network predicts noise and whose prompts have
    several tensors."""
    folder, teacher = tmp_path_factory.mktemp("sdxl"), made_teacher(tmp_path_factory, SDXL)
    return ready(request, folder, teacher, max_sequence_length=SDXL.max_tokens)


@pytest.fixture(scope="module", params=["run", "scaled"])
def each(request: pytest.FixtureRequest) -> Run:
    found: Run = request.getfixturevalue(request.param)
    return found


def ready(request: pytest.FixtureRequest, folder: Path, teacher: Path, **section: Any) -> Run:
    return make_run(folder, teacher, teacher=section, **request.module.SECTIONS).ready_to_train()
