"""What the plan says is made is what Snakemake would run, on a finished run that is changed."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from finished_run import TINY, contents, in_copy, tiny_run

from checkout import jobs, succeed
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


@pytest.fixture(scope="module")
def noted(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished run, with a note of Snakemake's of each file; tests copy it."""
    copy = Path(shutil.copytree(finished, tmp_path_factory.mktemp("noted") / "run", symlinks=True))
    succeed(copy, "--touch", "--forceall")
    return copy


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
    noted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    in_copy(noted, tmp_path / "copy", monkeypatch)
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


def dates() -> dict[str, int]:
    """Of all files of the run, and of Snakemake's notes."""
    paths = (*TINY.rglob("*"), *Path(".snakemake/metadata").rglob("*"))
    return {str(path): path.lstat().st_mtime_ns for path in paths}


def test_a_dry_run_lists_what_dates_hide_and_writes_nothing(
    noted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at other settings or at their plan, and another student in the trained one's place."""
    folder = in_copy(noted, tmp_path / "copy", monkeypatch)
    before, raw = dates(), yaml.safe_load(CONFIG.read_text())
    raw["targets"]["guidance_scale"] += 1.5
    Path("other.yaml").write_text(yaml.safe_dump(raw))
    told = succeed(folder, "--dry-run", "--configfile", "other.yaml")
    assert {"targets", "training"} <= jobs(told)
    assert dates() == before
    assert "Nothing to be done" in succeed(folder, "--dry-run")
    succeed(folder, f"{TINY}/plan.json", "--configfile", "other.yaml")
    assert "Nothing to be done" in succeed(folder, "--dry-run")
    made, trained = contents(), TINY / "student/trained"
    times = trained.stat()
    shutil.rmtree(trained)
    shutil.copytree(TINY / "student/initial", trained)
    os.utime(trained, ns=(times.st_atime_ns, times.st_mtime_ns))
    swapped = dates()
    listed = jobs(succeed(folder, "--dry-run"))
    assert "training" in listed
    assert "targets" not in listed
    assert dates() == swapped
    assert jobs(succeed(folder)) == listed
    assert contents() == made
    assert "Nothing to be done" in succeed(folder, "--dry-run")
