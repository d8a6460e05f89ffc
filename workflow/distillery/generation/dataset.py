"""A data set of the sampled images: metadata beside them, one manifest, a list of pairs."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from distillery.config.jobs import DatasetJob
from distillery.files import atomic_path
from distillery.input_images import IMAGE, SHA256
from distillery.noise import SampleId
from distillery.prompts import REQUIRED, RESERVED
from distillery.run_folder import RunFolder
from distillery.store.tables import read_table
from distillery.telemetry import Event, read_events

METADATA = "metadata.csv"
PAIRS = "pairs.csv"
METADATA_COLUMNS = (
    "prompt_id", "prompt", "index", "noise_seed", "steps", "guidance_scale", "width", "height",
    "sha256",
)  # fmt: skip
"""What is known of an image beside its file name; the user's own columns follow."""
PAIR_COLUMNS = (
    "prompt_id", "prompt", "file_a", "file_b", "seed_a", "seed_b", "model_a", "model_b",
)  # fmt: skip

Image = tuple[str, str, str]
"""Recipe, model and `prompt_id/index` of an image."""
Making = tuple[str, float]
"""The device that made an image, and the seconds it took."""


def make_dataset(
    job: DatasetJob, manifests: Sequence[Path], run_folder: RunFolder, output: Path
) -> None:
    """Write each model's metadata.csv, and the run's manifest and pairs.

    Args:
        manifests: samples/{model}/manifest.parquet of each model of the run.
        run_folder: results/{run}; the paths in the tables are relative to it.
        output: the run's manifest (Parquet) to write, pairs.csv beside it.

    Raises:
        ValueError: these are not the manifests of the configured models.
    """
    by_model = {path.parent.name: path for path in manifests}
    if sorted(by_model) != sorted(job.models) or len(manifests) != len(job.models):
        raise ValueError(
            f"the manifests of {', '.join(job.models)} are needed, given are "
            f"{', '.join(map(str, manifests))}: give each model's samples/MODEL/manifest.parquet"
        )
    making = find_making(read_events(run_folder.telemetry))
    parts = []
    for model in job.models:
        table = read_table(by_model[model])
        write_csv(by_model[model].with_name(METADATA), metadata(table))
        parts.append(describe(table, by_model[model].parent.relative_to(run_folder.path), making))
    manifest = pd.concat(parts, ignore_index=True)
    if job.dataset.pairs == "none":
        output.with_name(PAIRS).unlink(missing_ok=True)
    else:
        pairs = pd.DataFrame(find_pairs(manifest, job.dataset.pairs), columns=PAIR_COLUMNS)
        write_csv(output.with_name(PAIRS), pairs)
    with atomic_path(output) as temporary:
        manifest.to_parquet(temporary, index=False)


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """Write a UTF-8 CSV file with a header, atomically; lists and the like become JSON."""
    table = table.assign(
        **{
            name: table[name].map(_as_json, na_action="ignore")
            for name in table.columns
            if table[name].dtype == object
        }
    )
    with atomic_path(path) as temporary:
        table.to_csv(temporary, index=False, lineterminator="\n")


def _as_json(value: Any) -> Any:
    """A value that a CSV file cannot hold, as prompts in JSONL or Parquet may have them."""
    if isinstance(value, (list, dict, np.ndarray)):
        return json.dumps(value, ensure_ascii=False, default=np.ndarray.tolist)
    return value


def metadata(samples: pd.DataFrame) -> pd.DataFrame:
    """A model's metadata.csv: what image-folder loaders read, file names relative to its folder."""
    extra = [name for name in samples.columns if name not in (*REQUIRED, *RESERVED)]
    table = samples[["file", *METADATA_COLUMNS, *extra]]
    # Loaders call the file itself `image`.
    own = {IMAGE: "input_image"} if SHA256 in table else {}
    return table.rename(columns={"file": "file_name", **own})


def describe(samples: pd.DataFrame, folder: Path, making: Mapping[Image, Making]) -> pd.DataFrame:
    """A model's rows of the manifest: paths below `folder`, device and seconds where known."""
    makings = [
        making.get((recipe, model, str(SampleId(prompt_id, index))), (None, float("nan")))
        for recipe, model, prompt_id, index in zip(
            samples["recipe"],
            samples["model"],
            samples["prompt_id"],
            samples["index"],
            strict=True,
        )
    ]
    return samples.assign(
        file=[(folder / name).as_posix() for name in samples["file"]],
        latents_file=[(folder / name).as_posix() for name in samples["latents_file"]],
        device=pd.Series([device for device, _ in makings], dtype="string"),
        seconds=[seconds for _, seconds in makings],
    )


def find_making(events: Iterable[Event]) -> dict[Image, Making]:
    """The device of each image, and its share of its batch's seconds; the last making counts.

    The first batch of a job also loads the model. An image saved by a batch that was then killed
    has no event and is not found here.
    """
    making: dict[Image, Making] = {}
    for event in events:
        if event.kind != "work" or not {"model", "samples"} <= event.facts.keys():
            continue
        seconds = (event.end_s - event.begin_s) / max(event.num_items, 1)
        for sample in event.facts["samples"]:
            key = (event.facts.get("recipe", ""), event.facts["model"], sample)
            making[key] = (event.device, seconds)
    return making


def find_pairs(
    manifest: pd.DataFrame, kind: Literal["all", "neighbours"]
) -> Iterator[tuple[Any, ...]]:
    """Pairs of images of one prompt, as `PAIR_COLUMNS`, in the manifest's order."""
    columns = ["file", "noise_seed", "model"]
    for (prompt_id, prompt), images in manifest.groupby(list(REQUIRED), sort=False):
        rows = list(images[columns].itertuples(index=False, name=None))
        pairs = combinations(rows, 2) if kind == "all" else pairwise(rows)
        for (file_a, seed_a, model_a), (file_b, seed_b, model_b) in pairs:
            yield prompt_id, prompt, file_a, file_b, seed_a, seed_b, model_a, model_b
