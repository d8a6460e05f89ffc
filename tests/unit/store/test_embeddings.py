"""Embeddings are hashed by who reads them first, unless another process of the job does that."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file

from distillery.store.chunks import DamagedChunkError
from distillery.store.embeddings import EmbeddingStore
from in_process import flip


def test_each_prompt_has_its_own_part_of_a_chunk(data: Path) -> None:
    """Texts of several lengths lie one behind another, the negative one first."""
    manifest = data / "embeddings/train/manifest.json"
    table = pd.read_parquet(data / "prompts/train.parquet")
    parts = []
    for chunk in sorted(manifest.parent.rglob("chunk-*")):
        tensors = load_file(chunk)
        lengths = tensors["prompt_embeds.lengths"].tolist()
        parts += tensors["prompt_embeds.values"].split(lengths)
    assert len({len(part) for part in parts}) > 1
    store = EmbeddingStore(manifest, table)
    found = [store.negative, *map(store.row, range(len(table)))]
    for ours, theirs in zip(found, parts, strict=True):
        assert ours["prompt_embeds"].equal(theirs)


def test_a_damaged_chunk_is_seen_at_its_first_row(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "embeddings", tmp_path / "embeddings")
    manifest = tmp_path / "embeddings/train/manifest.json"
    chunk = sorted(manifest.parent.rglob("chunk-*"))[0]
    flip(chunk)
    table = pd.read_parquet(data / "prompts/train.parquet")
    with pytest.raises(DamagedChunkError, match=chunk.name):
        EmbeddingStore(manifest, table).row(0)
    assert EmbeddingStore(manifest, table, is_verified=True).row(0)
