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


@dataclass(frozen=True)
class Pool:
    """Images with their captions, in groups of neighbours."""

    images: torch.Tensor
    """uint8, (images, 3, 96, 96)."""
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


def _draw_chunk(chunk: int, seed: int) -> tuple[np.ndarray, list[str], list[int]]:
    """Draw one chunk: images (n, 3, 96, 96), captions, scene numbers."""
    rng = random.Random(f"{seed}:{chunk}")  # noqa: S311 - no secrets
    captions: list[str] = []
    scenes: list[int] = []
    for _ in range(GROUPS_PER_CHUNK):
        for scene in neighbours(rng):
            captions.append(caption_of(scene))
            scenes.append(int.from_bytes(digest_of(scene)[:7], "big"))
    images = np.empty((len(captions), 3, IMAGE_PX, IMAGE_PX), dtype=np.uint8)
    for i, caption in enumerate(captions):
        image_seed = rng.getrandbits(32)
        images[i] = np.asarray(draw(caption, image_seed)).transpose(2, 0, 1)
    return images, captions, scenes


def draw_pool(num_images: int, *, seed: int, workers: int) -> Pool:
    """Draw the training pool; its content depends on the seed, not on the number of workers.

    The count is rounded up to whole chunks of 256 images. One-object captions are some 1,340 in
    all, so they come back often with other positions; most of the millions of others never do.
    """
    per_chunk = GROUP * GROUPS_PER_CHUNK
    num_chunks = -(-num_images // per_chunk)
    images = torch.empty((num_chunks * per_chunk, 3, IMAGE_PX, IMAGE_PX), dtype=torch.uint8)
    captions: list[str] = []
    scenes: list[int] = []
    with multiprocessing.get_context("fork").Pool(workers) as processes:
        chunks = processes.imap(partial(_draw_chunk, seed=seed), range(num_chunks), chunksize=4)
        for index, (drawn, texts, numbers) in enumerate(chunks):
            images[index * per_chunk : (index + 1) * per_chunk] = torch.from_numpy(drawn)
            captions += texts
            scenes += numbers
    return Pool(images, captions, torch.tensor(scenes))
