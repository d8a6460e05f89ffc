"""How long a run will take, by the rates that a small run has measured on this machine."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from distillery.config.run import Config, RunConfig
from distillery.files import read_json
from distillery.notes import Note, doubt
from distillery.planning.gpus import Gpus
from distillery.planning.jobs import Room
from distillery.planning.probe import Rate, amounts_of, kind_of_probe, plan_times
from distillery.planning.scaling import Networks, counted_stages, scale_rates
from distillery.run_folder import RunFolder
from distillery.stage import Counts, Stage


def plan_duration(
    stages: Iterable[Stage],
    config: RunConfig,
    counts: Counts,
    run_folder: RunFolder,
    room: Room,
    networks: tuple[Networks, str | None] | None = None,
) -> dict[str, Any]:
    """The time of each stage; nothing where there is no probe, and why where it is of no use.

    Args:
        run_folder: where the probe is.
        networks: of a training, and why its online targets have no estimate.
    """
    path = run_folder.probe
    if not path.is_file():
        return {}
    try:
        probe = read_json(path)
        rates = {kind: Rate(**rate) for kind, rate in probe["rates"].items()}
        if probe["kind"] != kind_of_probe(config):
            return {"note": f"{path} is of another configuration: remove it and ask for it again"}
        names = sorted({gpu["name"] for gpu in probe.get("hardware", {}).get("gpus", [])})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {"note": f"{path} cannot be read ({error!r}): remove it and ask for it again"}
    counted: list[str] = []
    note = None
    if isinstance(config, Config) and networks is not None:
        sizes, note = networks
        rates, counted = scale_rates(config, rates, sizes, note is None), counted_stages(config)
    rows = plan_times(rates, amounts_of(stages, config, counts), room)
    return {
        "stages": [asdict(row) for row in rows],
        "wall_s": sum(row.wall_s for row in rows),
        "gpu_hours": sum(row.gpu_s for row in rows) / 3600 if room.num_gpus else None,
        "counted": [name for name in counted if any(row.stage == name for row in rows)],
        "measured_on": names,
        "note": note,
    }


def on_duration(time: Mapping[str, Any], gpus: Gpus, probe: str) -> Iterator[Note]:
    """Why times are missing, or of another machine than the planned one.

    Args:
        probe: the file that the rates are from.
    """
    if time.get("note"):
        yield doubt("", str(time["note"]))
    if not time.get("stages"):
        return
    measured = " and ".join(time["measured_on"]) or "a machine without GPU"
    planned = " and ".join(gpus.names) or ("unnamed GPUs" if gpus.count else "the CPU")
    if not _is_measured(gpus, time["measured_on"]):
        yield doubt(
            f"{probe} was measured on {measured}",
            f" and the plan is for {planned}: times are those of the former",
            "measure there",
        )


def _is_measured(gpus: Gpus, measured: list[str]) -> bool:
    """Whether a probe ran on the planned kind of GPU, or on the CPU as planned.

    Of GPUs without a name nothing can be said but that there are some.
    """
    if not gpus.count or not measured:
        return not gpus.count and not measured
    return all(is_named(name, one) for name in gpus.names for one in measured)


def is_named(name: str, driver: str) -> bool:
    """Whether a short name, as RTX4090, is in the driver's, as NVIDIA GeForce RTX 4090."""
    wanted = "".join(re.split(r"[\s-]+", name.lower()))
    words = re.split(r"[\s-]+", driver.lower())
    ends = range(1, len(words) + 1)
    return any(wanted == "".join(words[start:end]) for end in ends for start in range(end))
