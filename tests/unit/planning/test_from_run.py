"""Several students of one store: what is read from another run is this run's own, or refused."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from distillery.config.jobs import JOBS, freeze
from distillery.config.run import Config, parse_config
from distillery.files import hash_json, read_json
from distillery.pipeline import STAGES
from distillery.planning.first import on_source, sources_of
from distillery.planning.plan import make_plan
from distillery.run_folder import RunFolder
from distillery.stage import everything
from distillery.store.shards import Manifest
from runs import Run, summary


def second(first: Run, **changes: Any) -> Config:
    """Another run that reads the first one's trajectories; `changes` update sections."""
    raw = freeze(first.config, "run") | {"run": "second"}
    changes["targets"] = {"from_run": str(first.folder)} | changes.get("targets", {})
    for section, values in changes.items():
        raw[section] = raw[section] | values if isinstance(values, dict) else values
    config = parse_config(raw, "second.yaml")
    assert isinstance(config, Config)
    return config


def planned(config: Config, folder: Path) -> dict[str, Any]:
    make_plan(STAGES, config, folder / "second/plan.json")
    return read_json(folder / "second/plan.json")


def test_a_second_student_makes_neither_trajectories_nor_their_embeddings(
    run: Run, tmp_path: Path
) -> None:
    config = second(run, student={"steps": 1})
    plan = planned(config, tmp_path)
    jobs = {row["stage"]: row["jobs"] for row in plan["stages"]}
    assert jobs["embeddings"] == 1
    assert "targets" not in jobs
    assert plan["work"]["teacher_calls"] == 0
    assert "targets" not in plan["disk"]["stages"]
    assert f"read from {run.folder}" in summary(plan)
    there = {row["stage"]: (row["done"], row["of"]) for row in plan["there"]}
    assert there["targets"] == (3, 3)
    asked = everything(STAGES, config, RunFolder(Path("results/second")))
    assert not [path for path in asked if "targets" in path.parts]
    assert {str(run.files.targets), str(run.embeddings("train"))} <= set(sources_of(config))
    assert not list(on_source(config))


def test_where_trajectories_lie_is_in_no_recipe(run: Run) -> None:
    for stage in JOBS:
        assert freeze(second(run), stage) == freeze(run.config, stage)


def no_manifest(run: Run) -> None:
    run.files.targets.unlink()


def nothing(run: Run) -> None:
    run.folder.rename(run.folder.with_name("moved"))


@pytest.mark.parametrize(
    ("damage", "wanted"),
    [
        (no_manifest, r"it is half made, 3 chunks and no .*targets/manifest\.json; finish it"),
        (nothing, r"there is no .*targets/manifest\.json; give results/RUN"),
    ],
)
def test_what_is_not_there_is_told_while_jobs_are_found(
    damage: Callable[[Run], None], wanted: str, run: Run
) -> None:
    config = second(run)
    damage(run)
    (note,) = on_source(config)
    assert re.search(wanted, str(note))


def chunk_gone(run: Run) -> Config:
    sorted(run.files.target_folder.glob("*/chunk-*"))[1].unlink()
    return second(run)


def other_texts(run: Run) -> Config:
    path = run.folder / "other.csv"
    pd.read_csv(str(run.config.prompts.train)).iloc[::-1].to_csv(path, index=False)
    return second(run, prompts={"train": str(path)})


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (lambda run: second(run, targets={"steps": 8}), "others than these would be .*steps is 4"),
        (lambda run: second(run, seed=5), r"others than these would be \(seed is 0, not 5"),
        (other_texts, r"are not those of prompts\.train in this order"),
        (chunk_gone, r"chunk-000001\.safetensors is gone or empty"),
    ],
)
def test_other_trajectories_are_refused_before_the_first_job(
    made: Callable[[Run], Config], wanted: str, run: Run, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=wanted):
        planned(made(run), tmp_path)
    assert not (tmp_path / "second/plan.json").exists()


def test_trajectories_of_another_teacher_are_refused(run: Run, tmp_path: Path) -> None:
    manifest = Manifest.read(run.files.targets)
    recipe = manifest.recipe | {"teacher": "0" * 64}
    replace(manifest, recipe=recipe, recipe_hash=hash_json(recipe)).write(run.files.targets)
    with pytest.raises(ValueError, match="of another teacher, or of other weights"):
        planned(second(run), tmp_path)


def test_settings_that_contradict_themselves(run: Run) -> None:
    with pytest.raises(ValueError, match="is 'results/second', which is this run itself"):
        second(run, targets={"from_run": "results/second"})
    online = {"phases": [{"learn": "online", "samples": 8}], "held_out_prompts": 0}
    with pytest.raises(ValueError, match="online alone, which reads no trajectories"):
        second(run, training=online)
