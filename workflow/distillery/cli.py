"""The command lines of the stages, made from the typed signatures of their functions.

A parameter of a stage's function is an option of the same name, with the docstring's `Args` as its
help. Five are no options: `job` is read from --config, `run_folder` is the run's folder that this
file is in, `device` and `reporter` are this process's, `stages` those that there are. Nor are
keyword-only parameters. A dataclass stands for its fields; where it may be None, all of them are
given or none.
"""

import argparse
import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from distillery.config.jobs import read_job
from distillery.hardware import device_label, select_device, use_cpu
from distillery.locks import alone, job_lock
from distillery.pipeline import STAGES
from distillery.run_folder import RunFolder
from distillery.stage import Stage
from distillery.telemetry import explain_errors, loaded_for_s, reporting
from distillery.watched import keep_to_log

Shard = tuple[int, int]
"""(i, n): the i-th of n, from 0."""
Function = Callable[..., object]
FOUND = ("job", "run_folder", "device", "reporter", "stages")


def main(stage: Stage, about: str | None, argv: Sequence[str] | None = None) -> int:
    """Do one job of a stage as the command line says; returns the exit status.

    Args:
        stage: whose job it is.
        about: its script's docstring, for --help.
        argv: words of the command line; None: those of this process.
    """
    make = stage.function()
    arguments = parser_of(make, about, computes=bool(stage.job)).parse_args(argv)
    keep_to_log(arguments.log)

    def body() -> None:
        if not stage.job:
            make(**values_of(make, arguments))
            return
        takes = get_type_hints(make)
        device = (select_device if "device" in takes else use_cpu)(arguments.cpu_threads)
        values = values_of(make, arguments)
        name, run_folder = stage.job.format(**vars(arguments)), folder_of_run(arguments)
        label, loaded_s = device_label(device), loaded_for_s(argv)
        log = arguments.log
        with (
            alone(job_lock(run_folder.path, name)),
            reporting(run_folder.telemetry, stage.name, name, label, log, loaded_s) as reporter,
        ):
            process = {"device": device, "reporter": reporter, "stages": STAGES}
            make(**values, **{name: process[name] for name in process.keys() & takes.keys()})

    return explain_errors(body, arguments.log)


def logged_parser(about: str | None) -> argparse.ArgumentParser:
    """A parser that shows a module's docstring, with the option that every command takes."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--log-file", dest="log", type=Path, help="log file; without it, log to the terminal"
    )
    return parser


def parser_of(make: Function, about: str | None, computes: bool) -> argparse.ArgumentParser:
    """A parser with the options of a stage's function; one that computes takes --cpu-threads."""
    parser, hints = logged_parser(about), get_type_hints(make)
    if computes or "job" in hints:
        parser.add_argument(
            "--config", type=Path, required=True, help="results/{run}/config/{stage}.json"
        )
    if computes:
        parser.add_argument(
            "--cpu-threads", type=int, default=1, help="threads where there is no GPU"
        )
    for option in _options(make):
        option.add_to(parser)
    return parser


def values_of(make: Function, arguments: argparse.Namespace) -> dict[str, Any]:
    """The values of a function's parameters from the command line.

    Raises ValueError where some options of a dataclass are missing that may be None.
    """
    hints, values = get_type_hints(make), {}
    if "job" in hints:
        values["job"] = read_job(arguments.config, hints["job"])
    if "run_folder" in hints:
        values["run_folder"] = folder_of_run(arguments)
    for name in _parameters(make):
        hint, is_optional = _without_none(hints[name])
        is_group = is_dataclass(hint)
        values[name] = _read(hint, arguments, is_optional) if is_group else getattr(arguments, name)
    return values


def _parameters(make: Function) -> dict[str, inspect.Parameter]:
    """The parameters that a command line gives, by name."""
    return {
        name: parameter
        for name, parameter in inspect.signature(make).parameters.items()
        if name not in FOUND and parameter.kind is not inspect.Parameter.KEYWORD_ONLY
    }


def folder_of_run(arguments: argparse.Namespace) -> RunFolder:
    """results/{run}, from --config results/{run}/config/{stage}.json."""
    return RunFolder.of_config(arguments.config)


def shard_argument(text: str) -> Shard:
    """`i/n` on a command line as (i, n)."""
    part, _, whole = text.partition("/")
    if not (part.isdigit() and whole.isdigit() and int(part) < int(whole)):
        raise argparse.ArgumentTypeError(f"{text!r} is no shard: write i/n with i from 0 to n - 1")
    return int(part), int(whole)


