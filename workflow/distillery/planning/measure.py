"""Measure how fast each stage is on this machine, by a small run, for the plan of the large one."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from distillery.config.jobs import read_config
from distillery.config.run import RunConfig
from distillery.files import write_json
from distillery.hardware import describe_hardware, versions
from distillery.input_images import IMAGE, SHA256
from distillery.locks import RUN_LOCK, alone, job_lock
from distillery.planning.probe import (
    is_small_run,
    kind_of_probe,
    probe_config,
    probe_name,
    prompts_needed,
    rates_of,
)
from distillery.planning.prompt_tables import read_splits
from distillery.report.timeline import find_attempts
from distillery.run_folder import RunFolder
from distillery.telemetry import RUN_NOTE, read_events
from distillery.training.distributed import die_with_parent


def measure(config: Path, snakefile: Path, cores: int, output: Path) -> None:
    """Make a small run beside the large one, read its times, and remove it.

    Args:
        config: the whole configuration, frozen.
        snakefile: of the workflow.
        cores: that the small run may use.
        output: probe.json.

    Raises:
        ValueError: the small run failed, its log says why; or a run of the user's has its name.
    """
    run_config, run = read_config(config), RunFolder(output.parent)
    small = RunFolder(run.path.with_name(probe_name(run_config.run)))
    # A probe may have outlived its Snakemake.
    with alone(job_lock(run.path, "probe")):
        remove_small_run(small)
        settings = _prepare(small, run_config)
        run.telemetry.mkdir(parents=True, exist_ok=True)
        _make(settings, snakefile, cores, run.progress("probe"))
        attempts = find_attempts(read_events(small.telemetry))
        rates = {kind: asdict(rate) for kind, rate in rates_of(attempts).items()}
        about = {"hardware": describe_hardware(), "versions": versions()}
        write_json(output, {"kind": kind_of_probe(run_config), "rates": rates} | about)
        remove_small_run(small)


def remove_small_run(small: RunFolder) -> None:
    """Remove what a probe made; of one that was interrupted the times would be of another try.

    Raises ValueError for the folder of a run that no probe has made.
    """
    if not small.path.exists():
        return
    if {path.name for path in small.path.iterdir()} - {RUN_LOCK} and not is_small_run(small):
        raise ValueError(
            f"{small.path} is not of a probe, which would use and remove it: give one of the two "
            "runs another `run` name"
        )
    # The Snakemake of a killed probe ends with its jobs, and until then they write here.
    with alone(small.path / RUN_LOCK):
        shutil.rmtree(small.path)


def _prepare(small: RunFolder, config: RunConfig) -> Path:
    """Write the small run's settings and its prompt files."""
    raw, needed = probe_config(config), prompts_needed(config)
    paths = {split: small.path / f"some-{split}.parquet" for split in needed}
    notes = raw["prompts"]["notes"]
    raw["prompts"] = {"notes": notes} | {split: str(path) for split, path in paths.items()}
    small.path.mkdir(parents=True)
    write_json(small.probe, raw)
    tables = read_splits(config.prompts, config.teacher)
    for split, number in needed.items():
        some = tables[split].head(number)
        if SHA256 in some:  # its images are from here, and the table lies elsewhere
            some = some.assign(image=some[IMAGE].map(os.path.abspath)).drop(columns=SHA256)
        some.to_parquet(paths[split], index=False)
    return small.probe


def _make(settings: Path, snakefile: Path, cores: int, note: Path) -> None:
    """Make the small run; meanwhile `note` tells how many of its jobs are done.

    Its Snakemake lets running jobs end, and begins no other, when this process is killed.
    """
    words = ["--snakefile", str(snakefile), "--configfile", str(settings), "--cores", str(cores)]
    command = [sys.executable, "-m", "snakemake", *words, "--nolock", "--logger", "distillery"]
    done = subprocess.run(
        command,
        env=os.environ | {RUN_NOTE: str(note)},
        preexec_fn=partial(die_with_parent, signal.SIGTERM),
        check=False,
    )
    if done.returncode:
        folder = settings.parent
        raise ValueError(f"the small run in {folder} failed: its logs are in {folder / 'logs'}")
