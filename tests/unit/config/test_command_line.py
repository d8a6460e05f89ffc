"""Words of the command line: targets behind --configfile, and values of --config with types."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from snakemake.cli import parse_config as read_by_snakemake
from snakemake.utils import update_config

from configs import RUN
from distillery.config.command_line import (
    check_words,
    keys_of,
    read_overrides,
    with_overrides,
)
from distillery.config.run import parse_config

CONFIG = "config/config.yaml"


def given(*entries: str) -> dict[str, Any]:
    """What a Snakefile makes of a configuration and of --config."""
    as_text = read_by_snakemake(list(entries))
    raw = json.loads(json.dumps(RUN))
    update_config(raw, as_text)
    return dict(with_overrides(raw, as_text, read_overrides(entries)))


@pytest.mark.parametrize(
    ("entry", "keys", "value"),
    [
        ("training={save_every_samples: 1280}", ["training", "save_every_samples"], 1280),
        (
            "training={phases: [{learn: stored, samples: 64}]}",
            ["training", "phases"],
            [{"learn": "stored", "samples": 64}],
        ),
        ("training={learning_rate: 1.0e-4}", ["training", "learning_rate"], 1.0e-4),
        ("training={ema_half_life_samples: null}", ["training", "ema_half_life_samples"], None),
        ("training={tf32: true}", ["training", "tf32"], True),
        ("samples={steps: [4, 8]}", ["samples", "steps"], [4, 8]),
        ("teacher={'path': 42}", ["teacher", "path"], 42),
        ("teacher={path: '42'}", ["teacher", "path"], "42"),
        ('{"seed": 1}=x', [], None),
        ("training={'lora': {\"rank\": 4}}", ["training", "lora", "rank"], 4),
        ("samples={models: {4: {steps: 4}}}", ["samples", "models", "4", "steps"], 4),
        ("run=2026_11_25", ["run"], "2026_11_25"),
        ("run=1e3", ["run"], "1e3"),
        ("run=2026-11-25", ["run"], "2026-11-25"),
        ("run='7'", ["run"], "7"),
        ("run=007", ["run"], "007"),
        ("run=true", ["run"], "true"),
        ("seed=7", ["seed"], 7),
        ("seed=010", ["seed"], 8),
        ("seed=08", ["seed"], "08"),
        ("seed=0x10", ["seed"], 16),
        ("seed=1e3", ["seed"], "1e3"),
        ("seed=null", ["seed"], None),
    ],
)
def test_values_have_the_types_that_a_file_would_give_them(
    entry: str, keys: list[str], value: object
) -> None:
    if not keys:
        assert read_overrides([entry]) == {}
        return
    found: Any = given(entry)
    for key in keys:
        found = found[key]
    assert found == value
    assert type(found) is type(value)


def test_several_values_and_what_they_leave() -> None:
    found = given("training={save_every_samples: 64}", "training={dtype: float32}", "seed=3")
    changes = {"save_every_samples": 64, "dtype": "float32"}
    assert found["training"] == RUN["training"] | changes
    assert parse_config(found, "my.yaml").seed == 3
    assert given("training={save_every_samples: ") != RUN, "no YAML: as Snakemake reads it"
    assert given("teacher=") == RUN | {"teacher": None}


def test_a_module_of_another_configuration_keeps_its_own() -> None:
    entries = ["run=other", "training={save_every_samples: 1280}"]
    raw = with_overrides(RUN, read_by_snakemake(entries), read_overrides(entries))
    assert raw == RUN


def refused(*entries: str, **changes: Any) -> str:
    raw = given(*entries) | changes
    keys = set(keys_of(read_by_snakemake(list(entries))))
    with pytest.raises(ValueError, match=r".") as caught:
        parse_config(raw, "my.yaml", keys)
    return str(caught.value)


def test_errors_name_the_source() -> None:
    message = refused("training={save_every_samples: abc}", "seed=1")
    assert message.startswith("--config cannot be used:\n  training.save_every_samples is 'abc'")
    assert "my.yaml" not in message
    assert refused("trainin={a: 1}").startswith("--config cannot be used:\n  trainin is not a key")
    assert refused("seed=2026-11-25").startswith("--config cannot be used:\n  seed is '2026-11-25'")
    both = refused("training={save_every_samples: abc}", dataset={"x": 1})
    assert both.startswith("my.yaml cannot be used:\n")
    assert "save_every_samples is 'abc': it should be a valid integer (by --config)" in both
    assert "dataset.x is not a key of the configuration" in both
    assert refused("seed=1", dataset={"x": 1}).startswith("my.yaml cannot be used:\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (CONFIG, "results/a/config/run.json", "results/a/plan.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "results/a/student/pipeline").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


TARGETS = [
    "results/b/plan.json",
    "results/a/plan.json",
    "results/a/student/pipeline",
    "verify",
    "all",
]


@pytest.mark.parametrize("option", ["--configfile", "--configfiles"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_target_behind_configfile_is_told_the_right_command(
    folder: Path, target: str, option: str
) -> None:
    before = ["--cores", "all", "-n", option, CONFIG, target]
    behind = [option, CONFIG, target, "--cores", "all", "-n"]
    for words in (before, behind, [option, target, CONFIG, "--cores", "all", "-n"]):
        with pytest.raises(ValueError, match=f"{target} is a target: write targets") as caught:
            check_words(words)
        assert "\n" not in str(caught.value)
        program, *advised = shlex.split(str(caught.value).rpartition("before it: ")[2])
        assert (program, advised[0]) == ("snakemake", target)
        check_words(advised)
        assert sorted(advised) == sorted(
            "--configfile" if word == option else word for word in words
        )


def test_a_target_behind_config_is_told_the_right_command(folder: Path) -> None:
    words = ["--configfile", CONFIG, "--config", "seed=1", "results/b/plan.json", "-n"]
    with pytest.raises(ValueError, match="--config takes all words after it") as caught:
        check_words(words)
    advised = str(caught.value).rpartition("before it: ")[2]
    assert advised == (f"snakemake results/b/plan.json -n --config seed=1 --configfile {CONFIG}")
    check_words(["--config", "seed=1", "--", "results/b/plan.json"])


def test_configurations_pass_or_are_told_what_is_wrong(folder: Path) -> None:
    check_words([])
    check_words(["results/a/plan.json", "--cores", "1"])
    check_words(["--configfile", CONFIG, "results/a/config/run.json", "--cores", "1", "all"])
    check_words([f"--configfile={CONFIG}", "verify"])
    for missing in ("config/mine.yaml", "config/mine.yml", "mine.toml"):
        with pytest.raises(ValueError, match=f"the configuration {missing} does not exist"):
            check_words(["--configfile", missing])
    (folder / "bad.yaml").write_bytes("run: caf\xe9".encode("cp1252"))
    with pytest.raises(ValueError, match=r"bad\.yaml cannot be read: it is not UTF-8"):
        check_words(["--configfile", "bad.yaml"])
    (folder / "twice.yaml").write_text("run: a\nrun: b")
    told = r"(?s)mine.yaml does not exist.*bad\.yaml cannot be read.*twice\.yaml has keys twice"
    with pytest.raises(ValueError, match=told):
        check_words(["--configfile", "bad.yaml", "twice.yaml", "mine.yaml"])


def test_the_settings_of_a_small_run_are_a_configuration(tmp_path: Path, monkeypatch: Any) -> None:
    """A probe starts Snakemake with them; its own result, of the same name, is a target."""
    monkeypatch.chdir(tmp_path)
    path = Path("results/demo-probe/probe.json")
    path.parent.mkdir(parents=True)
    path.write_text('{"run": "demo-probe", "teacher": {}, "prompts": {}}')
    check_words(["--configfile", str(path)])
    path.write_text('{"rates": {}}')
    with pytest.raises(ValueError, match="is a target: write"):
        check_words(["--configfile", str(path)])
