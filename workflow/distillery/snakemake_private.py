"""What the rules ask of Snakemake that its documentation does not promise, all in one place.

Each function names the attribute of `snakemake.workflow.Workflow` that it reads; a test looks for
all of them in the installed version.
"""

import os
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from distillery.notes import Note, gather, refuse
from distillery.planning.requests import Request
from distillery.typed import COMMAND

Workflow = Any
"""`snakemake.workflow.Workflow`, whose types are not published."""


def config_files(workflow: Workflow) -> list[str]:
    """Configuration files of the command line and of `configfile:`; `configfiles`."""
    return [str(path) for path in workflow.configfiles]


def config_words(workflow: Workflow) -> tuple[list[str], dict[str, Any]]:
    """What --config was given, as typed and as Snakemake reads it; `config_settings`."""
    settings = workflow.config_settings
    words = settings.config_args if isinstance(settings.config_args, list) else []
    return list(map(str, words)), dict(settings.config)


def runs_elsewhere(workflow: Workflow) -> bool:
    """Whether this process submits jobs to other machines; `nodes`, `is_main_process`."""
    return workflow.nodes is not None and bool(workflow.is_main_process)


def limit_on_this_machine(workflow: Workflow, resource: str, number: int) -> None:
    """Limit a resource where jobs run on this machine, unless the user has; `nodes`,
    `is_main_process`, `global_resources`.

    On a cluster the scheduler counts, and a limit here would only throttle. In its job a limit
    would lower what the job has: one node has but a part of its GPUs.
    """
    if workflow.nodes is None and workflow.is_main_process:
        workflow.global_resources.setdefault(resource, number)


def jobs_to_run(workflow: Workflow) -> dict[Any, Any]:
    """A job of each rule that has one to run; `dag`, known from `onstart` on."""
    return {job.rule: job for job in workflow.dag.needrun_jobs()}


def requests_of(workflow: Workflow) -> dict[str, Request]:
    """What the jobs to run ask a cluster for, by rule; none on this machine. `dag`."""
    if not runs_elsewhere(workflow):
        return {}
    return {
        rule.name: Request(
            _whole(job.resources.get("mem_mb")),
            _whole(job.resources.get("runtime")),
            1 + int(job.restart_times or 0),
        )
        for rule, job in jobs_to_run(workflow).items()
    }


def _whole(value: object) -> int | None:
    """A resource that is a number, and not a text or yet to be determined."""
    return value if isinstance(value, int) else None


def has_noted(workflow: Workflow, output: str) -> bool:
    """Whether Snakemake knows how a file was made; `persistence`, known when jobs are found.

    Also `_read_record` of it, in versions whose `metadata` wants Snakemake's own type of paths.
    """
    return bool(_note(workflow, output))


def _note(workflow: Workflow, output: str) -> Any:
    notes = workflow.persistence
    return getattr(notes, "_read_record", notes.metadata)(output)


def noted_inputs(workflow: Workflow, output: str) -> dict[str, str]:
    """The SHA-256 of each small input that a file was made from, by Snakemake's note of it;
    `persistence`.

    Snakemake reruns nothing for an input that has this content, whatever its date is.
    """
    note = _note(workflow, output)
    hashes = (note.get("input_checksums") if note else None) or {}
    return {str(path): str(value).rpartition(":")[2] for path, value in hashes.items() if value}


def declared_outputs(workflow: Workflow) -> list[str]:
    """Of all rules, with wildcards in braces; `rules`."""
    return [str(output) for rule in workflow.rules for output in rule.output]


def force(workflow: Workflow, outputs: Iterable[Path]) -> list[str]:
    """Let this call make files again, as `--forcerun` does; `dag`, before it finds jobs to run.

    Returns nothing, as the inputs that a rule has by it.
    """
    workflow.dag.forcefiles.update(map(str, outputs))
    return []


def is_main(workflow: Workflow) -> bool:
    """Whether this is the process that the user started, and none of a job; `is_main_process`."""
    return bool(workflow.is_main_process)


def is_made(workflow: Workflow, path: str) -> bool:
    """Whether a rule makes a file, also one of a workflow around this one; `rules`."""
    return any(rule.is_producer(path) for rule in workflow.rules)


class Refused(Exception):  # noqa: N818 (Snakemake shows the name)
    """A user's mistake that a rule's inputs have found: Snakemake shows where exceptions are from,
    which says nothing to who wrote a configuration."""

    @property
    def __traceback__(self) -> None:  # type: ignore[override]
        """Nowhere."""


def refused_by(*checks: Callable[[Any], Iterable[Note]]) -> Callable[[Any], list[str]]:
    """Checks of a job's wildcards as a function for a rule's inputs, which gives no files.

    What they ask (Snakemake's notes of files, the rules of a workflow around this one) is known
    when jobs are found, and not while rules are read, which `--unlock` and comparisons do too. Of
    what is called after that, `onstart` runs neither in a dry run nor in a module.
    """

    def inputs(wildcards: Any) -> list[str]:
        try:
            refuse(gather(checks, wildcards))
        except (ValueError, OSError) as error:
            raise Refused(str(error)) from None
        return []

    return inputs


def cores_of(workflow: Workflow) -> int:
    """What --cores gives this machine's jobs, 8 where nothing is given; `cores`.

    A cluster's profile gives none, and a call that runs no job, as for a report, need not.
    """
    from snakemake.exceptions import WorkflowError  # type: ignore[import-untyped]

    try:
        return int(workflow.cores)
    except (WorkflowError, TypeError):
        return 8


def note_command(workflow: Workflow) -> None:
    """Tell all jobs what was typed, for the report; `is_main_process`.

    Jobs on other machines read the workflow again, with other words.
    """
    if workflow.is_main_process:
        os.environ[COMMAND] = shlex.join(["snakemake", *sys.argv[1:]])


def rules_folder(workflow: Workflow) -> Path:
    """The folder of the file that is being read; `current_basedir`."""
    return Path(str(workflow.current_basedir))
