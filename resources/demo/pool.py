"""The training images of the demo, drawn in parallel and kept in memory."""

import multiprocessing
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from resources.demo.images import IMAGE_PX, draw
from resources.demo.scenes import (
    BACKGROUNDS,
    MIRRORED,
    RELATIONS,
    WORDS,
    Scene,
    canonical_caption,
    caption_of,
    digest_of,
    exchanged,
    has_distinct_items,
    is_held_out,
    training_scene,
    with_word,
)

# Images stand in groups whose captions differ from the group's first by one edit: a contrastive
# batch made of whole groups holds its own hard negatives.
GROUP = 8
GROUPS_PER_CHUNK = 32
PER_CHUNK = GROUP * GROUPS_PER_CHUNK

Chunk = tuple[np.ndarray, list[str], list[int]]
"""Images, their captions, and numbers that captions of one scene share."""


@dataclass(frozen=True)
class Pool:
    """Images with their captions, in groups of neighbours."""

    images: torch.Tensor
    """uint8, (images, 3, 96, 96), or clips (clips, 3, f, h, w)."""
    captions: list[str]
    scenes: torch.Tensor
    """int64, (images,): equal for captions that describe the same scene."""


def _edit_word(scene: Scene, rng: random.Random) -> Scene:
    """Change one word of one item."""
    name, words = rng.choice(list(WORDS.items()))
    return with_word(scene, rng.randrange(len(scene.items)), name, rng.choice(words))


def _edit_ground(scene: Scene, rng: random.Random) -> Scene:
    """Change the background."""
    return replace(scene, background=rng.choice(BACKGROUNDS))


def _edit_relation(scene: Scene, rng: random.Random) -> Scene:
    """Change the relation."""
    return replace(scene, relation=rng.choice(RELATIONS[len(scene.items)]))


def _exchange_word(scene: Scene, rng: random.Random) -> Scene:
    """Exchange one word between two items."""
    one, other = rng.sample(range(len(scene.items)), 2)
    return exchanged(scene, rng.choice(list(WORDS)), one, other)


def _mirror(scene: Scene, rng: random.Random) -> Scene:
    """Let the items change sides."""
    del rng
    assert scene.relation is not None
    return replace(scene, relation=MIRRORED[scene.relation])


def _is_valid(scene: Scene) -> bool:
    """Tell whether a training image may show this scene."""
    return has_distinct_items(scene) and not is_held_out(scene)


def neighbours(rng: random.Random) -> list[Scene]:
    """Return a group: a random training scene and distinct ones that differ from it by one edit."""
    base = training_scene(rng)
    edits: list[Callable[[Scene, random.Random], Scene]] = [_edit_word, _edit_word, _edit_ground]
    if base.relation is not None:
        edits += [_edit_word, _exchange_word, _exchange_word, _edit_relation, _mirror]
    group = {canonical_caption(base): base}
    while len(group) < GROUP:
        scene = rng.choice(edits)(base, rng)
        if _is_valid(scene):
            group.setdefault(canonical_caption(scene), scene)
    return list(group.values())


def scene_number(scene: Scene) -> int:
    """Return a number that both wordings of a scene share, and no other scene has."""
    return int.from_bytes(digest_of(scene)[:7], "big")


def draw_chunk(chunk: int, seed: int) -> Chunk:
    """Draw one chunk of images (n, 3, 96, 96)."""
    rng = random.Random(f"{seed}:{chunk}")  # noqa: S311 - no secrets
    captions: list[str] = []
    scenes: list[int] = []
    for _ in range(GROUPS_PER_CHUNK):
        for scene in neighbours(rng):
            captions.append(caption_of(scene))
            scenes.append(scene_number(scene))
    images = np.empty((len(captions), 3, IMAGE_PX, IMAGE_PX), dtype=np.uint8)
    for i, caption in enumerate(captions):
        image_seed = rng.getrandbits(32)
        images[i] = np.asarray(draw(caption, image_seed)).transpose(2, 0, 1)
    return images, captions, scenes


def draw_pool(
    num_images: int,
    *,
    seed: int,
    workers: int,
    draw_chunk: Callable[[int, int], Chunk] = draw_chunk,
) -> Pool:
    """Draw the training pool; its content depends on the seed, not on the number of workers.

    `draw_chunk` takes a chunk's number and the seed. The count is rounded up to whole chunks of 256
    images. One-object captions are some 1,340 in all, so they come back often with other positions;
    most of the millions of others never do.
    """
    num_chunks = -(-num_images // PER_CHUNK)
    images = torch.empty(0, dtype=torch.uint8)
    captions: list[str] = []
    scenes: list[int] = []
    with multiprocessing.get_context("fork").Pool(workers) as processes:
        chunks = processes.imap(partial(draw_chunk, seed=seed), range(num_chunks))
        for index, (drawn, texts, numbers) in enumerate(chunks):
            if index == 0:
                images = torch.empty((num_chunks * PER_CHUNK, *drawn.shape[1:]), dtype=torch.uint8)
            images[index * PER_CHUNK : (index + 1) * PER_CHUNK] = torch.from_numpy(drawn)
            captions += texts
            scenes += numbers
    return Pool(images, captions, torch.tensor(scenes))
