"""What a wheel carries: a library with types, the jobs' command lines, the report's templates."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

import distillery
from distillery.config.jobs import freeze
from distillery.files import write_json
from runs import make_run

REPOSITORY = Path(__file__).parents[2]


def python(*arguments: str, **environment: str) -> str:
    """What a Python process prints; it must end well."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel's files lie, with nothing of the repository beside them."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(REPOSITORY / "workflow", source / "workflow", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(REPOSITORY / name, source)
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    python("-m", "pip", "wheel", str(source), *offline, "--wheel-dir", str(folder))
    (wheel,) = folder.glob("distillery-*.whl")
    target = folder / "installed"
    python("-m", "pip", "install", *offline, "--target", str(target), str(wheel))
    shutil.rmtree(source)
    return target


def test_an_installed_wheel_writes_a_report(installed: Path, teacher: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, teacher)
    config, page = run.folder / "config/run.json", run.folder / "report/index.html"
    write_json(config, freeze(run.config, "run"))
    given = {"--config": config, "--output": page}
    given["--metrics"] = page.with_name("metrics.json")
    options = [word for name, path in given.items() for word in (name, str(path))]
    python("-m", "distillery.stages.report", *options, PYTHONPATH=str(installed))
    assert "</html>" in page.read_text(encoding="utf-8")
    where = python("-c", "import distillery; print(distillery.__file__)", PYTHONPATH=str(installed))
    assert where.startswith(str(installed)), "or all this would show nothing"


def test_a_wheel_has_its_licence_version_and_types(installed: Path) -> None:
    (found,) = distributions(path=[str(installed)])
    assert found.version == distillery.__version__
    assert found.metadata["License-Expression"] == "Apache-2.0"
    files = {Path(str(file)).name for file in found.files or []}
    assert {"LICENSE", "NOTICE", "py.typed"} <= files
