"""docs/results-files.md describes each file, column and key of a run that is really finished."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from finished_run import TINY, in_copy
from safetensors import safe_open

from checkout import REPOSITORY
from distillery.config.jobs import DatasetJob, read_config
from distillery.config.run import Dataset
from distillery.generation.dataset import make_dataset
from distillery.report.compare import compare_runs
from distillery.run_folder import RunFolder
from distillery.telemetry import read_events
from distillery.training.watchers.alarms import COMPANIONS, HELD_OUT, KNOT
from runs import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PAGE = (REPOSITORY / "docs/results-files.md").read_text(encoding="utf-8")
INTERVAL = {"mean", "low", "high"}
OWN_COLUMNS, NOTES = "{note}", {"style"}
"""Row and names of the user's own columns of the tiny run's prompt files."""

Path_ = tuple[str, ...]


def rows(heading: str) -> dict[str, str]:
    """The names in a section's table, with the text behind each."""
    sections = re.split(r"^#+ (.+)$", PAGE, flags=re.MULTILINE)
    text = dict(zip(sections[1::2], sections[2::2], strict=True))[heading]
    found = {}
    for line in re.findall(r"^\| (`.*)\|$", text, flags=re.MULTILINE):
        first, _, rest = line.partition(" | ")
        names = re.findall(r"`([^`]+)`", first)
        found |= {name: rest for name in names if name != OWN_COLUMNS}
    assert found, f"{heading} has no table"
    return found


def paths(node: Any, before: Path_ = ()) -> Iterator[Path_]:
    """Where values are in JSON: keys, and [] behind that of a list of objects."""
    children: Iterable[tuple[Path_, Any]] = ()
    if isinstance(node, dict) and node and node.keys() != INTERVAL:
        children = [((*before, key), value) for key, value in node.items()]
    elif isinstance(node, list) and node and isinstance(node[0], dict):
        children = [((*before[:-1], f"{before[-1]}[]"), value) for value in node]
    if not children:
        yield before
    for path, value in children:
        yield from paths(value, path)


def keys_of(row: str) -> list[str]:
    """A row's keys as patterns: braces stand for any name."""
    return [re.sub(r"\\\{\w+\\\}", ".+", re.escape(key)) for key in row.split(".")]


def matches(path: Path_, row: str) -> bool:
    """Whether a row of the page is about a place; … stands for all below."""
    keys = keys_of(row.removesuffix(".…"))
    has_depth = len(path) > len(keys) if row.endswith(".…") else len(path) == len(keys)
    return has_depth and all(re.fullmatch(key, part) for part, key in zip(path, keys, strict=False))


def is_above(path: Path_, row: str) -> bool:
    """Whether a row is about something below a place, which is empty in a run without it."""
    keys = [key.removesuffix(r"\[\]") for key in keys_of(row)]
    return len(path) <= len(keys) and all(
        re.fullmatch(key, part.removesuffix("[]")) for part, key in zip(path, keys, strict=False)
    )


def check(heading: str, found: Iterable[Path_]) -> None:
    """Compare what is found in a run with a section's table, both ways."""
    described, found = rows(heading), set(found)
    missing = [
        path
        for path in found
        if not any(matches(path, row) or is_above(path, row) for row in described)
    ]
    assert not missing, f"{heading} of the page lacks {missing}"
    stale = [
        row
        for row, text in described.items()
        if "only" not in text
        and not any(matches(path, row) or is_above(path, row) for path in found)
    ]
    assert not stale, f"{heading} of the page has {stale}, which no such file has"


def columns(path: Path) -> Iterator[Path_]:
    table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    return ((str(name),) for name in table.columns if name not in NOTES)


