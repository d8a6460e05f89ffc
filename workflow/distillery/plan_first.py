"""Have a run planned before its first job, and stopped where the plan refuses it.

The plan is no input of other jobs. As one that may be old (`ancient`) it would hide what stands
behind it: Snakemake does not look at jobs behind one that runs, so after any change of the plan the
same command would make the plan alone and end well.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from distillery.config.jobs import freeze
from distillery.config.run import Config, RunConfig
from distillery.config.training import check_batch_size
from distillery.files import read_json, write_json


def plan_first(
    config: RunConfig, folder: Path, sources: Sequence[str], num_processes: int = 0
) -> None:
    """Write `plan.json`, unless it is that of this configuration and of these files.

    Args:
        config: of the run.
        folder: results/{run}.
        sources: files beside the configuration that the plan reads.
        num_processes: that Snakemake gives the training; 0 if no training is to be done.

    Raises:
        ValueError: the training gets more processes than an update has samples, or the plan
            refuses the run and has said why.
    """
    if isinstance(config, Config):
        check_batch_size(config.training, num_processes)
    frozen, plan = folder / "config" / "run.json", folder / "plan.json"
    content = freeze(config, "run")
    if not (frozen.is_file() and read_json(frozen) == content):
        plan.unlink(missing_ok=True)
        write_json(frozen, content)
    if _is_newer(plan, sources):
        return
    plan.unlink(missing_ok=True)
    script = ["-m", "distillery.scripts.plan", "--config", str(frozen), "--output", str(plan)]
    log = folder / "logs" / "plan.log"
    done = subprocess.run([sys.executable, *script, "--log-file", str(log)], check=False)
    if done.returncode:
        raise ValueError(f"the plan refuses this run, nothing was started; see above, or {log}")


def _is_newer(plan: Path, sources: Sequence[str]) -> bool:
    """Whether a plan is there and no older than any of its sources; one that is missing is told by
    the plan itself."""
    if not plan.is_file():
        return False
    written = plan.stat().st_mtime_ns
    return all(
        Path(source).is_file() and Path(source).stat().st_mtime_ns <= written for source in sources
    )
