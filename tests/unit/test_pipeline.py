"""The list of stages is what the rules are, and is read without what the stages need."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import golden
from distillery import pipeline
from distillery.config.run import RunConfig
from distillery.config.teacher import Trace
from distillery.run_folder import RunFolder
from random_configs import random_configs

CONFIGS = [
    *(config for name, config in golden.shipped() if name in ("config", "dataset")),
    next(
        it
        for it in random_configs(99)
        if getattr(it, "training", None) and it.training.round_numbers
    ),
]
DEMO = CONFIGS[0]
TRACED = DEMO.model_copy(
    update={"teacher": DEMO.teacher.model_copy(update={"trace": Trace(unguided={})})}
)


def as_pattern(output: str) -> re.Pattern[str]:
    """What an output's wildcards may stand for: {shard}, {split,train|eval}."""
    parts = re.split(r"\{(\w+(?:,[^{}]*)?)\}", output)
    return re.compile("".join(".+" if at % 2 else re.escape(it) for at, it in enumerate(parts)))


@pytest.mark.parametrize("config", [*CONFIGS, TRACED], ids=lambda it: it.run)
def test_a_stage_writes_what_its_rule_declares(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(golden.REPOSITORY)
    rules = golden.rules(config)["rules"]
    run = RunFolder(Path("results") / config.run)
    for stage in pipeline.STAGES:
        written = [str(it) for key in stage.keys(config) for it in stage.writes(config, run, key)]
        if not written:
            continue
        declared = [as_pattern(output) for output in rules[stage.name]["output"]]
        for path in written:
            assert any(it.fullmatch(path) for it in declared), (stage.name, path)
        for pattern in declared:
            assert any(map(pattern.fullmatch, written)), (stage.name, pattern.pattern)


def test_every_rule_is_a_stage_and_every_module_is_listed() -> None:
    names = {stage.name for stage in pipeline.STAGES}
    distil, _, rounds, traced = (set(golden.rules(it)["rules"]) for it in [*CONFIGS, TRACED])
    assert (distil | rounds | traced) - {"all"} <= names
    assert traced - distil == {"signature"}
    modules = {path.stem for path in Path(pipeline.__file__).parent.glob("stages/[a-z]*.py")}
    assert modules <= names


def test_every_rule_says_in_snakemakes_list_what_it_makes() -> None:
    text = "".join(path.read_text() for path in (golden.REPOSITORY / "rules").glob("*.smk"))
    rules = re.findall(r"^rule (\w+):\n(.*)", text, re.M)
    assert len(rules) > 20
    assert [name for name, first in rules if not first.startswith('    """')] == []


@pytest.mark.parametrize("stage", pipeline.STAGES, ids=lambda stage: stage.name)
def test_what_makes_a_stage_is_there(stage: pipeline.Stage) -> None:
    if stage.makes:
        assert stage.function().__doc__


def test_the_list_is_read_without_what_stages_need() -> None:
    code = "import sys, distillery.pipeline; print(*{'torch', 'pandas', 'numpy'} & {*sys.modules})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
