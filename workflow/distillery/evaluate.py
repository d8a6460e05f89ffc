"""Scores of a finished student on other prompts, by another judge or against another model: a run
that takes the student of another run as its own, and trains nothing."""

from pathlib import Path

import yaml

from distillery.config.jobs import read_config
from distillery.config.run import Config, parse_config
from distillery.files import write_text
from distillery.run_folder import RunFolder
from distillery.store.belonging import PIPELINES


def evaluate(
    student: str,
    prompts: str | None = None,
    judge: str | None = None,
    reference: str | None = None,
    run: str | None = None,
) -> tuple[Path, Path]:
    """Write the configuration of a run that judges; returns it and the report to ask for.

    Args:
        student: a run, by its folder, or by that of its student's pipeline.
        prompts: a file of held-out prompts; None: those of the student's run.
        judge, reference: of `evaluation`; None: as in the student's run.
        run: its name; None: that of the student's run, with `-evaluated`.

    Raises:
        ValueError: there is no run, or it trains no student, or has not exported one.
    """
    other = _run_of(Path(student))
    config = read_config(other.config("run"))
    if not isinstance(config, Config):
        raise ValueError(f"{other} is a run without training: it has no student to judge")
    name = run or f"{other.path.name}-evaluated"
    raw = config.model_dump(mode="json") | {"run": name}
    raw["targets"].pop("from_run", None)
    raw["student"] |= {"from_run": str(other)}
    if prompts is not None:
        raw["prompts"] |= {"eval": prompts, "eval_fraction": None}
    raw["evaluation"] |= {"judge": judge or config.evaluation.judge}
    raw["evaluation"] |= {"reference": reference or config.evaluation.reference}
    raw["samples"]["models"] = {
        model: settings
        for model, settings in raw["samples"]["models"].items()
        if settings["source"] != "untrained" or other.student(PIPELINES["untrained"]).is_dir()
    }
    parse_config(raw, "the configuration of the evaluation")
    made = RunFolder(Path("results", name))
    _check_free(made, str(other))
    written = made.config("evaluate").with_suffix(".yaml")
    write_text(written, yaml.safe_dump(raw, sort_keys=False, allow_unicode=True))
    return written, made.report


def _run_of(folder: Path) -> RunFolder:
    """The run that a folder is, or is part of; raises ValueError where there is none."""
    near = [folder, *folder.parents[:2]]
    found = [path for path in near if RunFolder(path).config("run").is_file()]
    if not found:
        raise ValueError(
            f"{folder} belongs to no run: no config/run.json is in it or above it, which says what "
            "the student was trained for; give results/RUN or results/RUN/student/pipeline"
        )
    other = RunFolder(found[0])
    if not other.student("pipeline").is_dir():
        raise ValueError(
            f"{other} has no {other.student('pipeline')}: finish it by snakemake --cores all "
            f"{other.student('pipeline')} --configfile {other.config('run')}"
        )
    return other


def _check_free(made: RunFolder, other: str) -> None:
    """Raise ValueError for the name of a run that is something else."""
    frozen = made.config("run")
    if not frozen.is_file():
        return
    config = read_config(frozen)
    if not isinstance(config, Config) or config.student.from_run != other:
        raise ValueError(f"{made} is another run: give the evaluation another name with --run")
