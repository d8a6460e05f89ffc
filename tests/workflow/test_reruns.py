"""On a finished run, settings that change no result make nothing again but the report."""

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from checkout import configure, jobs, skeleton, snakemake, succeed
from distillery.config.jobs import freeze, read_frozen, save_frozen
from distillery.config.run import Config, parse_config
from distillery.config.section import without_result
from distillery.files import hash_json, read_json, write_json, write_text
from training_phases import phases

ALLOWED = {"freeze", "report"}
"""The report prints the whole configuration."""
OTHERS: dict[str, dict[str, Any]] = {
    "teacher.offload": {"teacher": {"offload": "model"}},
    "teacher.num_gpus": {"teacher": {"num_gpus": 2}},
    "training.micro_batch_size": {"training": {"micro_batch_size": 2}},
    "training.parallel": {"training": {"parallel": "fsdp"}},
    "training.gradient_checkpointing": {"training": {"gradient_checkpointing": True}},
    "training.compile": {"training": {"compile": "always"}},
    "training.log_every_samples": {"training": {"log_every_samples": 16}},
    "training.save_every_samples": {"training": {"save_every_samples": 16}},
    "training.keep_checkpoints": {"training": {"keep_checkpoints": 1}},
    "training.timeout_s": {"training": {"timeout_s": 100}},
    "training.teacher_residence": {"training": {"teacher_residence": "one_rank"}},
    "training.teacher_rank": {"training": {"teacher_rank": 1}},
    "training.hang_timeout_s": {"training": {"hang_timeout_s": 0}},
    "previews.every_samples": {"previews": {"every_samples": 16}},
    "previews.num_prompts": {"previews": {"num_prompts": 2}},
    "hardware.cpu_threads": {"hardware": {"cpu_threads": 2}},
    "hardware.compile": {"hardware": {"compile": "never"}},
    "hardware.num_gpus": {"hardware": {"num_gpus": 4}},
    "hardware.gpu_memory_gib": {"hardware": {"gpu_memory_gib": 80}},
    "hardware.cpu_processes": {"hardware": {"cpu_processes": 1}},
    "hardware.gpu": {"hardware": {"gpu": "H100-80GB x 4"}},
}
"""Another value of each."""
EXCLUDE = {"teacher.num_gpus", "hardware.gpu"}
"""Not together with teacher.offload, and with hardware.num_gpus."""
FINISHED: dict[str, dict[str, Any]] = {"training": {"phases": phases(stored=16)}}


def claimed(model: type[BaseModel], before: str = "") -> Iterator[str]:
    """The keys of a configuration that say so of themselves."""
    yield from (before + name for name in without_result(model))
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from claimed(field.annotation, f"{before}{name}.")


