"""The workflow from other folders, with `--snakefile`, `--directory`, `module`; names with ä."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import forks
from checkout import REPOSITORY, SNAKEMAKES_OUTPUT, jobs
from runs import generating_settings, settings

EMBEDDINGS = "results/tiny/embeddings/eval/manifest.json"
PLAN = "results/tiny/plan.json"
PROMPTS = "results/tiny/prompts/eval.parquet"
MODULE = """
configfile: "mine.yaml"

module distillery:
    snakefile: {snakefile!r}
    config: config

use rule * from distillery as distil_*
"""
ONSTART = """
onstart:
    distillery.onstart()
"""

MADE = """
rule made:
    input: "source.csv"
    output: "inputs/{name}.csv"
    shell: "cp {input} {output}"
"""


def snakemake(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Started in `folder`, with the library of this repository and nothing else of it."""
    return subprocess.run(
        ["snakemake", "--cores", "2", *SNAKEMAKES_OUTPUT, *arguments],
        cwd=folder,
        env=forks.environ(PYTHONPATH=str(REPOSITORY / "workflow"), PYTHONDONTWRITEBYTECODE="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )


def configure(folder: Path, teacher: Path, /, **changes: dict[str, object]) -> Path:
    """`mine.yaml` of a generating run whose prompts lie beside it, named relative to the folder."""
    raw = generating_settings(folder / "inputs", teacher, **changes)
    raw["prompts"] = {"eval": "inputs/eval.csv"}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def listing(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a checkout in it and a folder to work in."""
    place = tmp_path / "grüne Äpfel"
    (place / "my run").mkdir(parents=True)
    for name in ("Snakefile", "rules", "profiles", "workflow/Snakefile", "workflow/report"):
        source, copy = REPOSITORY / name, place / "a checkout" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, copy)
    return place


def test_it_runs_in_another_folder_and_can_be_moved(place: Path, teacher: Path) -> None:
    """Nothing is written to the checkout, and no path of it or of the run decides what reruns."""
    checkout, folder = place / "a checkout", place / "my run"
    configure(folder, teacher)
    before = listing(checkout)
    arguments = ("--snakefile", "../a checkout/Snakefile", "--configfile", "mine.yaml")
    done = snakemake(folder, *arguments, "--", EMBEDDINGS)
    assert done.returncode == 0, done.stdout
    assert {"freeze", "prompts", "embeddings"} <= jobs(done.stdout)
    assert (folder / PLAN).is_file()
    assert listing(checkout) == before

    moved = place.rename(place.with_name("elsewhere"))
    elsewhere = moved / "a checkout/workflow/Snakefile"
    again = snakemake(
        moved, "--snakefile", str(elsewhere), "--directory", "my run",
        "--configfile", "my run/mine.yaml", "--dry-run", "--", EMBEDDINGS,
    )  # fmt: skip
    assert "Nothing to be done" in again.stdout, again.stdout


def test_as_a_module_it_plans_too(place: Path, teacher: Path) -> None:
    folder = place / "my run"
    snakefile = str(place / "a checkout/Snakefile")
    (folder / "Snakefile").write_text(MODULE.format(snakefile=snakefile), encoding="utf-8")
    configure(folder, teacher, teacher={"width": 40})
    refused = snakemake(folder, PROMPTS)
    assert refused.returncode != 0
    assert refused.stdout.count("teacher.width is 40: this model needs a multiple of 16") == 1
    assert not (folder / PROMPTS).exists()

    configure(folder, teacher)
    done = snakemake(folder, PROMPTS)
    assert done.returncode == 0, done.stdout
    written = (folder / PLAN).stat().st_mtime_ns
    prompts = folder / "inputs/eval.csv"
    prompts.write_text(prompts.read_text().replace("a red dog", "a blue dog", 1))
    assert "distil_prompts" in jobs(snakemake(folder, PROMPTS).stdout)
    assert (folder / PLAN).stat().st_mtime_ns > written


def test_a_workflow_around_it_may_make_its_prompts(place: Path, teacher: Path) -> None:
    folder = place / "my run"
    text = MODULE.format(snakefile=str(place / "a checkout/Snakefile"))
    configure(folder, teacher)
    (folder / "inputs/eval.csv").rename(folder / "source.csv")
    (folder / "Snakefile").write_text(text, encoding="utf-8")
    refused = snakemake(folder, "--dry-run", PROMPTS)
    assert "the prompt file inputs/eval.csv does not exist: create it" in refused.stdout
    (folder / "Snakefile").write_text(text + MADE, encoding="utf-8")
    for target in (PROMPTS, PLAN):
        assert "made" in jobs(snakemake(folder, "--dry-run", target).stdout)


def test_a_module_is_asked_before_its_first_job(place: Path, teacher: Path) -> None:
    """By the two lines of config/README.md; only Snakemake knows how many processes train."""
    folder = place / "my run"
    text = MODULE.format(snakefile=str(place / "a checkout/Snakefile"))
    (folder / "Snakefile").write_text(text + ONSTART, encoding="utf-8")
    raw = settings(folder / "inputs", teacher, hardware={"cpu_processes": 9})
    (folder / "mine.yaml").write_text(yaml.safe_dump(raw))
    done = snakemake(folder, "results/tiny/student/trained")
    assert done.returncode != 0
    assert "training.global_batch_size is 8 and there are 9 processes" in done.stdout
    assert not jobs(done.stdout)


def test_a_module_without_a_configuration_says_so(place: Path) -> None:
    folder = place / "my run"
    (folder / "config").mkdir()
    (folder / "config/config.yaml").write_text("{}")
    snakefile = str(place / "a checkout/Snakefile")
    text = MODULE.format(snakefile=snakefile).replace('configfile: "mine.yaml"', "")
    (folder / "Snakefile").write_text(text.replace("    config: config\n", ""), encoding="utf-8")
    done = snakemake(folder, "--dry-run")
    assert done.returncode != 0
    assert "a module needs `config: config`" in done.stdout


def test_the_demo_says_where_it_can_be_started(tmp_path: Path) -> None:
    given = ("--snakefile", str(REPOSITORY / "Snakefile"))
    configuration = ("--configfile", str(REPOSITORY / "config/config.yaml"))
    done = snakemake(tmp_path, *given, *configuration, "--dry-run")
    assert done.returncode != 0
    assert f"config/prompts/demo-train.csv lies in {REPOSITORY}, not in {tmp_path}" in done.stdout
    assert "Traceback" not in done.stdout
    for name in ("config", "resources"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    assert snakemake(tmp_path, *given, *configuration, "--dry-run").returncode == 0
    (tmp_path / "results").touch()
    done = snakemake(tmp_path, *given, *configuration, "--dry-run")
    assert done.returncode != 0
    assert "results/demo cannot be made, since results is no folder" in done.stdout
    assert "Traceback" not in done.stdout
