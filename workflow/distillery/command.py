"""What the command lines of all stages share: a few options, a log, telemetry, readable errors."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from distillery.config.jobs import read_job
from distillery.config.parsing import Model
from distillery.config.run import parse_config
from distillery.config.section import Compile
from distillery.hardware import device_label, select_device
from distillery.locks import alone, job_lock
from distillery.plan_first import plan_first
from distillery.telemetry import Reporter, explain_errors, reporting

if TYPE_CHECKING:
    import torch


def logged_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that shows a script's own docstring, with the option that every script takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--log-file", dest="log", type=Path, help="log file; without it, log to the terminal"
    )
    return parser


def stage_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every stage takes."""
    parser = logged_parser(description)
    parser.add_argument(
        "--config", type=Path, required=True, help="results/{run}/config/{stage}.json"
    )
    parser.add_argument("--cpu-threads", type=int, default=1, help="threads where there is no GPU")
    return parser


def add_planned(parser: argparse.ArgumentParser) -> None:
    """The option of jobs that others come from, and that so begin no run that cannot work."""
    parser.add_argument(
        "--planned",
        type=json.loads,
        help='the run to plan first, unless it was: {"config": {...}, "sources": [files]}',
    )


def plan_run(arguments: argparse.Namespace, folder: Path) -> None:
    """Plan as `--planned` says; raises ValueError where the plan refuses the run."""
    if arguments.planned is not None:
        config = parse_config(arguments.planned["config"], "the configuration")
        plan_first(config, folder, arguments.planned["sources"])


def add_compile(parser: argparse.ArgumentParser) -> None:
    """The option of stages that run large networks."""
    parser.add_argument(
        "--compile",
        choices=get_args(Compile),
        default="auto",
        help="compile networks on a GPU; auto: large ones in long runs",
    )


def shard_argument(text: str) -> tuple[int, int]:
    """`i/n` on a command line as (i, n)."""
    part, _, whole = text.partition("/")
    if not (part.isdigit() and whole.isdigit() and int(part) < int(whole)):
        raise argparse.ArgumentTypeError(f"{text!r} is no shard: write i/n with i from 0 to n - 1")
    return int(part), int(whole)


def run_stage(
    arguments: argparse.Namespace,
    stage: str,
    job_name: str,
    job_model: type[Model],
    body: "Callable[[Model, torch.device, Reporter], None]",
) -> int:
    """Run a stage's body with its job, device and reporter; returns the exit status.

    Args:
        arguments: as parsed by `stage_parser`; the run's folder is two above `config`.
        stage: name of the stage in telemetry.
        job_name: unique in the run, for example targets-0-of-4.
        job_model: the model of the frozen configuration.
        body: the work.
    """

    def main() -> None:
        device = select_device(arguments.cpu_threads)
        run = run_folder(arguments.config)
        label = device_label(device)
        with (
            alone(job_lock(run, job_name)),
            reporting(run / "telemetry", stage, job_name, label, arguments.log) as reporter,
        ):
            body(read_job(arguments.config, job_model), device, reporter)

    return explain_errors(main, arguments.log)


def run_folder(config: Path) -> Path:
    """results/{run}, from results/{run}/config/{stage}.json."""
    return config.parent.parent
