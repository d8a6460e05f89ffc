"""A finished student judged anew: the run that is written for it, and what is refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from distillery.config.jobs import JOBS, freeze, read_config, save_frozen
from distillery.config.run import Config, parse_config
from distillery.evaluate import evaluate
from distillery.files import write_json
from distillery.pipeline import STAGES
from distillery.planning.first import on_source, sources_of
from distillery.run_folder import RunFolder
from distillery.stage import everything
from distillery.store.belonging import pipeline_of
from runs import generating_settings, settings

FIRST = RunFolder(Path("results/first"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with a student that is exported, and neither checkpoints nor trajectories."""
    monkeypatch.chdir(tmp_path)
    raw = settings(Path("inputs"), Path("teacher"), targets={"from_run": "results/zeroth"})
    save_frozen(
        FIRST.config("run"), parse_config(raw | {"run": "first"}, "f").model_dump(mode="json")
    )
    for name in ("pipeline", "untrained"):
        write_json(FIRST.student(name) / "distillery.json", {})


def evaluated(student: str = "results/first", **settings: Any) -> Config:
    written, report = evaluate(student, **settings)
    config = parse_config(yaml.safe_load(written.read_text()), "evaluated")
    assert isinstance(config, Config)
    assert report == Path("results", config.run, "report/index.html")
    return config


def test_a_student_is_judged_on_other_prompts_and_nothing_is_trained() -> None:
    config = evaluated(prompts="own.csv", judge="openai/clip", reference="untrained")
    assert config.run == "first-evaluated"
    assert config.prompts.eval == "own.csv"
    assert (config.evaluation.judge, config.evaluation.reference) == ("openai/clip", "untrained")
    run = RunFolder(Path("results", config.run))
    asked = everything(STAGES, config, run)
    assert {path.relative_to(run.path).parts[0] for path in asked} == {
        "config", "prompts", "embeddings", "samples", "evaluation", "gallery", "report",
    }  # fmt: skip
    assert run.prompts("train") not in asked
    assert pipeline_of(config, run, "student") == FIRST.student("pipeline")
    assert str(FIRST.student("pipeline") / "distillery.json") in sources_of(config)
    assert not list(on_source(config))


def test_its_settings_are_those_of_the_run_that_trained_it() -> None:
    first = read_config(FIRST.config("run"))
    config = evaluated("results/first/student/pipeline")
    assert [stage for stage in JOBS if freeze(config, stage) != freeze(first, stage)] == []
    assert evaluated(run="other").run == "other"
    assert evaluated().models == first.models


def test_without_an_untrained_pipeline_that_model_is_left_out() -> None:
    shutil.rmtree(FIRST.student("untrained"))
    assert "untrained" not in evaluated().models


def test_a_student_that_is_gone_is_told_before_the_first_job() -> None:
    config = evaluated()
    shutil.rmtree(FIRST.student("pipeline"))
    (note,) = on_source(config)
    assert "student.from_run is 'results/first': there is no results/first/student" in str(note)
    with pytest.raises(ValueError, match="has no results/first/student/pipeline: finish it by"):
        evaluated()


def test_what_has_no_student_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"elsewhere belongs to no run: no config/run\.json"):
        evaluated("elsewhere")
    raw = generating_settings(tmp_path / "inputs", tmp_path)
    save_frozen(FIRST.config("run"), freeze(parse_config(raw, "f"), "run"))
    with pytest.raises(ValueError, match="is a run without training"):
        evaluated()


def test_the_name_of_another_run_is_refused() -> None:
    shutil.copytree("results/first", "results/other")
    with pytest.raises(ValueError, match="results/other is another run: give the evaluation"):
        evaluated(run="other")
    with pytest.raises(ValueError, match=r"student\.from_run is .*, which is this run"):
        evaluated(run="first")
