"""How long a run will take, by the rates that a small run has measured on this machine."""

from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from distillery.config.run import Config, RunConfig
from distillery.files import read_json
from distillery.planning.probe import Rate, amounts_of, kind_of_probe, plan_times
from distillery.run_folder import RunFolder

NOT_COUNTED = "time is that of plain updates: rounds, finishes and online targets take more"


def plan_duration(
    config: RunConfig,
    num_prompts: dict[str, int],
    run_folder: RunFolder,
    num_gpus: int,
    num_cores: int,
) -> dict[str, Any]:
    """The time of each stage; nothing where there is no probe, and why where it is of no use.

    Args:
        config: of the run.
        num_prompts: of each split.
        run_folder: where the probe is.
        num_gpus: 0 on the CPU.
        num_cores: of this machine.
    """
    path = run_folder.probe
    if not path.is_file():
        return {}
    try:
        probe = read_json(path)
        rates = {kind: Rate(**rate) for kind, rate in probe["rates"].items()}
        if probe["kind"] != kind_of_probe(config):
            return {"note": f"{path} is of another configuration: remove it and ask for it again"}
    except (ValueError, KeyError, TypeError) as error:
        return {"note": f"{path} cannot be read ({error!r}): remove it and ask for it again"}
    num_exports = 1
    if isinstance(config, Config):
        num_exports += any(model.source == "untrained" for model in config.samples.models.values())
    workers = num_gpus // config.teacher.num_gpus or num_cores // config.hardware.cpu_threads
    amounts = amounts_of(config, num_prompts, num_exports)
    stages = [asdict(row) for row in plan_times(rates, amounts, max(1, workers))]
    busy_s = sum(row["busy_s"] for row in stages)
    return {
        "stages": stages,
        "wall_s": sum(row["wall_s"] for row in stages),
        "gpu_hours": busy_s * config.teacher.num_gpus / 3600 if num_gpus else None,
        "note": NOT_COUNTED if _is_more(config) else None,
    }


def _is_more(config: RunConfig) -> bool:
    """Whether the training has what was not measured."""
    if not isinstance(config, Config):
        return False
    training = config.training
    extra = training.rounds, training.adversarial, training.online_samples, training.rollout_samples
    return any(extra)


def summarise_duration(time: dict[str, Any], probe: str) -> list[str]:
    """The plan's lines about time."""
    lines = [f"  note          {time['note']}"] if time.get("note") else []
    if not time.get("stages"):
        without = f"  time          not known; snakemake --cores all {probe} measures it"
        return lines or [without]
    hours = time["gpu_hours"]
    in_all = f"about {tqdm.format_interval(time['wall_s'])}"
    in_all += f", {hours:.2g} GPU-hours" if hours is not None else ""
    rows = ", ".join(
        f"{row['stage']} {tqdm.format_interval(row['wall_s'])}" for row in time["stages"]
    )
    return [f"  time          {in_all}, estimated from a probe", f"    {rows}", *lines]
