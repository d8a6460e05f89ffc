"""Embeddings are hashed by who reads them first, unless another process of the job does that."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from distillery.store.chunks import DamagedChunkError
from distillery.store.embeddings import EmbeddingStore


def test_a_damaged_chunk_is_seen_at_its_first_row(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "embeddings", tmp_path / "embeddings")
    manifest = tmp_path / "embeddings/train/manifest.json"
    chunk = sorted(manifest.parent.rglob("chunk-*"))[0]
    content = bytearray(chunk.read_bytes())
    content[-1] ^= 1
    chunk.write_bytes(content)
    table = pd.read_parquet(data / "prompts/train.parquet")
    with pytest.raises(DamagedChunkError, match=chunk.name):
        EmbeddingStore(manifest, table).row(0)
    assert EmbeddingStore(manifest, table, is_verified=True).row(0)
