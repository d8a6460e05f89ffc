"""A probe.json as a small run would have written it."""

from pathlib import Path

from distillery.config.run import RunConfig
from distillery.files import write_json
from distillery.pipeline import STAGES
from distillery.planning.probe import amounts_of, kind_of_probe
from distillery.stage import Counts


def write_probe(
    path: Path, config: RunConfig, num_prompts: dict[str, int], *gpus: str, **rates: float
) -> None:
    """2 s to start each job, 0.1 s for an item or as given by the kind; measured on some GPUs."""
    of_each = {
        kind: {"start_s": 2.0, "item_s": rates.get(kind, 0.1), "num_processes": 1}
        for kind in {
            amount.kind for amount in amounts_of(STAGES, config, Counts(num_prompts, num_prompts))
        }
    }
    hardware = {"gpus": [{"name": name} for name in gpus]}
    write_json(path, {"kind": kind_of_probe(config), "rates": of_each, "hardware": hardware})