@pytest.fixture(scope="module")
def run(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The finished run with a round, the tables of a data set, and a comparison with itself."""
    with pytest.MonkeyPatch.context() as patch:
        in_copy(finished, tmp_path_factory.mktemp("described") / "run", patch)
        config, files = read_config(TINY / "config/run.json"), RunFolder(TINY)
        models = tuple(config.samples.models)
        job = DatasetJob(dataset=Dataset(pairs="all"), models=models)
        make_dataset(job, [files.samples(model) for model in models], files, files.dataset)
        Run(TINY, config).visited(1, files.student("untrained"), num_shards=2)
        compare_runs(TINY, TINY, TINY.parent / "compare/index.html")
        yield TINY.resolve()


def test_every_file_is_described(run: Path) -> None:
    rows_ = [re.escape(row).replace(r"\{file\}", ".+") for row in rows("Folders")]
    patterns = [re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", row)) for row in rows_]
    names = [path.relative_to(run) for path in run.rglob("*") if path.is_file()]
    shown = [
        name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts)
    ]
    missing = [name for name in shown if not any(each.fullmatch(name) for each in patterns)]
    assert not missing, f"the page lacks {missing}"


@pytest.mark.parametrize(
    ("heading", "pattern"),
    [
        ("prompts/{split}.parquet", "prompts/*.parquet"),
        ("samples/{model}/manifest.parquet", "samples/*/*.parquet"),
        ("samples/{model}/metadata.csv", "samples/*/metadata.csv"),
        ("dataset/manifest.parquet", "dataset/manifest.parquet"),
        ("dataset/pairs.csv", "dataset/pairs.csv"),
        ("evaluation/scores.parquet", "evaluation/scores.parquet"),
        ("student/loss.parquet", "student/loss.parquet"),
        ("student/loss.parquet", "student/checkpoints/*/*/losses.parquet"),
        ("compare/metrics.parquet", "compare/metrics.parquet"),
    ],
)
def test_every_column_is_described(run: Path, heading: str, pattern: str) -> None:
    files = list(run.glob(pattern)) or list(run.parent.glob(pattern))
    assert files
    check(heading, (column for file in files for column in columns(file)))


def test_columns_that_only_some_trainings_have_are_the_codes() -> None:
    found = {name for name, text in rows("student/loss.parquet").items() if "only" in text}
    assert found == {HELD_OUT, f"{KNOT}1", "loss_rollout", *(f"loss_{name}" for name in COMPANIONS)}


@pytest.mark.parametrize(
    ("heading", "pattern"),
    [
        ("evaluation/quality.json", "evaluation/quality.json"),
        ("report/metrics.json", "report/metrics.json"),
        ("plan.json", "plan.json"),
        ("distillery.json", "student/*/distillery.json"),
        ("Manifests", "targets/*.json"),
        ("Manifests", "embeddings/*/manifest.json"),
        ("Manifests", "rounds/1/*.json"),
        ("Manifests", "rounds/1/states/*.json"),
        ("Checkpoints", "student/checkpoints/*/*/state.json"),
    ],
)
def test_every_key_is_described(run: Path, heading: str, pattern: str) -> None:
    files = list(run.glob(pattern))
    assert files
    check(heading, (path for file in files for path in paths(json.loads(file.read_text()))))


def test_every_fact_of_an_event_is_described(run: Path) -> None:
    events = [vars(event) for event in read_events(run / "telemetry")]
    assert {event["kind"] for event in events} >= {"work", "save"}
    found = {path for event in events for path in paths(event)}
    check("Telemetry", found)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("targets", "targets/*/*.safetensors"),
        ("rounds", "rounds/1/*/chunk-*.safetensors"),
        ("rounds", "rounds/1/states/*/chunk-*.safetensors"),
        ("embeddings", "embeddings/*/*/*.safetensors"),
        ("samples", "samples/*/*/*.safetensors"),
    ],
)
def test_every_tensor_of_a_chunk_is_described(run: Path, name: str, pattern: str) -> None:
    text = rows("Chunks")[name]
    file = next(run.glob(pattern))
    with safe_open(file, framework="pt") as chunk:
        assert json.loads(chunk.metadata()["distillery"]).keys() == {
            "recipe",
            "members",
            "checksum",
            "about",
        }
        for tensor in chunk.keys():  # noqa: SIM118 (no mapping)
            assert f"`{tensor}`" in text or f"`.{tensor.rsplit('.')[-1]}`" in text
