"""Plan a run before its first job, and stop it where the plan refuses it.

Snakemake asks before the first job (`onstart`), but only in the main workflow. So the jobs that all
others come from ask too: those that freeze the configuration and those that read prompt files.

The plan is no input of other jobs. As one that may be old (`ancient`) it would hide the jobs behind
it: Snakemake does not look at jobs behind one that runs, so after any change of the plan the same
command would only make the plan, and succeed.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from distillery.config.jobs import RUNTIME, freeze, read_frozen, save_frozen
from distillery.config.run import Config, RunConfig, parse_config
from distillery.config.training import on_batch_size
from distillery.files import JsonObject, hash_json, write_json
from distillery.locks import alone, quiet
from distillery.notes import Note, error, noting, refuse
from distillery.planning.overlooked import on_contents, on_tars, read_plan
from distillery.planning.requests import Request, write_requests
from distillery.run_folder import RunFolder
from distillery.store.belonging import PIPELINES, STUDENT_FILE
from distillery.words import counted

Machine = tuple[int | None, int, JsonObject]
"""GPUs of the training, nodes that they are on, and what jobs ask a cluster for."""


def sources_of(config: RunConfig) -> list[str]:
    """The files beside the configuration that a run is planned from."""
    shape = config.student.config if isinstance(config, Config) else None
    read = [*start_files(config), *source_files(config)]
    return [*config.prompts.files, *([shape] if shape else []), *read]


def source_files(config: RunConfig) -> list[str]:
    """What tells of the trajectories or of the student that are another run's, if any are."""
    if not isinstance(config, Config):
        return []
    if config.student.from_run is not None:
        other = RunFolder(Path(config.student.from_run))
        sources = {model.source for model in config.samples.models.values()}
        names = [PIPELINES[source] for source in PIPELINES if source in sources]
        return [str(other.student(name) / STUDENT_FILE) for name in names]
    if config.targets.from_run is not None:
        other = RunFolder(Path(config.targets.from_run))
        return [str(other.targets), str(other.embeddings("train"))]
    return []


def start_files(config: RunConfig) -> list[str]:
    """The file that tells what is in the folder of the student that another begins as, if any."""
    start = config.student.start_from if isinstance(config, Config) else None
    return [str(Path(start) / STUDENT_FILE)] if start else []


def plan_first(
    config: RunConfig,
    run: RunFolder,
    sources: Sequence[str],
    num_processes: int = 0,
    num_gpus: int | None = None,
    num_nodes: int = 1,
    requests: Mapping[str, Request] | None = None,
) -> None:
    """Write runtime.json, and plan.json unless it is that of this configuration and of these files.

    Args:
        sources: files beside the configuration that the plan reads.
        num_processes: that Snakemake gives the training; 0 if no training is to be done.
        num_gpus: the same of GPUs; None if no training is to be done.
        requests: what each rule's jobs ask a cluster for; None where there is none.

    Raises:
        ValueError: the training gets more processes than an update has samples, or the plan
            refuses the run and has said why.
    """
    notes = [*on_contents(run.plan, sources), *on_tars(config, run)]
    if isinstance(config, Config):
        notes += on_batch_size(config.training, num_processes)
    refuse(notes)
    with alone(run.config(".planning").with_suffix(""), quiet) as waited:
        _plan(config, run, sources, (num_gpus, num_nodes, write_requests(requests or {})), waited)


def last_work(run: RunFolder) -> list[str]:
    """The file that a job wrote to last, or the folder of chunks that one was last removed from or
    came into, if any: a plan that is older than it does not know what is there."""
    chunks = (run.target_folder.glob("*/"), run.embedding_folder.glob("*/*/"))
    paths = [*run.telemetry.glob("*.jsonl"), *(path for found in chunks for path in found)]
    written = ((path.stat().st_mtime_ns, str(path)) for path in paths)
    return [path for _, path in [max(written, default=(0, ""))] if path]


def measured_at(run: RunFolder) -> int:
    """When the run was probed, in ns; 0 where it was not."""
    return run.probe.stat().st_mtime_ns if run.probe.is_file() else 0


def plan_as_asked(planned: Mapping[str, Any] | None, run: RunFolder) -> None:
    """`plan_first` for a job that others come from, of what `asked_to_plan` gave it.

    Args:
        planned: {"config": {...}, "sources": [files]}, or None: nothing is planned.
    """
    if planned is not None:
        config = parse_config(planned["config"], "the configuration")
        plan_first(config, run, planned["sources"])


def write_frozen(
    content: dict[str, Any], output: Path, planned: dict[str, Any] | None = None
) -> None:
    """Write what a stage depends on.

    Args:
        content: see `config.jobs.freeze`.
        output: results/{run}/config/{stage}.json.
        planned: the run to plan first, see `planning.first.plan_as_asked`.
    """
    plan_as_asked(planned, RunFolder.of_config(output))
    save_frozen(output, content)


def asked_to_plan(config: RunConfig, run: RunFolder, sources: Sequence[str], output: str) -> str:
    """JSON by which a first job plans its run, null for the job that writes what the plan reads.

    Args:
        sources: files beside the configuration that the plan reads.
    """
    if Path(output) == run.config("run"):
        return "null"
    return json.dumps({"config": freeze(config, "run"), "sources": list(sources)})


