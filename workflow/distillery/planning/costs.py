"""The page's third part: time, GPU-hours, network calls, disk and memory of each stage."""

from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from distillery.config.run import Config
from distillery.files import readable
from distillery.planning.facts import Facts
from distillery.planning.gpus import summarise_gpus
from distillery.planning.jobs import StageJobs
from distillery.planning.page import COSTS, Part, without_empty
from distillery.planning.passes import passes_of_stages
from distillery.run_folder import RunFolder
from distillery.stage import Loads
from distillery.teacher.memory import summarise_memory
from distillery.words import listed


def what_it_costs(facts: Facts, plan: Mapping[str, Any], jobs: Sequence[StageJobs]) -> Part:
    """The costs, stage by stage and in all.

    Args:
        plan: as in plan.json, but for the page.
    """
    times = {row["stage"]: row for row in plan["time"].get("stages", [])}
    passes = passes_of_stages(facts.stages, facts.config, facts.counts, facts.calls)
    calls = {stage: each.calls for stage, each in passes.items()}
    loads = {stage.name: stage.loads for stage in facts.stages}
    rows = [
        (
            row.stage,
            _wall(times.get(row.stage), plan["time"]),
            _hours(times.get(row.stage), row.gpus),
            _number(calls.get(row.stage, 0)),
            _size(sum(it.num_bytes for it in facts.stores if it.stage == row.stage)),
            _size(_memory(plan, loads[row.stage])),
        )
        for row in jobs
    ]
    total_s, hours = plan["time"].get("wall_s"), plan["time"].get("gpu_hours")
    rows.append(
        (
            "in all",
            tqdm.format_interval(total_s) if times else "",
            f"{hours:.2g}" if times and hours is not None else "",
            _number(sum(calls.values())),
            readable(plan["disk"]["planned_bytes"]),
            "",
        )
    )
    trains = isinstance(facts.config, Config) and facts.config.trains
    where = "GPU" if plan["planned_gpus"]["count"] else "process"
    heads = ("stage", "time", "GPU-hours", "network calls", "disk", f"memory per {where}")
    lines = (
        ("time", _told(plan["time"], facts.run_folder)),
        ("disk", _told_disk(plan["disk"])),
        ("devices", _devices(plan)),
        ("weights", summarise_memory(plan["memory"])),
        *(_training_memory(plan) if trains else ()),
        ("host memory", _host_memory(plan, jobs)),
    )
    note = "In the training, an update of a sample counts as three network calls of the student."
    notes = (note,) if trains else ()
    return Part(COSTS, lines, (without_empty("", heads, rows),), notes)


def _memory(plan: Mapping[str, Any], loads: Loads) -> int:
    """Bytes of weights on a GPU, or of a CPU's process: for the training with all that learns."""
    if loads == "training":
        return int(plan["training"]["bytes_per_device"] + plan["training"]["vae_bytes"])
    of_teacher = {"texts": "embeddings", "drawing": "targets and samples"}
    return int(plan["memory"]["jobs"].get(of_teacher.get(loads, ""), 0))


def _wall(row: Mapping[str, Any] | None, time: Mapping[str, Any]) -> str:
    """An estimate by counted passes has a mark."""
    if row is None:
        return ""
    mark = " *" if row["stage"] in time["counted"] else ""
    return tqdm.format_interval(row["wall_s"]) + mark


def _hours(row: Mapping[str, Any] | None, gpus: int) -> str:
    return f"{row['gpu_s'] / 3600:.2g}" if row is not None and gpus else ""


def _number(count: int) -> str:
    return f"{count:,}" if count else ""


def _size(num_bytes: int) -> str:
    return readable(num_bytes) if num_bytes else ""


def _told(time: Mapping[str, Any], run: RunFolder) -> str:
    """The time in all, and where it is from."""
    if not time.get("stages"):
        return f"not known; snakemake --cores all {run.probe} measures it"
    hours = f", {time['gpu_hours']:.2g} GPU-hours" if time["gpu_hours"] is not None else ""
    on = listed(time["measured_on"]) or "the CPU"
    counted = "; * by counted network passes" if time["counted"] else ""
    return (
        f"about {tqdm.format_interval(time['wall_s'])}{hours}, estimated from the rates in "
        f"{run.probe}, measured on {on}{counted}"
    )


def _told_disk(disk: Mapping[str, Any]) -> str:
    planned, free, there = (readable(disk[f"{it}_bytes"]) for it in ("planned", "free", "present"))
    return f"{planned} at the most, {free} free, {there} of it there"


def _devices(plan: Mapping[str, Any]) -> str:
    here = len(plan["hardware"]["gpus"]) or "no"
    cores = plan["hardware"]["num_cores"]
    return f"{summarise_gpus(plan['planned_gpus'])}; here {here} GPU, {cores} cores"


def _host_memory(plan: Mapping[str, Any], jobs: Sequence[StageJobs]) -> str:
    """Of each stage's job on a node, as a cluster's `mem_mb`."""
    needs = plan["host_bytes"]
    told = [f"{row.stage} {readable(needs[row.stage])}" for row in jobs if row.stage in needs]
    return f"about, of a job on a node: {', '.join(told)}"


def _training_memory(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the training takes on a device, where there is one."""
    if "training" not in plan:
        return []
    training = plan["training"]
    text = f"{readable(training['bytes_per_device'])} on each device, without activations"
    if training["vae_bytes"]:
        text += f"; VAE {readable(training['vae_bytes'])} more, and what decoding takes"
    return [("training", text)]
