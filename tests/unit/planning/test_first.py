"""A run is planned before its first job: once, and again for what the plan depends on."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distillery.config.jobs import freeze
from distillery.config.run import RunConfig, parse_config
from distillery.files import hash_json, read_json, read_sealed, write_json
from distillery.notes import refuse
from distillery.planning import first
from distillery.planning.first import (
    asked_to_plan,
    last_work,
    on_folder,
    on_prompt_files,
    plan_as_asked,
    plan_first,
    write_frozen,
)
from distillery.planning.requests import Request
from distillery.run_folder import RunFolder
from runs import generating_settings, settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that plan; they write a plan of what they are told, or refuse 7 pixels."""
    found: list[list[str]] = []

    def plan(command: list[str], **_: object) -> Any:
        found.append(command)
        told = dict(zip(command[3::2], command[4::2], strict=True))
        content = read_sealed(Path(told["--config"]))
        if content["teacher"]["height"] == 7:
            return SimpleNamespace(returncode=1)
        made = {"config": hash_json(content), "num_gpus": int(told.get("--num-gpus", 0))}
        output = Path(told["--output"])
        output.with_suffix(".html").write_text("the page")
        write_json(output, made)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", plan)
    return found


def config_of(folder: Path, **changes: Mapping[str, Any]) -> RunConfig:
    return parse_config(settings(folder, Path("teacher"), **changes), "tiny")


def test_ctrl_c_while_it_is_planned_is_told_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snakemake takes it for an error of its own there, and would print a page of traceback."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupted)
    with pytest.raises(ValueError, match=r"^stopped while the run was planned; "):
        plan_first(config_of(folder.parent), RunFolder(folder), [], num_processes=0, num_gpus=0)


def test_the_order_of_models_is_kept(folder: Path, commands: list[list[str]]) -> None:
    """It is the report's; `verify` prints commands with this file as their configuration."""
    models = {name: {"source": "teacher", "steps": 2} for name in ("zebra", "teacher", "ant")}
    config = config_of(folder.parent, samples={"models": models})
    content, written = freeze(config, "run"), folder / "config/run.json"
    for write in (
        lambda: plan_first(config, RunFolder(folder), [], num_processes=0, num_gpus=0),
        lambda: write_frozen(content, written),
    ):
        write()
        assert list(read_json(written)["samples"]["models"]) == list(models)
        write_json(written, content)  # in the order of the alphabet, as earlier releases did


def test_it_is_planned_once_by_a_command(folder: Path, commands: list[list[str]]) -> None:
    config = config_of(folder.parent)
    for _ in range(2):
        plan_first(config, RunFolder(folder), [], num_processes=2, num_gpus=2)
    frozen, output, log = folder / "config/run.json", folder / "plan.json", folder / "logs/plan.log"
    expected = [sys.executable, "-m", "distillery.stages.plan", "--config", str(frozen)]
    expected += ["--output", str(output), "--num-gpus", "2", "--num-nodes", "1"]
    expected += ["--log-file", str(log)]
    assert commands == [expected]
    assert read_sealed(frozen) == freeze(config, "run")
    assert read_json(folder / "config/runtime.json") == freeze(config, "runtime")
    plan_first(config, RunFolder(folder), [])
    assert len(commands) == 1, "who knows of no GPUs takes the plan that there is"


def test_other_requests_to_a_cluster_are_planned_again(
    folder: Path, commands: list[list[str]]
) -> None:
    config, run = config_of(folder.parent), RunFolder(folder)
    for number, mem_mb in enumerate((16_000, 16_000, 32_000)):
        requests = {"training": Request(mem_mb, 120, 4)}
        plan_first(config, run, [], 2, 2, requests=requests)
        told = json.loads(commands[-1][commands[-1].index("--requests") + 1])
        assert told == {"training": {"mem_mb": mem_mb, "runtime": 120, "tries": 4}}
        assert len(commands) == 1 + (number == 2)
        plan = read_json(run.plan) | {"requests": told}
        write_json(run.plan, plan)
    plan_first(config, run, [], 2, 2)
    assert len(commands) == 2, "who asks no cluster takes the plan that there is"


def test_what_the_plan_depends_on_is_planned_again(
    folder: Path, commands: list[list[str]], tmp_path: Path
) -> None:
    config, num_gpus, plan, source = (
        config_of(tmp_path),
        1,
        folder / "plan.json",
        tmp_path / "a.csv",
    )
    source.touch()
    plan_first(config, RunFolder(folder), [str(source)], 1, num_gpus)
    frozen = (folder / "config/run.json").stat().st_mtime_ns
    num_nodes = 1
    changes = ("nothing", "source", "GPUs", "nodes", "configuration", "plan", "no source")
    for number, change in enumerate(changes, 1):
        if change in {"nothing", "source"}:  # that is as old as the plan, or younger
            planned = source.stat().st_mtime_ns - (change == "source")
            os.utime(plan, ns=(planned, planned))
        elif change == "GPUs":
            num_gpus = 2
        elif change == "nodes":
            num_nodes = 2
        elif change == "configuration":
            assert (folder / "config/run.json").stat().st_mtime_ns == frozen, "no need to write it"
            config = config_of(tmp_path, targets={"steps": 8})
        elif change == "plan":
            plan.write_text("{")
        elif change == "no source":
            source.unlink()
        plan_first(config, RunFolder(folder), [str(source)], 1, num_gpus, num_nodes)
        assert len(commands) == number, change


