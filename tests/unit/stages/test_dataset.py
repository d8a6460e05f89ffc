"""The data set: what image-folder loaders read, one manifest, pairs; and the plan of such a run."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image

from distillery.config.jobs import DatasetJob
from distillery.config.run import parse_config
from distillery.files import hash_file
from distillery.generation.dataset import PAIR_COLUMNS, find_making, make_dataset, write_csv
from distillery.telemetry import Event
from runs import Run, generating_settings, planned, summary

FAST = {"source": "teacher", "steps": 2, "guidance_scale": 1.0}


def make_tables(run: Run, *models: str) -> Path:
    """The stage on what the models have sampled; returns the manifest."""
    output = run.folder / "dataset" / "manifest.parquet"
    manifests = [run.folder / "samples" / model / "manifest.parquet" for model in models]
    make_dataset(run.job("dataset", DatasetJob), manifests, run.files, output)
    return output


@pytest.fixture(scope="module")
def generated(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two images of each of five prompts, in two shards, and the data set's tables."""
    folder = tmp_path_factory.mktemp("generated")
    run = Run(folder / "results", parse_config(generating_settings(folder, teacher), "tiny"))
    run.encode("eval")
    run.all_samples(num_shards=2)
    make_tables(run, "teacher")
    return run


def test_the_metadata_is_what_image_folders_want(generated: Run) -> None:
    folder = generated.folder / "samples" / "teacher"
    table = pd.read_csv(folder / "metadata.csv")
    assert list(table.columns) == [
        "file_name", "prompt_id", "prompt", "index", "noise_seed", "steps", "guidance_scale",
        "width", "height", "sha256", "style",
    ]  # fmt: skip
    assert len(table) == 10
    assert set(table["file_name"]) == {
        path.relative_to(folder).as_posix() for path in folder.rglob("*.png")
    }
    for row in table.itertuples():
        image = Image.open(folder / str(row.file_name))
        image.load()
        assert image.size == (row.width, row.height)
        assert image.text["prompt"] == row.prompt  # type: ignore[attr-defined]
        assert hash_file(folder / str(row.file_name)) == row.sha256
    assert table["style"].tolist()[:3] == ["style 0", "style 0", "style 1"]


def test_lists_of_a_prompt_file_are_json_in_a_csv(tmp_path: Path) -> None:
    """They come from Parquet as arrays, whose text is of no use to any reader."""
    tags = [np.array(["x", 'say "y"']), {"hue": "grün"}, None]
    write_csv(tmp_path / "a.csv", pd.DataFrame({"name": ["a", "b", "c"], "tags": tags}))
    read = pd.read_csv(tmp_path / "a.csv")
    assert [json.loads(text) for text in read["tags"][:2]] == [["x", 'say "y"'], {"hue": "grün"}]
    assert read["tags"].isna().tolist() == [False, False, True]
    assert read["name"].tolist() == ["a", "b", "c"]


def test_the_manifest_knows_who_made_an_image_and_how_long_it_took(generated: Run) -> None:
    table = pd.read_parquet(generated.folder / "dataset" / "manifest.parquet")
    assert {"sha256", "prompt", "noise_seed", "steps", "guidance_scale", "style"} <= set(table)
    assert table["device"].tolist() == ["cpu"] * 10
    assert (table["seconds"] > 0).all()
    for kind in ("file", "latents_file"):
        assert all((generated.folder / name).is_file() for name in table[kind])


def test_the_manifest_has_no_column_without_a_name(generated: Run) -> None:
    """As pandas writes an index, which other readers show."""
    path = generated.folder / "dataset" / "manifest.parquet"
    assert pq.read_schema(path).names == list(pd.read_parquet(path).columns)


def test_all_pairs(generated: Run) -> None:
    pairs = pd.read_csv(generated.folder / "dataset" / "pairs.csv")
    assert tuple(pairs.columns) == PAIR_COLUMNS
    assert pairs["prompt_id"].tolist() == ["p000", "p001", "p002", "p003", "p004"]
    assert pairs["file_a"][0] == "samples/teacher/p000/0.png"
    assert pairs["file_b"][0] == "samples/teacher/p000/1.png"
    assert (pairs["seed_a"] != pairs["seed_b"]).all()
    assert all((generated.folder / name).is_file() for name in pairs["file_b"])


