"""Importing: what a job imports before it works, and without the garbage collector."""

import gc
import subprocess
import sys

import pytest

from distillery.importing import imported, importing
from distillery.pipeline import STAGES

TABLES = {"numpy", "pandas", "PIL"}
LIBRARIES = {"diffusers", "transformers", "accelerate", "peft", "torch._dynamo"}
"""They take longer than PyTorch: only what loads a pipeline imports them, when it does."""
NEVER = {
    ("freeze", "merge_targets"): {*TABLES, *LIBRARIES, "torch"},
    ("prompts", "merge_samples", "dataset", "gallery", "report", "compare", "leaderboard"): {
        *LIBRARIES,
        "torch",
    },
    (
        *("signature", "embeddings", "targets", "training", "export", "samples", "evaluation"),
        *("round_states", "round_targets", "previews", "probe", "sheet"),
    ): LIBRARIES,
    # Its checks of a UNet's blocks name classes of Diffusers; it loads a network in any case.
    ("student",): set[str](),
}
"""What the functions of stages must not import at once, alone or with those of their row."""
CODE = """
import sys
from distillery.pipeline import STAGES
for stage in STAGES:
    if stage.name in sys.argv[1:]:
        stage.function()
print(*sys.modules)
"""


@pytest.mark.parametrize("names", NEVER, ids=lambda names: names[0])
def test_a_stage_imports_no_library_that_it_may_do_without(names: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", CODE, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert NEVER[names].isdisjoint(done.stdout.split())


def test_every_stage_is_in_a_row() -> None:
    rows = {name for names in NEVER for name in names}
    same = {"merge_round", "training_before_round"}  # functions of merge_targets and training
    assert {stage.name for stage in STAGES if stage.makes} == rows | same


def test_nothing_is_collected_during_an_import_and_what_came_is_left_alone() -> None:
    num_frozen = gc.get_freeze_count()
    imported("sys", "modules")
    assert gc.get_freeze_count() == num_frozen
    try:
        with importing():
            assert not gc.isenabled()
            sys.modules["module_of_a_test"] = sys
    finally:
        del sys.modules["module_of_a_test"]
    assert gc.isenabled()
    assert gc.get_freeze_count() > num_frozen


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with importing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
