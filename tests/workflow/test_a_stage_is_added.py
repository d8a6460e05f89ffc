"""What docs/add-a-stage.md says, done to a copy of the checkout with the page's own code."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from finished_run import TINY
from PIL import Image

import forks
from checkout import REPOSITORY, SNAKEMAKES_OUTPUT, jobs
from distillery.telemetry import read_events
from libraries import code_of, insert, run_with

pytestmark = pytest.mark.slow
CHECKOUT = ("Snakefile", "rules", "scripts", "workflow")
JOBS = "config/jobs.py"
COUNT = """
import sys
from pathlib import Path
import yaml
from distillery.config.run import parse_config
from distillery.pipeline import STAGES
from distillery.planning.gpus import Gpus
from distillery.planning.jobs import list_jobs
from distillery.planning.probe import amounts_of
from distillery.stage import Counts
config = parse_config(yaml.safe_load(Path(sys.argv[1]).read_text()), sys.argv[1])
jobs = [row.jobs for row in list_jobs(STAGES, config, Gpus()) if row.stage == "thumbnails"]
counts = Counts({"train": 4, "eval": 2}, {"train": 4, "eval": 2})
print(*jobs, *(it.kind for it in amounts_of(STAGES, config, counts) if it.kind == "thumbnails"))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package `distillery` of a checkout with the page's stage."""
    checkout = tmp_path_factory.mktemp("stage") / "checkout"
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in CHECKOUT[1:]:
        shutil.copytree(REPOSITORY / name, checkout / name, symlinks=True, ignore=unwanted)
    shutil.copy(REPOSITORY / "Snakefile", checkout)
    library = checkout / "workflow/distillery"
    script, makes, job, folder = code_of("add-a-stage.md")
    (rule,) = code_of("add-a-stage.md", "snakemake")
    (checkout / "scripts/thumbnails.py").write_text(script)
    (library / "report/thumbnails.py").write_text(makes)
    (checkout / "rules/thumbnails.smk").write_text(rule)
    jobs_file = library / JOBS
    insert(jobs_file, "JOBS: dict[str, type[Job]] = {\n", f"{job}\n\n")
    insert(jobs_file, '    "evaluation": EvaluationJob,\n', '    "thumbnails": ThumbnailsJob,\n')
    insert(library / "pipeline.py", "    training,\n    verify,\n", "    thumbnails,\n")
    insert(library / "pipeline.py", "    report.STAGE,\n", "    thumbnails.STAGE,\n")
    insert(library / "run_folder.py", "    @property\n    def gallery", f"{indented(folder)}\n")
    insert(checkout / "Snakefile", '    include: "rules/report.smk"\n', (
        '    include: "rules/thumbnails.smk"\n'
    ))  # fmt: skip
    return library


def indented(code: str) -> str:
    return re.sub("^(?=.)", "    ", code, flags=re.M)


@pytest.fixture(scope="module")
def run(library: Path, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the release before, in which all is asked for with the new stage."""
    folder = tmp_path_factory.mktemp("added") / "copy"
    shutil.copytree(finished, folder, symlinks=True)
    for name in CHECKOUT:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(library.parents[1] / name)
    made = snakemake(folder, library)
    assert jobs(made) == {"freeze", "thumbnails", "all"}, made
    return folder


def snakemake(folder: Path, library: Path, *arguments: str) -> str:
    """With the copy."""
    done = subprocess.run(
        ["snakemake", "--cores", "2", *SNAKEMAKES_OUTPUT, *arguments],
        cwd=folder,
        env=forks.environ(PYTHONPATH=str(library.parent)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_all_makes_its_outputs_and_nothing_else(run: Path) -> None:
    for model in ("teacher", "student", "untrained"):
        images = sorted((run / TINY / "samples" / model).glob("*/*.png"))
        copies = {path.name for path in (run / TINY / "thumbnails" / model).glob("*.png")}
        assert copies == {f"{path.parent.name}-{path.stem}.png" for path in images} != set()
    with Image.open(next((run / TINY / "thumbnails/student").glob("*.png"))) as image:
        assert max(image.size) <= 64
    events = [it for it in read_events(run / TINY / "telemetry") if it.stage == "thumbnails"]
    assert sum(it.num_items for it in events if it.kind == "work") == 3 * len(images)


def test_another_input_under_the_old_date_makes_it_run_again(run: Path, library: Path) -> None:
    frozen = run / TINY / "config/thumbnails.json"
    whole, times = frozen.read_bytes(), frozen.stat()
    frozen.write_bytes(whole + b"\n")
    os.utime(frozen, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert jobs(snakemake(run, library, "--dry-run")) == {"thumbnails", "all"}
    frozen.write_bytes(whole)


def test_it_alone_runs_again_when_its_version_is_raised(run: Path, library: Path) -> None:
    before, job = (library / JOBS).read_text(), code_of("add-a-stage.md")[2]
    (library / JOBS).write_text(before.replace(job, job.replace("= 1", "= 2")))
    assert jobs(snakemake(run, library, "--dry-run")) == {"freeze", "thumbnails", "all"}


def test_the_plan_counts_its_jobs(run: Path, library: Path) -> None:
    config = run / "config/config.yaml"
    assert run_with(library, COUNT, config) == "3 thumbnails thumbnails thumbnails"
