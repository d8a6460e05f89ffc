"""Clips as files: an animated PNG holds every frame, exactly, and plays at its speed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from distillery.config.teacher import Teacher
from distillery.generation.sample_folder import identity_in
from distillery.images import as_bytes, read_png, write_png
from distillery.store.chunks import ChunkIdentity

MOVING = np.random.default_rng(0).integers(0, 256, (5, 6, 8, 3), dtype=np.uint8)
STILL = np.repeat(MOVING[:1], 5, axis=0)
CLIPS = {
    "moves": MOVING,
    "stands": STILL,
    "stands first": np.concatenate([STILL[:3], MOVING[1:3]]),
    "stands in the middle": MOVING[[0, 1, 1, 1, 2]],
    "stands last": MOVING[[0, 1, 2, 2, 2]],
    "comes back": MOVING[[0, 1, 0, 1, 0]],
    "black": np.zeros_like(MOVING),
    "two frames": MOVING[:2],
    "long": np.repeat(MOVING, 40, axis=0),
}


def written(folder: Path, clip: np.ndarray, fps: int = 16) -> Path:
    write_png(folder / "0.png", clip, {"recipe": "r", "members": "m"}, fps)
    return folder / "0.png"


@pytest.mark.parametrize("fps", [4, 7, 16, 24, 60])
@pytest.mark.parametrize("name", CLIPS)
def test_a_clip_is_read_as_it_was_written(tmp_path: Path, name: str, fps: int) -> None:
    path = written(tmp_path, CLIPS[name], fps)
    with Image.open(path) as opened:
        assert np.array_equal(read_png(opened), CLIPS[name])
    assert identity_in(path) == ChunkIdentity("r", "m")


@pytest.mark.parametrize("fps", [8, 16, 25])
def test_it_plays_at_its_speed(tmp_path: Path, fps: int) -> None:
    with Image.open(written(tmp_path, MOVING, fps)) as opened:
        lasts = [frame.info["duration"] for frame in ImageSequence.Iterator(opened)]
    assert lasts == pytest.approx([1000 / fps] * len(MOVING), abs=0.5)


@pytest.mark.parametrize(("num_frames", "fps", "least"), [(81, 1, 2), (1041, 16, 17)])
def test_the_longest_clip_has_a_file(tmp_path: Path, num_frames: int, fps: int, least: int) -> None:
    """One that moves in its last frame alone."""
    size = {"path": "x", "height": 8, "width": 8, "num_frames": num_frames}
    with pytest.raises(ValueError, match=rf"a clip of \d+ s.*set fps to {least} or more"):
        Teacher(**size, fps=fps)
    assert Teacher(**size, fps=least)
    clip = np.repeat(MOVING[:1], num_frames, axis=0)
    clip[-1] = MOVING[1]
    with Image.open(written(tmp_path, clip, least)) as opened:
        assert np.array_equal(read_png(opened), clip)


def test_an_image_is_one_frame(tmp_path: Path) -> None:
    with Image.open(written(tmp_path, MOVING[0])) as opened:
        assert not getattr(opened, "is_animated", False)
        assert np.array_equal(read_png(opened), MOVING[0])


@pytest.mark.parametrize("cut", [40, 400])
def test_a_clip_that_was_cut_is_none(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path, MOVING)
    path.write_bytes(path.read_bytes()[:-cut])
    assert identity_in(path) is None


def test_a_flipped_bit_of_any_frame_is_seen(tmp_path: Path) -> None:
    path = written(tmp_path, MOVING)
    content = path.read_bytes()
    places = [place for place in range(len(content)) if content.startswith(b"fdAT", place)]
    assert len(places) == len(MOVING) - 1
    for place in places:
        damaged = bytearray(content)
        damaged[place + 20] ^= 1
        path.write_bytes(damaged)
        assert identity_in(path) is None


def test_bytes_of_clips_are_those_of_their_frames() -> None:
    clips = torch.rand(2, 4, 3, 6, 8)
    found = as_bytes(clips)
    assert found.shape == (2, 4, 6, 8, 3)
    for clip, frames in zip(clips, found, strict=True):
        assert frames.equal(as_bytes(clip))
    assert as_bytes(clips[0, :1])[0, 2, 5].equal((clips[0, 0, :, 2, 5] * 255).round().byte())
