"""What the pages say is so: commands that exist, tests and figures that they name, links."""

import importlib
import importlib.util
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import forks
from distillery import cli
from pages import NEEDS, PAGES, PROGRAMS, ROOT, Command, all_commands, commands_of

COMMANDS = all_commands()
SHIPPED = sorted((ROOT / "config").glob("*.yaml"))
CHECKED_ELSEWHERE = {"snakemake", "distillery"}
"""tests/workflow/test_page_commands.py dry-runs the one, test_commands.py reads the other."""
OUTSIDE_LINKS = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


def checked(commands: Sequence[Command]) -> Iterator[Command]:
    return (command for command in commands if not command.needs)


def test_commands_are_found_in_every_kind_of_block(tmp_path: Path) -> None:
    page = ROOT / "README.md"
    text = "A\n\n    make demo  # what\n\n```sh\nls -l\n```\n\n```python\nmake()\n```\n"
    marked = "\n<!-- needs: root, a GPU -->\n\n    A=1 python x.py \\\n        --y\n\n    not one\n"
    other = tmp_path / "page.md"
    other.write_text(text + marked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pages.ROOT", tmp_path)
        found = [(command.words, set(command.needs)) for command in commands_of(other)]
    assert found == [
        (("make", "demo"), set()),
        (("ls", "-l"), set()),
        (("python", "x.py", "--y"), {"root", "a GPU"}),
    ]
    assert len(list(commands_of(page))) > 5


def test_every_command_is_checked_or_marked() -> None:
    known = {"make", "pip", "pytest", "python", "torchrun", "srun", "cp", "source", "bash"}
    left = [
        str(command)
        for command in checked(COMMANDS)
        if command.words[0] not in known | CHECKED_ELSEWHERE
    ]
    assert not left, "mark what no test can check: <!-- needs: root -->"
    assert known | CHECKED_ELSEWHERE <= PROGRAMS


def test_marks_give_known_reasons() -> None:
    assert {need for command in COMMANDS for need in command.needs} <= NEEDS


def test_no_command_gives_snakemake_a_target_as_a_configuration() -> None:
    """Snakemake takes all that follows --configfile, up to the next option, for configurations."""
    lines = [
        line
        for page in [*PAGES, *SHIPPED]
        for line in page.read_text(encoding="utf-8").splitlines()
    ]
    commands = [line for line in lines if "snakemake" in line and "--configfile" in line]
    assert len(commands) >= 10
    assert not [line for line in commands if re.search(r"--configfile [^-]*\sresults/", line)]


def test_targets_of_make_exist() -> None:
    targets = {
        word for command in COMMANDS if command.words[0] == "make" for word in command.words[1:]
    }
    made = {target for target in targets if "=" not in target}
    assert len(made) >= 5
    missing = re.compile("No rule to make target")
    done = subprocess.run(
        ["make", "--dry-run", *sorted(made)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert not missing.search(done.stderr), done.stderr
    assert done.returncode == 0


def test_extras_that_pip_installs_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = [
        command for command in checked(COMMANDS) if command.words[:2] == ("pip", "install")
    ]
    assert installed
    for command in installed:
        (extra,) = re.findall(r"^\.\[(\w+)\]$", command.words[-1])
        assert extra in project["optional-dependencies"], str(command)


def test_files_that_commands_take_exist() -> None:
    takers = ("pytest", "cp", "bash")
    for command in checked(COMMANDS):
        paths = [word for word in command.words[1:] if "/" in word and not word.startswith("-")]
        if command.words[0] in takers:
            assert paths
            assert (ROOT / paths[0]).exists(), str(command)


def parts(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The modules and scripts that a command starts, each with the options that it gets."""
    words = list(words)
    while words:
        word = words.pop(0)
        starts_module = word == "-m" and words
        if not starts_module and not word.endswith(".py"):
            continue
        name = words.pop(0) if starts_module else word
        end = words.index("--") if "--" in words else len(words)
        yield name, [each for each in words[:end] if re.match(r"--\w", each)]
        words = words[end + 1 :]


STARTED = sorted(
    {
        (name, *options)
        for command in checked(COMMANDS)
        if command.words[0] in ("python", "torchrun", "srun")
        for name, options in parts(command.words)
        if name != "pytest"
    }
)


STARTING = """
import os, runpy, sys
name = sys.argv[1]
del sys.argv[0]
if name.endswith(".py"):
    sys.path[:0] = [os.path.dirname(name), "tests"]
    runpy.run_path(name, run_name="__main__")
else:
    sys.path[:0] = [""]
    runpy.run_module(name, run_name="__main__")
"""
"""What `python {name}` and `python -m {name}` do."""


def command_of(module: Any) -> Callable[[list[str]], int]:
    """A stage's, or that of a command beside them."""
    return getattr(module, "main", None) or partial(cli.main, module.STAGE, module.__doc__)


@pytest.mark.parametrize(
    "started",
    [
        pytest.param(each, marks=[] if each[0].startswith("distillery.") else pytest.mark.slow)
        for each in STARTED
    ],
    ids=" ".join,
)
def test_modules_and_scripts_know_their_options(
    started: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    name, *options = started
    if name.startswith("distillery."):
        with pytest.raises(SystemExit) as ended:
            command_of(importlib.import_module(name))(["--help"])
        assert ended.value.code == 0
        text = capsys.readouterr().out
    else:
        done = subprocess.run(
            ["python", "-c", STARTING, name, "--help"],
            cwd=ROOT,
            env=forks.environ(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        text = done.stdout
    assert [option for option in options if option not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    links = OUTSIDE_LINKS.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_tests_that_the_page_on_reliability_names_exist() -> None:
    page = ROOT / "docs/reliability.md"
    named = re.findall(r"`(test_\w+)` in \[.*?\]\((.*?)\)", page.read_text(encoding="utf-8"))
    assert len(named) >= 20
    for name, link in named:
        assert f"def {name}(" in (page.parent / link).resolve().read_text(encoding="utf-8"), name


def test_figures_of_the_page_on_benchmarks_are_those_of_its_files() -> None:
    page = ROOT / "docs/benchmarks.md"
    rows = re.findall(
        r"^\| \[.*?\]\((.*?)\) \| (.*) \|$", page.read_text("utf-8"), flags=re.MULTILINE
    )
    files = {(page.parent / link).resolve() for link, _ in rows}
    assert files == set(ROOT.glob("benchmarks/*.md"))
    for link, text in rows:
        source = (page.parent / link).resolve().read_text(encoding="utf-8")
        numbers = re.findall(r"\d[\d,]*\.\d+|\d{2,}(?:,\d{3})*", text)
        assert numbers
        missing = [
            each for each in numbers if not re.search(rf"(?<![\d.]){re.escape(each)}", source)
        ]
        assert not missing, f"{link} has no {missing}"
