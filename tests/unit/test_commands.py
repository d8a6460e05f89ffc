"""Short commands stand for lines of Snakemake, which they print."""

import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import forks
from checkout import REPOSITORY
from distillery.__main__ import COMMANDS, HOME, line_of, main, parser
from pages import all_commands


def line(text: str) -> str:
    """The line of Snakemake for a command as it is typed."""
    own, _, through = text.partition(" -- ")
    return shlex.join(line_of(parser().parse_args(shlex.split(own)), shlex.split(through)))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "Snakefile").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("plan a.yaml", "--cores all --force plan --configfile a.yaml"),
        ("run", "--cores all"),
        ("run a.yaml b.yaml", "--cores all --configfile a.yaml b.yaml"),
        ("run a.yaml -- -n results/a", "--cores all -n results/a --configfile a.yaml"),
        ("run a.yaml -- --cores 2", "--cores 2 --configfile a.yaml"),
        ("run a.yaml -- -j8", "-j8 --configfile a.yaml"),
        ("run a.yaml -- --profile profiles/slurm", "--profile profiles/slurm --configfile a.yaml"),
        ("verify a.yaml", "--cores all verify --configfile a.yaml"),
        ("compare a results/b", "--cores all results/compare/a-vs-b/index.html"),
    ],
)
@pytest.mark.usefixtures("checkout")
def test_a_command_is_a_line_of_snakemake(typed: str, wanted: str) -> None:
    assert line(typed) == wanted


def test_runs_are_compared_by_their_configurations(checkout: Path) -> None:
    (checkout / "a.yaml").write_text("run: first\n")
    (checkout / "b.yaml").write_text("run: second\n")
    kept = checkout / "results/first/config/run.json"
    kept.parent.mkdir(parents=True)
    kept.touch()
    page = "results/compare/first-vs-second/index.html"
    wanted = f"--cores all {page} --configfile results/first/config/run.json"
    assert line("compare a.yaml b.yaml") == wanted
    (checkout / "b.yaml").write_text("name: second\n")
    with pytest.raises(ValueError, match=r"b\.yaml names no run"):
        line("compare a.yaml b.yaml")


def test_elsewhere_the_workflow_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert line("run").startswith(f"--snakefile {REPOSITORY / 'Snakefile'} --cores")
    monkeypatch.setattr("distillery.__main__.HOME", tmp_path)
    assert main(["run"]) == 1, "an installed wheel has no rules"


def test_the_line_is_printed_and_run() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "distillery", "run", "--", "--version"],
        cwd=HOME,
        env=forks.environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.startswith("snakemake --cores all --version\n")
    assert re.fullmatch(r"9\.\d+.*\n", done.stdout)


def test_it_is_installed_by_its_name() -> None:
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["distillery"].partition(":")
    assert getattr(import_module(module), name) is main


def test_the_guide_has_all_commands() -> None:
    page = (REPOSITORY / "docs/commands.md").read_text(encoding="utf-8")
    (words,) = re.findall(r'complete -o default -W "(.*)" distillery', page)
    assert words.split() == list(COMMANDS)
    shown = [command.words[1:] for command in all_commands() if command.words[0] == "distillery"]
    assert {name for name, *_ in shown} == set(COMMANDS)
    for name, *words in shown:
        end = words.index("--") if "--" in words else len(words)
        assert parser().parse_args([name, *words[:end]]).command == name
