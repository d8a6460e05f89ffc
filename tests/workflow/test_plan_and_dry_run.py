"""What the plan says is made is what Snakemake would run, on a finished run that is changed."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from finished_run import TINY, in_copy, tiny_run

from checkout import succeed
from distillery.files import read_json
from distillery.pipeline import STAGES
from distillery.planning.plan import make_plan
from distillery.planning.there import Found, there_part

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CONFIG = Path("config/config.yaml")


def learn_faster() -> None:
    raw = yaml.safe_load(CONFIG.read_text())
    raw["training"]["learning_rate"] = 0.5
    CONFIG.write_text(yaml.safe_dump(raw))


def add_a_prompt() -> None:
    raw = yaml.safe_load(CONFIG.read_text())
    source, longer = Path(raw["prompts"]["eval"]), Path("longer.csv")  # all tests share the former
    longer.write_text(source.read_text() + "another,a red tree in the house,new\n")
    raw["prompts"]["eval"] = str(longer)
    CONFIG.write_text(yaml.safe_dump(raw))


CHANGES: dict[str, tuple[Callable[[], object], set[str]]] = {
    "nothing": (lambda: None, set()),
    "training": (learn_faster, {"training", "samples student"}),
    "prompts": (
        add_a_prompt,
        {"embeddings eval", "samples teacher", "samples student", "samples untrained"},
    ),
}
"""A change, and the stages that make something of it."""


def folder_of(stage: str) -> str:
    """Where a stage of the plan writes, in the folder of the run."""
    own = {"student": "student/initial", "training": "student/trained"}
    return own.get(stage, stage.replace(" ", "/"))


@pytest.mark.parametrize("name", CHANGES)
def test_the_plan_and_snakemake_agree(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    in_copy(finished, tmp_path / "copy", monkeypatch)
    succeed(Path.cwd(), "--touch", "--forceall")  # so that Snakemake has a note of each file
    change, expected = CHANGES[name]
    change()
    run = tiny_run()
    make_plan(STAGES, run.config, run.files.plan)
    rows = [Found(**row) for row in read_json(run.files.plan)["there"]]
    (table,) = there_part(rows).tables
    assert {row[0] for row in table.rows if row[-1] != "reused"} == expected
    told = succeed(Path.cwd(), "--dry-run")
    listed = re.findall(r"^ +output: (.+)$", told, flags=re.MULTILINE)
    outputs = [output for line in listed for output in line.split(", ")]
    runs = {
        row.stage
        for row in rows
        if any(output.startswith(f"{TINY}/{folder_of(row.stage)}") for output in outputs)
    }
    assert runs == expected