def _plan(
    config: RunConfig,
    run: RunFolder,
    sources: Sequence[str],
    machine: Machine,
    waited: bool,
) -> None:
    """`waited` says that another job has just planned: what it refused is not asked again."""
    frozen, plan = run.config("run"), run.plan
    # No job declares it, since its changes shall rerun none. Through a rule and `ancient` it would
    # hide what stands behind it, as the plan would.
    write_json(run.config(RUNTIME), freeze(config, "runtime"))
    content = freeze(config, "run")
    if not _is_written(frozen, content):
        save_frozen(frozen, content)
    later = [str(path) for path in (run.probe, run.signature) if path.is_file()]
    read = [*sources, *later]
    num_gpus, num_nodes, requests = machine
    is_current = _is_current(plan, hash_json(content), machine)
    if is_current and run.plan_page.is_file() and _is_newer(plan, read):
        return
    if waited:
        raise ValueError("the plan refuses this run; another job says why")
    script = ["-m", "distillery.stages.plan", "--config", str(frozen), "--output", str(plan)]
    if num_gpus is not None:
        script += ["--num-gpus", str(num_gpus), "--num-nodes", str(num_nodes)]
    if requests:
        script += ["--requests", json.dumps(requests)]
    log = run.log("plan")
    command = [sys.executable, *script, "--log-file", str(log)]
    # Ctrl-C is for this process, which ends the other; Snakemake, which expects it while jobs run
    # alone, and a Python that still imports would each print a traceback.
    try:
        done = subprocess.run(command, check=False, preexec_fn=_ignore_ctrl_c)
    except KeyboardInterrupt:
        raise ValueError("stopped while the run was planned; nothing was started") from None
    if done.returncode:
        raise ValueError(f"the plan refuses this run, nothing was started; see above, or {log}")


def _ignore_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _is_written(path: Path, content: JsonObject) -> bool:
    """Whether a frozen configuration says this, in this order."""
    try:
        return json.dumps(read_frozen(path)) == json.dumps(content)
    except (FileNotFoundError, ValueError):
        return False


def _is_current(plan: Path, config_hash: str, machine: Machine) -> bool:
    """Whether a plan is of this configuration, and for so many GPUs; a plan that was refused leaves
    the one before it."""
    planned = read_plan(plan)
    num_gpus, num_nodes, requests = machine
    gpus = (planned.get("num_gpus"), planned.get("num_nodes", 1))
    is_for_these = num_gpus is None or gpus == (num_gpus, num_nodes)
    is_for_these &= not requests or planned.get("requests") == requests
    return planned.get("config") == config_hash and is_for_these


def on_folder(sources: Sequence[str], checkout: Path) -> Iterator[Note]:
    """Files that lie beside the Snakefile and not where the run is started.

    Args:
        sources: files that the configuration names.
        checkout: folder of the Snakefile.
    """
    for source in sources:
        if not Path(source).exists() and (checkout / source).exists():
            yield error(
                f"{source} lies in {checkout}",
                f", not in {Path.cwd()}: the paths of a configuration are relative to the working "
                "folder",
                f"start in {checkout}, write whole paths, or link its folders here: ln -s "
                f"'{checkout}/config' '{checkout}/resources' .",
            )


def on_prompt_files(config: RunConfig, is_made: Callable[[str], bool]) -> list[Note]:
    """Prompt files that are not there, and no rule makes them; Snakemake would tell it without
    advice.

    Args:
        is_made: whether a rule makes a file.
    """
    notes: list[Note] = []
    for source in config.prompts.files:
        if not Path(source).is_file() and not is_made(source):
            from distillery.prompts import check_prompt_file  # pandas takes a second

            with noting(notes):
                check_prompt_file(Path(source))
    return notes


def on_start(config: RunConfig) -> Iterator[Note]:
    """A student to begin as that is not there; Snakemake would tell it without advice."""
    for path in map(Path, start_files(config)):
        if not path.is_file():
            yield error(
                f"student.start_from is {str(path.parent)!r}",
                f": there is no {path.name}, which a finished student's folder has",
                "give results/RUN/student/trained or results/RUN/student/pipeline of another run",
            )


def on_source(config: RunConfig) -> Iterator[Note]:
    """A run to read from that is not there, or not finished so far."""
    gone = [path for path in source_files(config) if not Path(path).is_file()]
    if not gone or not isinstance(config, Config):
        return
    if config.student.from_run is not None:
        yield error(
            f"student.from_run is {config.student.from_run!r}",
            f": there is no {gone[0]}",
            "give results/RUN of a run that has exported it, or leave out the models of "
            "samples.models that it draws",
        )
        return
    other = RunFolder(Path(str(config.targets.from_run)))
    where = f"targets.from_run is {str(other)!r}"
    chunks = len(list(other.target_folder.glob("*/chunk-*.safetensors")))
    if chunks:
        cause = f": it is half made, {counted(chunks, 'chunk')} and no {gone[0]}"
        kept = other.config("run")
        yield error(where, cause, f"finish it: snakemake --cores all {gone[0]} --configfile {kept}")
    else:
        cause = f": there is no {gone[0]}"
        yield error(where, cause, "give results/RUN of a run that has made its targets")


def _is_newer(plan: Path, sources: Sequence[str]) -> bool:
    """Whether a plan is no older than any of its sources; the plan itself reports a missing one."""
    written = plan.stat().st_mtime_ns
    return all(
        Path(source).is_file() and Path(source).stat().st_mtime_ns <= written for source in sources
    )