@dataclass(frozen=True)
class Option:
    """An option of a command line: a parameter of a function, or a field of a dataclass.

    Attributes:
        name: with underscores.
        default: where it may be left out; `inspect.Parameter.empty` where not.
    """

    name: str
    hint: Any
    default: Any
    help: str

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add it to a parser."""
        hint, is_optional = _without_none(self.hint)
        is_needed = self.default is inspect.Parameter.empty and not is_optional
        about: dict[str, Any] = {"help": self.help, "required": is_needed}
        if not is_needed:
            about["default"] = None if is_optional else self.default
        if get_origin(hint) is Literal:
            about["choices"] = get_args(hint)
        elif hint == Shard:
            about |= {"type": shard_argument, "metavar": "I/N"}
        elif get_origin(hint) is Sequence:
            about |= {"type": get_args(hint)[0], "nargs": "+"}
        elif get_origin(hint) is dict:
            about |= {"type": json.loads, "metavar": "JSON"}
        elif hint is Path:
            about["type"] = lambda text: Path(text) if text else None
        else:
            about["type"] = hint
        parser.add_argument(_flag(self.name), dest=self.name, **about)


def _options(make: Function) -> Iterator[Option]:
    """An option for each parameter, and for each field of one that is a dataclass."""
    hints, helps = get_type_hints(make), _helps(make.__doc__)
    for name, parameter in _parameters(make).items():
        hint, is_optional = _without_none(hints[name])
        if is_dataclass(hint):
            yield from _fields(hint, is_optional)
        else:
            yield Option(name, hints[name], parameter.default, _help(helps, name, make))


def _fields(kind: Any, is_optional: bool) -> Iterator[Option]:
    """The options that stand for a dataclass."""
    hints, helps = get_type_hints(kind), dict[str, str]()
    for base in reversed(kind.__mro__):
        helps |= _helps(base.__doc__)
    for field in fields(kind):
        hint, may_be_none = _without_none(hints[field.name])
        if is_dataclass(hint):
            yield from _fields(hint, may_be_none)
        else:
            option_hint = hint | None if is_optional else hints[field.name]
            text = _help(helps, field.name, kind)
            yield Option(field.name, option_hint, inspect.Parameter.empty, text)


def _help(helps: dict[str, str], name: str, of: Any) -> str:
    """An option's help; raises TypeError where a docstring lacks it."""
    if name not in helps:
        raise TypeError(
            f"{of.__name__}: its docstring says nothing of {name!r}: add a line below Args"
        )
    return helps[name]


def _read(kind: Any, arguments: argparse.Namespace, is_optional: bool) -> Any:
    """A dataclass from the options that stand for it."""
    hints, values = get_type_hints(kind), {}
    for field in fields(kind):
        hint, may_be_none = _without_none(hints[field.name])
        if is_dataclass(hint):
            values[field.name] = _read(hint, arguments, may_be_none)
        else:
            values[field.name] = getattr(arguments, field.name)
    if is_optional:
        missing = [_flag(name) for name, value in values.items() if value is None]
        if len(missing) == len(values):
            return None
        if missing:
            raise ValueError(
                f"{', '.join(missing)} must be given too: give all of "
                f"{', '.join(map(_flag, values))}, or none"
            )
    return kind(**values)


def _flag(name: str) -> str:
    """`compile_` is --compile: Python has a function of that name."""
    return "--" + name.rstrip("_").replace("_", "-")


def _without_none(hint: Any) -> tuple[Any, bool]:
    """A type without `| None`, and whether it had that."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    is_optional = NoneType in get_args(hint)
    return (kinds[0], True) if is_optional else (hint, False)


def _helps(docstring: str | None) -> dict[str, str]:
    """What a docstring says of each parameter or attribute, in one line each."""
    section = re.search(
        r"^(?:Args|Attributes):\n((?: .*\n?)+)", inspect.cleandoc(docstring or ""), re.M
    )
    entries = (
        re.findall(r"^ {4}(\w[\w, ]*): (.*(?:\n {5,}.*)*)", section[1], re.M) if section else []
    )
    return {
        name: " ".join(text.split()).rstrip(".").replace("%", "%%")
        for names, text in entries
        for name in names.split(", ")
    }
