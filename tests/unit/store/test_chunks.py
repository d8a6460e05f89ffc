"""A chunk carries its own checksum: whatever is wrong with it, it is refused by name."""

import signal
import subprocess
from pathlib import Path

import pytest
import torch

import forks
from distillery.store.chunks import (
    ChunkIdentity,
    DamagedChunkError,
    ForeignChunkError,
    StaleChunkError,
    check_header,
    chunk_folder,
    chunk_path,
    is_intact,
    read_chunk,
    write_chunk,
)

IDENTITY = ChunkIdentity("r" * 64, "m" * 64)
TENSORS = {
    "noisy": torch.arange(24, dtype=torch.float32).reshape(2, 3, 4),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "rows": torch.tensor([1, 2]),
    "empty": torch.zeros(0, 4),
}
METADATA = {"samples": ["a/0", "b/0"]}


@pytest.fixture
def chunk(tmp_path: Path) -> Path:
    path = chunk_path(chunk_folder(tmp_path, IDENTITY.recipe), 7)
    write_chunk(path, TENSORS, IDENTITY, METADATA)
    return path


def test_what_is_written_is_read(chunk: Path) -> None:
    found = read_chunk(chunk, IDENTITY)
    assert found.keys() == TENSORS.keys()
    assert all(found[name].equal(TENSORS[name]) for name in TENSORS)
    assert all(found[name].dtype == TENSORS[name].dtype for name in TENSORS)
    assert chunk.name == "chunk-000007.safetensors"
    assert chunk.parent.name == "r" * 12
    assert is_intact(chunk, IDENTITY)


def test_views_and_gradients_are_stored_by_value(tmp_path: Path) -> None:
    tensor = torch.arange(6.0).reshape(2, 3).T.requires_grad_()
    write_chunk(tmp_path / "a", {"x": tensor, "y": tensor}, IDENTITY, {})
    assert read_chunk(tmp_path / "a", IDENTITY)["x"].equal(tensor)


def test_equal_content_has_equal_bytes(tmp_path: Path) -> None:
    """safetensors writes several metadata keys in an order that changes from call to call."""
    contents = set()
    for attempt in range(20):
        path = tmp_path / str(attempt)
        write_chunk(path, TENSORS, IDENTITY, METADATA)
        contents.add(path.read_bytes())
    assert len(contents) == 1


@pytest.mark.parametrize("size", [0, 5, 30, 200, -1])
def test_a_truncated_chunk_is_damaged(chunk: Path, size: int) -> None:
    chunk.write_bytes(chunk.read_bytes()[:size])
    with pytest.raises(DamagedChunkError, match=r"chunk-000007\.safetensors is damaged"):
        read_chunk(chunk, IDENTITY)
    assert not is_intact(chunk, IDENTITY)


def test_no_flipped_bit_goes_unseen(chunk: Path) -> None:
    content = chunk.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    for position in [*range(8), *range(8, header, 7), *range(header, len(content), 5)]:
        flipped = bytearray(content)
        flipped[position] ^= 1
        if bytes(flipped[8:header]).split() == content[8:header].split():
            continue
        chunk.write_bytes(flipped)
        with pytest.raises((DamagedChunkError, ForeignChunkError), match="chunk-000007"):
            read_chunk(chunk, IDENTITY)


def test_a_missing_chunk_is_named(tmp_path: Path) -> None:
    with pytest.raises(DamagedChunkError, match=r"chunk-000000\.safetensors is missing"):
        read_chunk(chunk_path(tmp_path, 0), IDENTITY)
    assert not is_intact(chunk_path(tmp_path, 0), IDENTITY)


def test_another_safetensors_file_is_no_chunk(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "a")
    with pytest.raises(DamagedChunkError, match="damaged"):
        check_header(tmp_path / "a", IDENTITY)


def test_a_chunk_of_another_recipe_is_refused_everywhere(chunk: Path) -> None:
    other = ChunkIdentity("q" * 64, IDENTITY.members)
    for use in (check_header, read_chunk, is_intact):
        with pytest.raises(ForeignChunkError, match=r"recipe rrrrrrrrrrrr.*recipe is qqqqqqqqqqqq"):
            use(chunk, other)


def test_a_chunk_of_other_members_is_refused_and_may_be_made_again(chunk: Path) -> None:
    other = ChunkIdentity(IDENTITY.recipe, "n" * 64)
    with pytest.raises(StaleChunkError, match="other prompts or samples"):
        read_chunk(chunk, other)
    assert not is_intact(chunk, other)


KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
import torch
import distillery.files as files
from distillery.store.chunks import ChunkIdentity, write_chunk
files._sync = lambda path: os.kill(os.getpid(), signal.SIGKILL)  # all is written, nothing renamed
write_chunk(Path(sys.argv[1]), {"x": torch.zeros(1000)}, ChunkIdentity("r", "m"), {})
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_no_chunk(tmp_path: Path) -> None:
    path = chunk_path(tmp_path, 0)
    code = subprocess.run(
        ["python", "-c", KILLED_WHILE_WRITING, str(path)], env=forks.environ(), check=False
    ).returncode
    assert code == 128 + signal.SIGKILL
    left = list(tmp_path.iterdir())
    assert len(left) == 1, "the temporary file was written"
    assert not list(tmp_path.glob("chunk-*"))
    assert not list(tmp_path.glob("*.safetensors"))
    assert not is_intact(path, ChunkIdentity("r", "m"))
    write_chunk(path, TENSORS, IDENTITY, METADATA)
    assert is_intact(path, IDENTITY)