@pytest.mark.parametrize(("kind", "num_pairs"), [("none", None), ("all", 15), ("neighbours", 10)])
def test_pairs_go_across_seeds_and_models(
    teacher: Path, tmp_path: Path, kind: str, num_pairs: int | None
) -> None:
    """Three images of each of five prompts: two seeds of one model, one of another."""
    raw = generating_settings(tmp_path, teacher, dataset={"pairs": kind})
    raw["samples"]["models"]["fast"] = FAST
    run = Run(tmp_path / "results", parse_config(raw, "tiny"))
    folder = run.folder / "samples"
    for model, indices in (("teacher", (0, 1)), ("fast", (0,))):
        rows = [fake_row(model, f"p{number}", index) for number in range(5) for index in indices]
        (folder / model).mkdir(parents=True)
        pd.DataFrame(rows).to_parquet(folder / model / "manifest.parquet")
    stale = run.folder / "dataset" / "pairs.csv"
    stale.parent.mkdir()
    stale.write_text("stale")
    make_tables(run, "fast", "teacher")
    if num_pairs is None:
        assert not stale.exists()
        return
    pairs = pd.read_csv(stale)
    assert len(pairs) == num_pairs
    first = pairs[pairs["prompt_id"] == "p0"]
    assert first[["file_a", "file_b"]].to_numpy().tolist()[0] == [
        "samples/teacher/p0/0.png", "samples/teacher/p0/1.png",
    ]  # fmt: skip
    assert first[["model_a", "model_b"]].to_numpy().tolist()[-1] == ["teacher", "fast"]
    assert not pairs.duplicated(["file_a", "file_b"]).any()


def fake_row(model: str, prompt_id: str, index: int) -> dict[str, Any]:
    """A row of a samples' manifest."""
    return {
        "prompt_id": prompt_id, "prompt": "a dog", "index": index, "noise_seed": index,
        "file": f"{prompt_id}/{index}.png", "sha256": "0", "latents_file": "x",
        "latents_sha256": "0", "model": model, "steps": 4, "guidance_scale": 1.0,
        "network_calls": 4, "width": 32, "height": 32, "recipe": "r",
    }  # fmt: skip


def test_an_image_without_an_event_has_no_time(generated: Run, tmp_path: Path) -> None:
    telemetry = generated.folder / "telemetry"
    kept = {path: path.read_text() for path in telemetry.glob("samples-*-0-of-2.jsonl")}
    for path in kept:
        path.unlink()
    table = pd.read_parquet(make_tables(generated, "teacher"))
    for path, text in kept.items():
        path.write_text(text)
    assert 0 < table["seconds"].isna().sum() < len(table)
    assert (table["device"].isna() == table["seconds"].isna()).all()
    make_tables(generated, "teacher")


def event(**changes: Any) -> Event:
    facts = {"recipe": "r", "model": "a", "samples": ["p0/0", "p0/1"]}
    given = {
        "kind": "work", "stage": "samples", "job": "samples-a-0-of-2", "device": "cuda:GPU-1",
        "host": "h", "begin_s": 10.0, "end_s": 14.0, "num_items": 2, "facts": facts,
    }  # fmt: skip
    return Event(**(given | changes))


def test_seconds_are_a_share_of_the_batch_and_the_last_making_counts() -> None:
    facts = {"recipe": "r", "model": "a", "samples": ["p0/1"]}
    again = event(begin_s=20.0, end_s=21.0, num_items=1, device="cuda:GPU-2", facts=facts)
    made = find_making([event(), again, event(kind="start"), event(facts={"chunk": 0})])
    assert made == {
        ("r", "a", "p0/0"): ("cuda:GPU-1", 2.0),
        ("r", "a", "p0/1"): ("cuda:GPU-2", 1.0),
    }


def test_another_recipe_or_an_event_without_names_tells_nothing() -> None:
    assert find_making([event(facts={"peak_memory_bytes": 1})]) == {}
    assert ("r", "a", "p0/0") not in find_making(
        [event(facts={"recipe": "x", "model": "a", "samples": ["p0/0"]})]
    )


def test_manifests_of_other_models_are_refused(generated: Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the manifests of teacher are needed, given are"):
        make_tables(generated, "student")
    with pytest.raises(ValueError, match="the manifests of teacher are needed"):
        make_tables(generated, "teacher", "teacher")


def test_the_plan_counts_images(teacher: Path, tmp_path: Path) -> None:
    raw = generating_settings(tmp_path, teacher)
    raw["samples"]["models"]["fast"] = FAST
    found = planned(raw, tmp_path)
    assert found["work"] == {
        "num_prompts": {"eval": 5}, "num_images": 20, "teacher_calls": 10 * (4 * 2 + 2),
    }  # fmt: skip
    assert {it["stage"]: it["jobs"] for it in found["stages"]} == {"embeddings": 1, "samples": 4}
    assert found["disk"]["stages"]["samples"] == 20 * (32 * 32 * 3 + 4 * 4 * 4 * 4)
    assert found["advice"] == []
    text = summary(found)
    assert "20 images of" in text
    assert "100 network calls" in text
    assert "1 embeddings, 4 samples" in text
    assert len(text.splitlines()) < 40


def test_the_plan_advises(teacher: Path, tmp_path: Path) -> None:
    raw = generating_settings(tmp_path, teacher, samples={"num_shards": 9, "num_prompts": 2})
    found = planned(raw, tmp_path)
    assert found["work"]["num_images"] == 4
    assert found["advice"] == [
        "samples.num_shards is 9 for 2 batches: some jobs will have nothing to do"
    ]
    raw = copy.deepcopy(raw)
    raw["samples"] |= {"num_shards": 1, "images_per_prompt": 10**9}
    assert any("may not fit on the disk" in line for line in planned(raw, tmp_path)["advice"])
