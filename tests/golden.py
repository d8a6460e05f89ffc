"""What no change may alter unseen: frozen configurations, files, commands and recipes of many runs.

    PYTHONPATH=workflow:tests python -m golden

writes tests/golden/ anew; its diff belongs into the change's message.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from snakemake.api import SnakemakeApi
from snakemake.settings.types import ConfigSettings, OutputSettings, ResourceSettings

from checkout import REPOSITORY
from distillery.config.jobs import JOBS, EmbeddingsJob, TargetsJob, freeze
from distillery.config.run import Config, RunConfig, parse_config
from distillery.config.teacher import Teacher
from distillery.files import hash_json
from distillery.generation.embeddings import embeddings_recipe
from distillery.generation.targets import targets_recipe
from distillery.pipeline import STAGES
from distillery.planning.gpus import Gpus
from distillery.planning.jobs import list_jobs
from distillery.planning.probe import amounts_of
from distillery.stage import Counts
from distillery.teacher.folder import PipelineFolder, find_teacher
from quality import make_config
from random_configs import random_configs
from reports import make_results, write

FOLDER = Path(__file__).parent / "golden"
NUM_RANDOM = 200
NUM_READ = 20
"""Random runs whose rules and recipes are read too, which takes a tenth of a second each."""
METRICS = "metrics"
WHOLE = ("run", "runtime")
SHORT = 12
"""Digits of a hash: enough to tell that something changed."""
COUNTS = Counts({"train": 1_000, "eval": 80}, {"train": 1_001, "eval": 81})
GPUS = (Gpus(), Gpus(count=8, memory_bytes=80 << 30, capability=(9, 0), num_nodes=2))


def shipped() -> Iterator[tuple[str, RunConfig]]:
    """Every configuration that is shipped, and those that distil under each preset."""
    presets = [yaml.safe_load(path.read_text()) for path in _yaml_files("config/presets")]
    for path in _yaml_files("config"):
        raw = yaml.safe_load(path.read_text())
        yield path.stem, parse_config(raw, str(path))
    for number, preset in enumerate(presets):
        raw = yaml.safe_load((REPOSITORY / "config/sdxl-4-steps.yaml").read_text())
        merged = raw | {key: raw.get(key, {}) | values for key, values in preset.items()}
        name = _yaml_files("config/presets")[number].stem
        yield f"sdxl-4-steps with {name}", parse_config(merged, name)


def _yaml_files(folder: str) -> list[Path]:
    return sorted((REPOSITORY / folder).glob("*.yaml"))


def frozen(config: RunConfig) -> dict[str, str]:
    """By stage, a hash of what the stage depends on, in the order of its keys."""
    names = [*JOBS, "run", "runtime", *(f"samples-{model}" for model in config.samples.models)]
    if isinstance(config, Config):
        names += [f"training-{done}-rounds" for done in range(len(config.training.round_numbers))]
    found = {}
    for name in names:
        try:
            found[name] = _short(json.dumps(freeze(config, name)))
        except ValueError:  # this run has no such stage
            continue
    return found


def of_stages(config: RunConfig) -> dict[str, str]:
    """`frozen` without the whole configuration, which a new key changes, and plan and report take
    alone."""
    return {name: hash_ for name, hash_ in frozen(config).items() if name not in WHOLE}


def jobs(config: RunConfig) -> dict[str, Any]:
    """The plan of jobs with and without GPUs, and the amounts of work."""
    planned = [
        [list(vars(row).values()) for row in list_jobs(STAGES, config, it, 8)] for it in GPUS
    ]
    amounts = [list(vars(it).values()) for it in amounts_of(STAGES, config, COUNTS)]
    return {"jobs": planned, "amounts": amounts}


def recipes(config: RunConfig) -> dict[str, str]:
    """Hashes of what is stored, with the demo's teacher, which is a file of this repository."""
    folder = _folder(config.teacher)
    job = EmbeddingsJob(teacher=config.teacher, embeddings=config.embeddings)
    found = {"embeddings": embeddings_recipe(job, folder).hash}
    if isinstance(config, Config):
        of_targets = TargetsJob(seed=config.seed, teacher=config.teacher, targets=config.targets)
        found["targets"] = targets_recipe(of_targets, folder, found["embeddings"]).hash
    return {stage: hash_[:SHORT] for stage, hash_ in found.items()}


