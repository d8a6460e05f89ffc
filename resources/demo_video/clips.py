"""Clips of the demo's captions: one object, or two side by side, that move.

Everything here is a pure function of (caption, seed). The caption fixes what is seen, the seed how
it moves: in a line, at one speed, turned back at the border. Two objects move together, across the
line between them, so that one stays left of the other.
"""

import math
import random

import numpy as np
from PIL import Image
from resources.demo.images import (
    BACKGROUNDS,
    DIRECTIONS,
    IMAGE_PX,
    MARGIN_PX,
    SUPERSAMPLING,
    Placement,
    Point,
    place_items,
    random_for,
    stamp_of,
)
from resources.demo.pool import PER_CHUNK, Chunk, scene_number
from resources.demo.scenes import CLIP_SHARES, caption_of, scene_of, training_scene

CLIP_PX = 64
NUM_FRAMES = 9
# Objects stand as in an image of IMAGE_PX, which is then drawn smaller: lengths are in its pixels.
SPEED_PX = (3.0, 6.0)
# Of two objects, away from the line that stands across theirs.
MAX_TILT_RAD = math.radians(20.0)


def draw_clip(caption: str, seed: int) -> np.ndarray:
    """Draw a caption as a clip, uint8 (f, h, w, 3), the same for the same seed.

    Raises:
        ValueError: the caption is none of ours.
    """
    scene, rng = scene_of(caption), random_for(caption, seed)
    places = place_items(scene, rng)
    scale = SUPERSAMPLING * CLIP_PX / IMAGE_PX
    stamps = [stamp_of(item, it, scale) for item, it in zip(scene.items, places, strict=True)]
    frames = []
    for dx, dy in moves(places, scene.relation, rng):
        image = Image.new("RGB", (SUPERSAMPLING * CLIP_PX,) * 2, BACKGROUNDS[scene.background])
        for stamp, (x, y) in zip(stamps, (place.centre for place in places), strict=True):
            stamp.put(image, (x + dx, y + dy))
        frames.append(np.asarray(image.reduce(SUPERSAMPLING)))
    return np.stack(frames)


def moves(places: tuple[Placement, ...], relation: str | None, rng: random.Random) -> list[Point]:
    """Return how far the items of a scene have moved in each frame, nothing in the first."""
    if relation is None:
        angle = rng.uniform(0.0, 2 * math.pi)
    else:
        across = math.pi / 2 if DIRECTIONS[relation][0] == 0 else 0.0
        angle = across + rng.choice((0.0, math.pi)) + rng.uniform(-MAX_TILT_RAD, MAX_TILT_RAD)
    speed = rng.uniform(*SPEED_PX)
    axes = []
    for axis, along in enumerate((math.cos(angle), math.sin(angle))):
        low = MARGIN_PX - min(place.centre[axis] - place.radius_px for place in places)
        high = IMAGE_PX - MARGIN_PX - max(place.centre[axis] + place.radius_px for place in places)
        axes.append([turned_back(along * speed * t, low, high) for t in range(NUM_FRAMES)])
    return list(zip(*axes, strict=True))


def turned_back(way: float, low: float, high: float) -> float:
    """Return where one is after a way from 0 that turns back at low and at high."""
    width = max(high - low, 1e-6)
    phase = (way - low) % (2 * width)
    return low + min(phase, 2 * width - phase)


def draw_chunk(chunk: int, seed: int) -> Chunk:
    """Draw one chunk of training clips (n, 3, f, h, w)."""
    rng = random.Random(f"{seed}:{chunk}")  # noqa: S311 - no secrets
    scenes = [training_scene(rng, CLIP_SHARES) for _ in range(PER_CHUNK)]
    captions = [caption_of(scene) for scene in scenes]
    clips = np.stack([draw_clip(caption, rng.getrandbits(32)) for caption in captions])
    return clips.transpose(0, 4, 1, 2, 3), captions, [scene_number(scene) for scene in scenes]
