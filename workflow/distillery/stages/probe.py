"""Measure how fast each stage is on this machine, by a small run, for the plan of the large one.

python -m distillery.stages.probe --config results/demo/config/run.json --cores 2 \\
    --snakefile Snakefile --output results/demo/probe.json
"""

import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from distillery import cli
from distillery.config.jobs import read_config
from distillery.evaluation.timeline import find_attempts
from distillery.files import write_json
from distillery.hardware import describe_hardware, versions
from distillery.planning.probe import (
    kind_of_probe,
    probe_config,
    probe_name,
    prompts_needed,
    rates_of,
)
from distillery.run_folder import RunFolder
from distillery.stages.prompts import read_splits
from distillery.telemetry import read_events


def measure(config: Path, snakefile: Path, cores: int, output: Path) -> None:
    """Make a small run beside the large one, read its times, and remove it.

    Args:
        config: the whole configuration, frozen.
        snakefile: of the workflow.
        cores: that the small run may use.
        output: probe.json.

    Raises:
        ValueError: the small run failed; its log says why.
    """
    run_config = read_config(config)
    small = RunFolder(output.parent.with_name(probe_name(run_config)))
    # Of one that was interrupted the times would be of another try.
    shutil.rmtree(small.path, ignore_errors=True)
    small.path.mkdir(parents=True)
    raw = probe_config(run_config)
    raw["prompts"] = {"notes": raw["prompts"]["notes"]}
    for split, table in read_splits(run_config.prompts).items():
        path = small.path / f"some-{split}.parquet"
        table.head(prompts_needed(run_config)[split]).to_parquet(path, index=False)
        raw["prompts"][split] = str(path)
    settings = small.path / "probe.json"
    write_json(settings, raw)
    words = ["--snakefile", str(snakefile), "--configfile", str(settings), "--cores", str(cores)]
    command = [sys.executable, "-m", "snakemake", *words, "--nolock"]
    if subprocess.run(command, check=False).returncode:
        raise ValueError(
            f"the small run in {small} failed: its logs are in {small.log('x').parent}"
        )
    attempts = find_attempts(read_events(small.telemetry))
    rates = {kind: asdict(rate) for kind, rate in rates_of(attempts).items()}
    about = {"hardware": describe_hardware(), "versions": versions()}
    write_json(output, {"kind": kind_of_probe(run_config), "rates": rates} | about)
    shutil.rmtree(small.path)


def main(argv: list[str] | None = None) -> int:
    """The command line of this stage."""
    return cli.run(measure, __doc__, argv)


if __name__ == "__main__":
    raise SystemExit(main())