@cache
def _folder(teacher: Teacher) -> PipelineFolder:
    return find_teacher(teacher)


def rules(config: RunConfig) -> dict[str, Any]:
    """As Snakemake reads them: what `all` asks for, and each rule's command and parameters.

    Another command or parameter reruns every finished run.
    """
    with tempfile.TemporaryDirectory() as name, SnakemakeApi(OutputSettings()) as api:
        folder, raw = Path(name), config.model_dump(mode="json")
        (folder / "it.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
        for linked in ("config", "resources"):
            (folder / linked).symlink_to(REPOSITORY / linked)
        before = Path.cwd()
        os.chdir(folder)
        try:
            workflow = api.workflow(
                resource_settings=ResourceSettings(cores=1),
                config_settings=ConfigSettings(configfiles=[folder / "it.yaml"]),
                snakefile=REPOSITORY / "Snakefile",
            )._workflow
            read = {
                rule.name: {
                    "shell": " ".join((rule.shellcmd or "").split()),
                    "params": {
                        key: "a function" if callable(value) else _anywhere(value)
                        for key, value in rule.params.items()
                    },
                    "output": [str(it) for it in rule.output],
                }
                for rule in workflow.rules
            }
            asked = sorted(str(it) for it in workflow.get_rule("all").input if not callable(it))
            return {"all": asked, "rules": read}
        finally:
            os.chdir(before)


def _anywhere(value: Any) -> str:
    """A parameter without the folder of this checkout."""
    return str(value).replace(str(REPOSITORY), "CHECKOUT")


def keys_of(metrics: dict[str, Any]) -> list[str]:
    """The keys of a report's metrics.json but for the run's configuration, those of lists once."""
    settings = "provenance.config."
    return sorted({key for key in _keys(metrics, "") if not key.startswith(settings)})


def _keys(value: Any, place: str) -> Iterator[str]:
    # An interval is null where there is none, as with the random judge of these tests.
    if isinstance(value, dict) and not value.keys() <= {"mean", "low", "high"}:
        for key, child in value.items():
            yield from _keys(child, f"{place}.{key}")
    elif isinstance(value, list) and value:
        yield from _keys(value[0], f"{place}[]")
    else:
        yield place.removeprefix(".")


def _short(text: str) -> str:
    return hash_json(text)[:SHORT]


def _of_all(
    of: Callable[[RunConfig], dict[str, Any]], configs: dict[str, RunConfig]
) -> dict[str, Any]:
    return {name: of(config) for name, config in configs.items()}


def observe() -> dict[str, Any]:
    """By file of tests/golden, what the code says now; random runs as hashes of it."""
    known, drawn = dict(shipped()), list(random_configs(NUM_RANDOM))
    demo = {name: known[name] for name in ("config", "dataset")}
    return {
        "frozen": _of_all(frozen, known),
        "jobs": _of_all(jobs, known),
        "recipes": _of_all(recipes, demo),
        "rules": _of_all(rules, demo),
        "random": [
            {of.__name__: _short(json.dumps(of(config))) for of in (of_stages, jobs)}
            for config in drawn
        ],
        "random_recipes": [_short(json.dumps(recipes(config))) for config in drawn[:NUM_READ]],
        "random_rules": [_short(json.dumps(rules(config))) for config in drawn[:NUM_READ]],
    }


def as_text(content: Any) -> str:
    """As a file of tests/golden holds it."""
    return json.dumps(content, indent=1) + "\n"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    os.chdir(REPOSITORY)
    observed = observe()
    with tempfile.TemporaryDirectory() as name:
        make_results(Path(name))
        observed[METRICS] = keys_of(write(make_config(), Path(name))[1])
    for name, content in observed.items():
        (FOLDER / f"{name}.json").write_text(as_text(content))


if __name__ == "__main__":
    main()
