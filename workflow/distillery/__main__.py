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
from distillery.clean import NAMES, clean
from distillery.draw import draw
from distillery.evaluate import evaluate
from distillery.run_folder import RunFolder
from distillery.telemetry import explain_errors

HOME = Path(distillery.__file__).parents[2]
"""Of the checkout: a wheel has the jobs, and no rules."""
MACHINE = ("--cores", "--jobs", "--profile", "--executor", "-c", "-j", "-e")
"""Options that say where jobs run: without one of them it is on all of this machine's cores."""


Line = tuple[list[str], list[str]]
"""Words of Snakemake, and the configurations that it is started with."""


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        about: what it does, for --help.
        add: its arguments to a parser.
        line: what it stands for.
    """

    about: str
    add: Callable[[argparse.ArgumentParser], None]
    line: Callable[[argparse.Namespace], Line | None]


def takes_files(parser: argparse.ArgumentParser) -> None:
    """Configurations of one run."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="of a configuration")


def takes_runs(parser: argparse.ArgumentParser) -> None:
    """Two runs."""
    parser.add_argument("runs", nargs=2, metavar="RUN", help="a configuration, a folder or a name")


def takes_prompts(parser: argparse.ArgumentParser) -> None:
    """A student, and what it is to draw."""
    parser.add_argument("student", help="results/RUN/student/pipeline, a copy of it, or a hub id")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--prompt", dest="texts", nargs="+", default=[], metavar="TEXT")
    given.add_argument("--prompts", metavar="FILE", help="CSV, JSONL, Parquet or TXT")
    parser.add_argument("--run", metavar="NAME", help="of the drawing, below results/")
    parser.add_argument("--images", type=int, default=1, metavar="N", help="of each prompt")
    parser.add_argument("--seed", type=int, default=0)


def takes_judge(parser: argparse.ArgumentParser) -> None:
    """A student, and by what it is to be judged."""
    parser.add_argument("student", help="results/RUN, or results/RUN/student/pipeline")
    parser.add_argument(
        "--prompts", metavar="FILE", help="held-out prompts in the place of its own"
    )
    parser.add_argument("--judge", help="as evaluation.judge")
    parser.add_argument("--reference", metavar="MODEL", help="as evaluation.reference")
    parser.add_argument("--run", metavar="NAME", help="of the evaluation, below results/")


def takes_kinds(parser: argparse.ArgumentParser) -> None:
    """A run, and what is to stay of it."""
    parser.add_argument("run", type=Path, help="results/RUN")
    parser.add_argument("--keep", metavar="KINDS", help=f"with commas, of {', '.join(NAMES)}")
    parser.add_argument("--insist", action="store_true", help="lose what cannot be made again")


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


def compared(given: argparse.Namespace) -> Line:
    """The page of two runs. It belongs to no configuration, and Snakemake reads one: the first
    run's own."""
    first, second = map(run_of, given.runs)
    kept = RunFolder(Path("results", first)).config("run")
    page = f"results/compare/{first}-vs-{second}/index.html"
    return [page], [str(kept)] if kept.is_file() else []


def drawn(given: argparse.Namespace) -> Line:
    """The contact sheet of a drawing, whose configuration is written here."""
    amounts = given.run, given.images, given.seed
    written, sheet = draw(given.student, given.texts, given.prompts, *amounts)
    return [str(sheet)], [str(written)]


def evaluated(given: argparse.Namespace) -> Line:
    """The report of an evaluation, whose configuration is written here."""
    by = given.prompts, given.judge, given.reference
    written, report = evaluate(given.student, *by, given.run)
    return [str(report)], [str(written)]


def cleaned(given: argparse.Namespace) -> None:
    """No Snakemake: what there is, or what was deleted, is printed."""
    keep = None if given.keep is None else given.keep.replace(",", " ").split()
    print("\n".join(clean(RunFolder(given.run), keep, given.insist)))


COMMANDS: Mapping[str, Command] = {
    "plan": Command(
        "check a run and tell what it will do and cost; nothing else is made",
        takes_files,
        # Also one that is there: it is asked for to be read.
        lambda given: (["--force", "plan"], given.files),
    ),
    "run": Command("make all of a run, or resume it", takes_files, lambda given: ([], given.files)),
    "draw": Command("draw own prompts with a finished student", takes_prompts, drawn),
    "evaluate": Command(
        "judge a finished student on other prompts, by another judge or against another model",
        takes_judge,
        evaluated,
    ),
    "clean": Command(
        "tell what of a run may be deleted; with --keep, delete all else", takes_kinds, cleaned
    ),
    "verify": Command(
        "read what there is of a run again, and tell how to mend what is damaged",
        takes_files,
        lambda given: (["verify"], given.files),
    ),
    "compare": Command("two runs side by side, on one page", takes_runs, compared),
}


def line_of(given: argparse.Namespace, through: Sequence[str]) -> list[str]:
    """The words of Snakemake for a command; none where it has done all itself.

    Args:
        through: words for Snakemake itself; before the configurations, since Snakemake takes all
            words that follow --configfile for such.
    """
    is_told = any(word.startswith(MACHINE) for word in through)
    line = COMMANDS[given.command].line(given)
    if line is None:
        return []
    words, files = line
    return [
        *([] if Path("Snakefile").is_file() else ["--snakefile", str(HOME / "Snakefile")]),
        *([] if is_told else ["--cores", "all"]),
        *words,
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
        command.add(commands.add_parser(name, help=command.about, description=command.about))
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Become the Snakemake that a command stands for."""
    given = list(sys.argv[1:] if argv is None else argv)
    end = given.index("--") if "--" in given else len(given)
    arguments = parser().parse_args(given[:end])

    def start() -> None:
        if not any((folder / "Snakefile").is_file() for folder in (HOME, Path())):
            raise ValueError("there is no Snakefile here: call it in a checkout of Distillery")
        line = line_of(arguments, given[end + 1 :])
        if not line:
            return
        print(shlex.join(["snakemake", *line]), file=sys.stderr, flush=True)
        os.execv(sys.executable, [sys.executable, "-m", "snakemake", *line])  # noqa: S606

    return explain_errors(start)


if __name__ == "__main__":
    raise SystemExit(main())