def test_a_page_that_was_removed_is_made_again(folder: Path, commands: list[list[str]]) -> None:
    config, run = config_of(folder.parent), RunFolder(folder)
    plan_first(config, run, [])
    run.plan_page.unlink()
    for _ in range(2):
        plan_first(config, run, [])
    assert len(commands) == 2
    assert run.plan_page.is_file()


def test_the_last_work_is_what_was_written_last(folder: Path) -> None:
    run = RunFolder(folder)
    assert last_work(run) == []
    run.telemetry.mkdir(parents=True)
    for seconds, name in enumerate(("targets-0-of-2", "training", "embeddings-eval")):
        path = run.telemetry / f"{name}.jsonl"
        path.write_text("")
        os.utime(path, (seconds, seconds))
    assert last_work(run) == [str(run.telemetry / "embeddings-eval.jsonl")]
    for chunks in (run.target_folder / "0123456789ab", run.embedding_folder / "eval/0123456789ab"):
        chunks.mkdir(parents=True)
        assert last_work(run) == [str(chunks)], "a chunk was added there, or is gone"
        os.utime(chunks, (1, 1))


def test_a_plan_that_refuses_ends_the_run(folder: Path, commands: list[list[str]]) -> None:
    plan_first(config_of(folder.parent), RunFolder(folder), [])
    before = (folder / "plan.json").read_bytes()
    config = config_of(folder.parent, teacher={"height": 7})
    for _ in range(2):
        with pytest.raises(ValueError, match=r"refuses this run, nothing was started; .*plan\.log"):
            plan_first(config, RunFolder(folder), [])
    assert len(commands) == 3
    assert (folder / "plan.json").read_bytes() == before


def test_what_another_job_was_refused_is_not_asked_again(
    folder: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def waited(path: Path, *_: object) -> Iterator[bool]:
        assert path.parent == folder / "config"
        yield True

    monkeypatch.setattr(first, "alone", waited)
    with pytest.raises(ValueError, match="the plan refuses this run; another job says why"):
        plan_first(config_of(folder.parent), RunFolder(folder), [])
    assert commands == []


def test_more_processes_than_samples_of_an_update_are_refused(
    folder: Path, commands: list[list[str]]
) -> None:
    config = config_of(folder.parent, training={"global_batch_size": 8})
    with pytest.raises(ValueError, match=r"global_batch_size is 8 and there are 9 processes"):
        plan_first(config, RunFolder(folder), [], num_processes=9)
    assert not folder.exists()
    plan_first(config, RunFolder(folder), [], num_processes=8)
    generating = parse_config(generating_settings(folder.parent, Path("teacher")), "tiny")
    plan_first(generating, RunFolder(folder), [], num_processes=9)
    assert len(commands) == 2


def test_a_job_that_others_come_from_plans_what_it_was_given(
    folder: Path, commands: list[list[str]]
) -> None:
    config = config_of(folder.parent)
    asked = asked_to_plan(config, RunFolder(folder), ["train.csv"], f"{folder}/config/targets.json")
    plan_as_asked(json.loads(asked), RunFolder(folder))
    assert len(commands) == 1
    assert read_sealed(folder / "config/run.json") == freeze(config, "run")
    assert json.loads(asked)["sources"] == ["train.csv"]


def test_the_job_that_writes_what_the_plan_reads_does_not_plan(
    folder: Path, commands: list[list[str]]
) -> None:
    asked = asked_to_plan(
        config_of(folder.parent), RunFolder(Path("results")), [], "results/config/run.json"
    )
    plan_as_asked(json.loads(asked), RunFolder(folder))
    assert commands == []


def test_files_beside_the_snakefile_are_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout, here = tmp_path / "checkout", tmp_path / "here"
    for path in (checkout, here):
        path.mkdir()
    monkeypatch.chdir(here)
    (checkout / "train.csv").touch()
    with pytest.raises(ValueError, match=rf"train\.csv lies in {checkout}, not in {here}: "):
        refuse(on_folder(["train.csv"], checkout))
    refuse(on_folder(["nowhere.csv"], checkout))
    (here / "train.csv").touch()
    refuse(on_folder(["train.csv"], checkout))


def test_a_prompt_file_is_there_or_made_by_a_rule(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    assert on_prompt_files(config, lambda path: False) == []
    (tmp_path / "train.csv").unlink()
    assert on_prompt_files(config, lambda path: path.endswith("train.csv")) == []
    (note,) = map(str, on_prompt_files(config, lambda path: path.endswith("eval.csv")))
    assert "train.csv does not exist: create it, or correct" in note
