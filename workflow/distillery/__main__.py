"""Short commands for the lines of Snakemake that are typed most; each prints the line that it runs.

distillery plan config/mine.yaml
distillery run config/mine.yaml -- --resources gpu=2   # what follows `--` goes to Snakemake
distillery compare config/mine.yaml config/other.yaml
"""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

import distillery
from distillery.telemetry import explain_errors

HOME = Path(distillery.__file__).parents[2]
"""Of the checkout: a wheel has the jobs, and no rules."""
MACHINE = ("--cores", "--jobs", "--profile", "--executor", "-c", "-j", "-e")
"""Options that say where jobs run: without one of them it is on all of this machine's cores."""


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        about: what it does, for --help.
        takes: what its words are, as --help names them.
        words: of Snakemake before the configurations, from the command's own words.
        configurations: that it is started with, from the same.
    """

    about: str
    takes: str
    words: Callable[[Sequence[str]], list[str]]
    configurations: Callable[[Sequence[str]], list[str]] = list


def run_of(word: str) -> str:
    """The name of a run that is given by its configuration, its folder or itself."""
    path = Path(word)
    if not path.is_file():
        return path.name
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    name = raw.get("run") if isinstance(raw, Mapping) else None
    if not isinstance(name, str):
        raise ValueError(f"{path} names no run: give a configuration, or a run by its name")
    return name


def compared(words: Sequence[str]) -> list[str]:
    """The page of two runs."""
    if len(words) != 2:
        raise ValueError(f"compare takes two runs, and {len(words)} are given")
    first, second = map(run_of, words)
    return [f"results/compare/{first}-vs-{second}/index.html"]


def kept_by(words: Sequence[str]) -> list[str]:
    """A comparison belongs to no configuration, and Snakemake reads one: the first run's own."""
    kept = Path("results", run_of(words[0]), "config/run.json")
    return [str(kept)] if kept.is_file() else []


CONFIGURATIONS = "FILE"
COMMANDS: Mapping[str, Command] = {
    "plan": Command(
        "check a run and tell what it will do and cost; nothing else is made",
        CONFIGURATIONS,
        # Also one that is there: it is asked for to be read.
        lambda words: ["--force", "plan"],
    ),
    "run": Command("make all of a run, or resume it", CONFIGURATIONS, lambda words: []),
    "verify": Command(
        "read what there is of a run again, and tell how to mend what is damaged",
        CONFIGURATIONS,
        lambda words: ["verify"],
    ),
    "compare": Command("two runs side by side, on one page", "RUN", compared, kept_by),
}


def line_of(command: Command, words: Sequence[str], through: Sequence[str]) -> list[str]:
    """The words of Snakemake for a command.

    Args:
        through: words for Snakemake itself; before the configurations, since Snakemake takes all
            words that follow --configfile for such.
    """
    is_told = any(word.startswith(MACHINE) for word in through)
    files = command.configurations(words)
    return [
        *([] if Path("Snakefile").is_file() else ["--snakefile", str(HOME / "Snakefile")]),
        *([] if is_told else ["--cores", "all"]),
        *command.words(words),
        *through,
        *(["--configfile", *files] if files else []),
    ]


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(
        "distillery", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        one = commands.add_parser(name, help=command.about, description=command.about)
        one.add_argument("words", nargs="*", metavar=command.takes)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Become the Snakemake that a command stands for."""
    given = list(sys.argv[1:] if argv is None else argv)
    end = given.index("--") if "--" in given else len(given)
    arguments = parser().parse_args(given[:end])

    def start() -> None:
        if not any((folder / "Snakefile").is_file() for folder in (HOME, Path())):
            raise ValueError("there is no Snakefile here: call it in a checkout of Distillery")
        line = line_of(COMMANDS[arguments.command], arguments.words, given[end + 1 :])
        print(shlex.join(["snakemake", *line]), file=sys.stderr, flush=True)
        os.execv(sys.executable, [sys.executable, "-m", "snakemake", *line])  # noqa: S606

    return explain_errors(start)


if __name__ == "__main__":
    raise SystemExit(main())
