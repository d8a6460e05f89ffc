"""Snakemake on a tiny run: what runs, what does not run again, and what a mistake looks like."""

import re
from pathlib import Path

import pytest
import yaml

from checkout import ONE_SHARD, REPOSITORY, TARGETS, configure, jobs, skeleton, snakemake, succeed
from distillery.store.shards import Manifest
from training_phases import phases

SHIPPED = sorted((REPOSITORY / "config").glob("*.yaml"))
SAMPLES = "results/tiny/samples/teacher/manifest.parquet"


@pytest.fixture(scope="module")
def ran(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run up to the teacher's targets and samples."""
    folder = skeleton(tmp_path_factory.mktemp("workflow"))
    configure(folder, teacher, **ONE_SHARD)
    succeed(folder, TARGETS, SAMPLES)
    return folder


def test_the_untrained_student_waits_for_no_training(ran: Path) -> None:
    listed = jobs(succeed(ran, "--dry-run", "results/tiny/samples/untrained/manifest.parquet"))
    assert listed == {"freeze", "student", "export", "samples", "merge_samples"}


def chunks(folder: Path) -> dict[Path, int]:
    found = folder.glob("results/tiny/targets/*/chunk-*.safetensors")
    return {path: path.stat().st_mtime_ns for path in found}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_configuration_can_be_planned(path: Path, tmp_path: Path) -> None:
    folder = skeleton(tmp_path, "config", "resources")
    output = succeed(folder, "--dry-run", "--configfile", f"config/{path.name}")
    trains = "training" in yaml.safe_load(path.read_text())
    last = {"targets", "training", "report"} if trains else {"dataset"}
    assert {"freeze", "samples"} | last <= jobs(output)


def test_a_run_leaves_what_it_should(ran: Path) -> None:
    manifest = Manifest.open(ran / TARGETS)
    assert manifest.num_samples == 9
    assert len(list(ran.glob("results/tiny/samples/teacher/*/0.png"))) == 5
    assert (ran / "results/tiny/plan.json").is_file()
    assert "3 of 3 chunks made" in (ran / "results/tiny/logs/targets-0-of-1.log").read_text()


def test_a_second_run_has_nothing_to_do(ran: Path) -> None:
    assert "Nothing to be done" in succeed(ran, "--dry-run", TARGETS, SAMPLES)


def test_a_training_that_is_online_alone_needs_no_targets(teacher: Path, tmp_path: Path) -> None:
    folder = skeleton(tmp_path)
    configure(folder, teacher, training={"phases": phases(online=8)})
    assert not {"targets", "merge_targets"} & jobs(succeed(folder, "--dry-run"))
    succeed(folder, "results/tiny/student/loss.parquet")
    assert not (folder / "results/tiny/targets").exists()
    finish = {"phases": phases(stored=8, online=8)}
    configure(folder, teacher, training=finish)
    assert {"targets", "merge_targets", "training"} <= jobs(succeed(folder, "--dry-run"))


def gpus_of_rules(output: str) -> dict[str, str]:
    """What each rule of a dry run asks for, of those that ask for GPUs."""
    asked = {}
    for job in re.split(r"\n(?:local)?rule ", output)[1:]:
        if found := re.search(r"resources: .*\bgpu=(\d)", job):
            asked[job.partition(":")[0]] = found[1]
    return asked


def test_a_clusters_jobs_ask_for_gpus_that_the_submitting_machine_lacks(
    teacher: Path, tmp_path: Path
) -> None:
    pytest.importorskip("snakemake_executor_plugin_slurm")
    folder = skeleton(tmp_path)
    configure(folder, teacher)
    here = gpus_of_rules(succeed(folder, "--dry-run"))
    there = gpus_of_rules(succeed(folder, "--dry-run", "--executor", "slurm", "--jobs", "4"))
    assert {"embeddings", "targets", "training", "samples", "evaluation"} <= here.keys()
    assert set(here.values()) == {"0"}
    assert set(there.values()) == {"1"}


def test_samples_settings_rerun_no_targets(ran: Path, teacher: Path) -> None:
    configure(ran, teacher, targets={"num_shards": 1}, samples={"num_shards": 1, "batch_size": 3})
    listed = jobs(succeed(ran, "--dry-run", TARGETS, SAMPLES))
    configure(ran, teacher, **ONE_SHARD)
    assert listed == {"freeze", "samples", "merge_samples"}


def test_another_number_of_shards_recomputes_no_chunk(ran: Path, teacher: Path) -> None:
    before, manifest = chunks(ran), (ran / TARGETS).read_bytes()
    configure(ran, teacher, targets={"num_shards": 2}, samples={"num_shards": 1})
    output = succeed(ran, TARGETS)
    assert {"targets", "merge_targets"} <= jobs(output)
    assert chunks(ran) == before
    assert (ran / TARGETS).read_bytes() == manifest
    configure(ran, teacher, **ONE_SHARD)


def test_a_job_that_fails_keeps_its_finished_chunks(ran: Path) -> None:
    """Last of all that share a run, which it leaves damaged."""
    first, second, _ = sorted(chunks(ran))
    content = {path: path.read_bytes() for path in (first, second)}
    other = Manifest.open(ran / TARGETS).recipe_hash.encode()
    second.write_bytes(content[second].replace(other, b"0" * 64))
    first.unlink()
    done = snakemake(ran, "--forcerun", "targets", "--", TARGETS)
    assert done.returncode != 0
    log = (ran / "results/tiny/logs/targets-0-of-1.log").read_text()
    assert "was made by recipe 000000000000" in log + done.stdout
    assert first.read_bytes() == content[first], "made before the failure, and kept"


def test_a_wrong_configuration_gives_one_clear_message(teacher: Path, tmp_path: Path) -> None:
    folder = skeleton(tmp_path)
    configure(folder, teacher, targets={"steps": 5})
    done = snakemake(folder, "--dry-run")
    assert done.returncode != 0
    assert done.stdout.count("5 must be a multiple of 2; set targets.steps to 4 or 6, or") == 1
    assert "config/config.yaml cannot be used" in done.stdout
    assert "Traceback" not in done.stdout


LONGER = "phases: [{learn: stored, samples: 64}]"


def test_words_of_the_command_line(teacher: Path, tmp_path: Path) -> None:
    """Snakemake reads what is nested in --config as text, and a date's digits as a number."""
    folder = skeleton(tmp_path)
    configure(folder, teacher)
    nested = ("--config", "run=2026_11_25", f"training={{learning_rate: 0.125, {LONGER}}}")
    frozen = "results/2026_11_25/config/training.json"
    listed = succeed(folder, "--dry-run", "--printshellcmds", frozen, *nested)
    assert '"learning_rate": 0.125' in listed
    assert '"phases": [{"learn": "stored", "samples": 64}]' in listed
    wrong = snakemake(folder, "--dry-run", "--config", "training={global_batch_size: few}")
    assert "--config cannot be used:\n  training.global_batch_size is 'few'" in wrong.stdout
    behind = snakemake(folder, "--dry-run", "--configfile", "config/config.yaml", "verify")
    assert behind.returncode != 0
    assert "snakemake verify" in behind.stdout
    assert "Traceback" not in behind.stdout + wrong.stdout


@pytest.mark.parametrize(
    ("target", "name", "what"),
    [([], "nope.csv", "does not exist"), (["results/tiny/plan.json"], "folder", "is no file")],
    ids=["all", "plan"],
)
def test_a_prompt_file_that_is_not_there_is_told_before_any_job(
    target: list[str], name: str, what: str, teacher: Path, tmp_path: Path
) -> None:
    folder = skeleton(tmp_path)
    configure(folder, teacher, prompts={"train": f"inputs/{name}"})
    (folder / "inputs/folder").mkdir()
    done = snakemake(folder, "--dry-run", *target)
    assert done.returncode != 0
    message = f"the prompt file inputs/{name} {what}: create it, or correct the path under"
    assert done.stdout.count(message) == 1
    assert 'File "' not in done.stdout, "where in our code it was found"
    assert "MissingInputException" not in done.stdout
    assert not jobs(done.stdout)


@pytest.mark.parametrize(
    ("line", "message"),
    [(b"run: tiny\nrun: other", "run stands on line "), (b"run: caf\xe9", "is not UTF-8")],
    ids=["twice", "latin1"],
)
def test_nonsense_gives_one_clear_message_too(
    line: bytes, message: str, teacher: Path, tmp_path: Path
) -> None:
    """It takes the second of two keys, and ends with a traceback at another encoding."""
    folder = skeleton(tmp_path)
    configure(folder, teacher)
    path = folder / "config" / "config.yaml"
    path.write_bytes(path.read_bytes().replace(b"run: tiny", line))
    done = snakemake(folder, "--dry-run")
    assert done.returncode != 0
    assert message in done.stdout
    assert "Traceback" not in done.stdout


def test_lint(teacher: Path, tmp_path: Path) -> None:
    folder = skeleton(tmp_path)
    configure(folder, teacher)
    output = snakemake(folder, "--lint").stdout
    lints = {line for line in output.splitlines() if line.startswith("    * ")}
    assert {line for line in lints if "conda environment or container" not in line} == set()


def test_the_clusters_profile_gives_gpus_to_every_rule_that_takes_some() -> None:
    """A rule that it leaves out would ask a cluster for as many as the head node has."""
    takes = set()
    for path in (REPOSITORY / "rules").glob("*.smk"):
        text = path.read_text(encoding="utf-8")
        for block in re.split(r"\n(?=rule |use rule )", text):
            name = re.match(r"(?:use )?rule (?:\w+ as )?(\w+)", block)
            if name and ("gpu=" in block or block.startswith("use rule")):
                takes.add(name[1])
    profile = yaml.safe_load((REPOSITORY / "profiles/slurm/config.yaml").read_text())
    assert takes == profile["set-resources"].keys()
    assert len(takes) == 11