def merged(*changes: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for change in changes:
        for section, values in change.items():
            known = found.get(section, {})
            found[section] = known | values if isinstance(values, dict) else values
    return found


@pytest.fixture(scope="module")
def finished(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that Snakemake takes for finished: what makes it run again depends on its
    records and on the ages of files, not on what is in them."""
    folder = skeleton(tmp_path_factory.mktemp("finished"))
    configure(folder, teacher, **FINISHED)
    listed = succeed(folder, "--dry-run", "--summary").splitlines()
    outputs = [line.split("\t")[0] for line in listed if line.startswith("results/")]
    assert len(outputs) > 30
    config = parse_config(yaml.safe_load((folder / "config/config.yaml").read_text()), "tiny")
    for output in outputs:
        path = folder / output if Path(output).suffix else folder / output / "file"
        if path.parent.name == "config":
            save_frozen(path, freeze(config, path.stem))
        else:
            write_text(path, "{}")
    frozen = freeze(config, "run")
    plan = {"config": hash_json(frozen), "num_gpus": 0}
    write_json(folder / "results/tiny/plan.json", plan)
    succeed(folder, "--touch", "--forceall")
    return folder


def rerun_by(folder: Path, *changes: dict[str, dict[str, Any]]) -> set[str]:
    """The rules that a dry run lists after a change of the finished run."""
    path = folder / "config/config.yaml"
    raw = yaml.safe_load(path.read_text())
    other = folder / "config/other.yaml"
    other.write_text(yaml.safe_dump(merged(raw, *changes)))
    return jobs(succeed(folder, "--dry-run", "--configfile", str(other))) - {"all"}


def test_a_finished_run_of_an_earlier_release_trains_nothing_again(
    finished: Path, tmp_path: Path
) -> None:
    """Its frozen training has keys in the place of the list of phases."""
    folder = tmp_path / "earlier"
    shutil.copytree(finished, folder, symlinks=True)
    path = folder / "results/tiny/config/training.json"
    frozen = read_frozen(path)
    listed = frozen["training"].pop("phases")
    frozen["training"] |= {"num_samples": listed[0]["samples"], "targets": "stored", "rounds": None}
    save_frozen(path, frozen)
    succeed(folder, "--touch", "--forceall")
    assert rerun_by(folder) == set()
    assert "num_samples" in path.read_text()
    assert "training" in rerun_by(folder, {"training": {"phases": phases(stored=24)}})
    raw = yaml.safe_load((folder / "config/config.yaml").read_text())
    raw["training"]["num_samples"] = raw["training"].pop("phases")[0]["samples"]
    (folder / "config/earlier.yaml").write_text(yaml.safe_dump(raw))
    done = snakemake(folder, "--dry-run", "--configfile", "config/earlier.yaml")
    told = done.stdout
    assert "Nothing to be done" in told
    assert "  phases:\n  - {learn: stored, samples: 16}" in told


def test_every_key_that_claims_so_is_tried() -> None:
    assert set(OTHERS) == set(claimed(Config))


def test_what_changes_no_result_remakes_nothing(finished: Path) -> None:
    assert rerun_by(finished) == set()
    together = [change for key, change in OTHERS.items() if key not in EXCLUDE]
    alone = [OTHERS[key] for key in EXCLUDE]
    assert rerun_by(finished, *together) == ALLOWED
    assert rerun_by(finished, *alone) == ALLOWED


def test_the_length_of_a_training_builds_no_student(finished: Path) -> None:
    found = rerun_by(finished, {"training": {"phases": phases(stored=24)}})
    assert "training" in found
    assert not found & {"student", "targets", "embeddings", "prompts"}
    assert "student" in rerun_by(finished, {"student": {"steps": 1}})


def test_other_held_out_prompts_run_no_job_of_the_training(finished: Path) -> None:
    """Nor would they in a run of an earlier release, which froze the prompts of both splits."""
    raw = yaml.safe_load((finished / "config/config.yaml").read_text())
    others = finished / "inputs/others.csv"
    shutil.copy(raw["prompts"]["eval"], others)
    found = rerun_by(finished, {"prompts": {"eval": str(others)}})
    assert {"prompts", "embeddings", "samples", "evaluation", "report"} <= found
    assert not found & {"targets", "merge_targets", "training", "student", "export"}
    assert {"prompts", "targets", "training"} <= rerun_by(
        finished, {"prompts": {"notes": ["seed"]}}
    )


def test_results_that_were_moved_without_snakemakes_notes_are_not_taken_for_others(
    finished: Path, tmp_path: Path
) -> None:
    """Snakemake compares settings with its notes; without them any would seem to be the same."""
    moved = skeleton(tmp_path)
    for name in ("results", "config", "inputs"):
        shutil.copytree(finished / name, moved / name, copy_function=shutil.copy2)
    config = moved / "config/other.yaml"
    raw = yaml.safe_load((moved / "config/config.yaml").read_text())
    for options, status in (({}, 0), ({"seed": 1}, 1)):
        config.write_text(yaml.safe_dump(raw | options))
        done = snakemake(moved, "--dry-run", "--configfile", str(config))
        assert done.returncode == status, done.stdout
        assert ("moved without the folder .snakemake" in done.stdout) == bool(status)
    (moved / "results/tiny/plan.json").unlink()
    (moved / "results/tiny/report/index.html").unlink()
    for asked in ("plan.json", "report/index.html"):
        done = snakemake(moved, f"results/tiny/{asked}", "--configfile", str(config))
        assert done.returncode == 1
        assert "moved without the folder .snakemake" in done.stdout, "which a plan would not see"
        assert not (moved / "results/tiny" / asked).exists(), "no job has begun"
    looked = snakemake(moved, "verify", "--configfile", str(config)).stdout
    assert "moved without the folder .snakemake" not in looked, "it only reads"
    frozen = moved / "results/tiny/config"
    frozen.rename(frozen.with_name("aside"))  # what the message says, with any settings
    for options in ({}, {"seed": 1}):
        config.write_text(yaml.safe_dump(raw | options))
        listed = jobs(succeed(moved, "--dry-run", "--configfile", str(config)))
        assert {"freeze", "prompts", "targets", "training", "samples", "report"} <= listed
    frozen.with_name("aside").rename(frozen)
    shutil.copytree(finished / ".snakemake", moved / ".snakemake", dirs_exist_ok=True)
    assert "targets" in jobs(succeed(moved, "--dry-run", "--configfile", str(config)))


def test_prompts_of_an_older_date_are_told_though_nothing_is_to_be_done(
    finished: Path, tmp_path: Path
) -> None:
    """As a backup has them, or a copy that keeps dates."""
    folder = shutil.copytree(finished, tmp_path / "run", symlinks=True)
    succeed(folder, "results/tiny/plan.json")
    plan = folder / "results/tiny/plan.json"
    planned = read_json(plan)
    (source,) = (path for path in planned["sources"] if path.endswith("eval.csv"))
    write_json(plan, planned | {"sources": planned["sources"] | {source: "0" * 64}})
    told = snakemake(folder)
    assert told.returncode == 1
    assert "an older date" in told.stdout


def test_the_report_of_a_renamed_run_is_made_again_by_the_command_that_is_told(
    finished: Path, tmp_path: Path
) -> None:
    """Snakemake's notes are of the old paths, so it would keep a page with the old name."""
    folder = shutil.copytree(finished, tmp_path / "run", symlinks=True)
    (folder / "results/tiny").rename(folder / "results/better")
    config = folder / "config/config.yaml"
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | {"run": "better"}))
    told = snakemake(folder, "--dry-run")
    assert told.returncode == 1
    assert "was the folder renamed?" in told.stdout
    command = told.stdout.split("`")[1]
    assert command == "rm results/better/config/run.json"
    subprocess.run(shlex.split(command), cwd=folder, check=True)
    assert jobs(succeed(folder, "--dry-run")) == {"all", "freeze", "report"}
