"""What the demo's captions say: one, two or three coloured objects, plain, striped or dotted.

    python -m resources.demo.scenes --prompts config/prompts    # writes the prompt tables

A caption names one object ("a large striped green hexagon on a gray background"), two that stand
side by side or overlap ("a small red star in front of a large blue ring on a white background"),
or three ("a small red star above a large blue ring and a small dotted pink heart on a black
background", the last two from left to right). It fixes everything that can be read off an image.
One scene in eight is held out, chosen by a hash of its caption: no training stage ever sees it.
"""

import argparse
import csv
import hashlib
import itertools
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

SIZES = ("small", "large")
PATTERNS = ("plain", "striped", "dotted")
COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink")
SHAPES = ("circle", "ring", "square", "triangle", "hexagon", "star", "cross", "heart")
WORDS = {"size": SIZES, "pattern": PATTERNS, "colour": COLOURS, "shape": SHAPES}
BACKGROUNDS = ("white", "gray", "black", "brown")

MIRRORED = {
    "left of": "right of",
    "right of": "left of",
    "above": "below",
    "below": "above",
    "in front of": "behind",
    "behind": "in front of",
}
SIDE_BY_SIDE = ("left of", "right of", "above", "below")
OVERLAPPING = ("in front of", "behind")
STACKED = ("above", "below")
# Relations by kind of scene, and each kind's share of the captions.
KINDS: dict[str, tuple[int, tuple[str | None, ...], float]] = {
    "one": (1, (None,), 0.2),
    "two": (2, SIDE_BY_SIDE, 0.4),
    "overlapping": (2, OVERLAPPING, 0.2),
    "three": (3, STACKED, 0.2),
}
SHARES = {kind: share for kind, (_, _, share) in KINDS.items()}
# What the clips of resources/demo_video show.
CLIP_SHARES = {"one": 0.5, "two": 0.5}
RELATIONS: dict[int, tuple[str, ...]] = {1: (), 2: SIDE_BY_SIDE + OVERLAPPING, 3: STACKED}
HELD_OUT_ONE_IN = 8


@dataclass(frozen=True)
class Item:
    """One object, as its words; "plain" is not said."""

    size: str
    pattern: str
    colour: str
    shape: str


@dataclass(frozen=True)
class Scene:
    """What a caption says: up to three items and the relation of the first to the others."""

    items: tuple[Item, ...]
    relation: str | None
    background: str


def caption_of(scene: Scene) -> str:
    """Return the caption of a scene."""
    first, *others = (_phrase(item) for item in scene.items)
    objects = f"{first} {scene.relation} {' and '.join(others)}" if others else first
    return f"{objects} on a {scene.background} background"


def _phrase(item: Item) -> str:
    """An item as a caption says it."""
    words = (getattr(item, field.name) for field in fields(item))
    return " ".join(("a", *(word for word in words if word != "plain")))


def scene_of(caption: str) -> Scene:
    """Return the scene that a caption describes.

    Raises:
        ValueError: the caption is none of ours.
    """
    objects, _, background = caption.removesuffix(" background").rpartition(" on a ")
    relation = next((r for r in MIRRORED if f" {r} a " in objects), None)
    first, _, others = objects.partition(f" {relation} ") if relation else (objects, "", "")
    phrases = [first, *(others.split(" and ") if others else ())]
    scene = Scene(tuple(map(_item, phrases)), relation, background)
    known = background in BACKGROUNDS and all(
        getattr(item, name) in words for item in scene.items for name, words in WORDS.items()
    )
    if not known or len(phrases) > 3 or caption_of(scene) != caption:
        raise ValueError(f"not a caption of the demo: {caption!r}")
    return scene


def _item(phrase: str) -> Item:
    """The item of a phrase; a word that no item has is left to the caller to refuse."""
    words = phrase.split()[1:]
    if len(words) == 3:
        words.insert(1, "plain")
    return Item(*(words + [""] * 4)[:4])


def canonical_caption(scene: Scene) -> str:
    """Return one caption for the two wordings of a scene ("A left of B" is "B right of A")."""
    if len(scene.items) == 2 and scene.relation in ("right of", "below", "behind"):
        scene = Scene(scene.items[::-1], MIRRORED[scene.relation], scene.background)
    return caption_of(scene)


def category_of(scene: Scene) -> str:
    """Return what the report's table by category calls a scene: how many objects, and how."""
    match len(scene.items):
        case 1:
            return "one object"
        case 2:
            return "overlapping" if scene.relation in OVERLAPPING else "side by side"
        case _:
            return "three objects"


def digest_of(scene: Scene) -> bytes:
    """Return a hash of what a scene shows, the same for both of its wordings."""
    return hashlib.sha256(canonical_caption(scene).encode()).digest()


def is_held_out(scene: Scene) -> bool:
    """Tell whether a scene is kept from all training; both of its wordings are, or neither."""
    return int.from_bytes(digest_of(scene)[:8], "big") % HELD_OUT_ONE_IN == 0


def has_distinct_items(scene: Scene) -> bool:
    """Tell whether all items differ in colour or shape."""
    return len({(item.colour, item.shape) for item in scene.items}) == len(scene.items)


def random_scene(rng: random.Random, kind: str) -> Scene:
    """Return a scene of a kind (a key of KINDS), its items distinct."""
    num_items, relations, _ = KINDS[kind]
    while True:
        items = tuple(
            Item(*(rng.choice(words) for words in WORDS.values())) for _ in range(num_items)
        )
        scene = Scene(items, rng.choice(relations), rng.choice(BACKGROUNDS))
        if has_distinct_items(scene):
            return scene


def training_scene(rng: random.Random, shares: Mapping[str, float] = SHARES) -> Scene:
    """Return a random scene that is not held out."""
    while True:
        scene = random_scene(rng, rng.choices(list(shares), list(shares.values()))[0])
        if not is_held_out(scene):
            return scene


def near_misses(scene: Scene) -> list[Scene]:
    """Return the other scenes that differ from one by a word or by one exchange of two words."""
    near = [replace(scene, background=ground) for ground in BACKGROUNDS]
    near += [replace(scene, relation=other) for other in RELATIONS[len(scene.items)]]
    numbers = range(len(scene.items))
    for name, words in WORDS.items():
        near += [with_word(scene, index, name, word) for index in numbers for word in words]
        near += [exchanged(scene, name, *pair) for pair in itertools.combinations(numbers, 2)]
    own = canonical_caption(scene)
    return [other for other in near if canonical_caption(other) != own]


def with_word(scene: Scene, index: int, name: str, word: str) -> Scene:
    """Return a scene with one word of one item changed; `name` is a key of WORDS."""
    items = list(scene.items)
    items[index] = replace(items[index], **{name: word})
    return replace(scene, items=tuple(items))


def exchanged(scene: Scene, name: str, one: int, other: int) -> Scene:
    """Return a scene in which two items have exchanged one word."""
    words = [getattr(scene.items[index], name) for index in (one, other)]
    return with_word(with_word(scene, one, name, words[1]), other, name, words[0])


def choose_captions(
    num_captions: int, *, held_out: bool, seed: int, shares: Mapping[str, float] = SHARES
) -> list[str]:
    """Return captions of distinct scenes from one side of the split, kinds by their shares.

    Where there are too few scenes of one object, there are more of two.
    """
    rng = random.Random(seed)  # noqa: S311 - no secrets
    counts = {kind: round(share * num_captions) for kind, share in shares.items()}
    side = [scene for scene in _single_scenes() if is_held_out(scene) == held_out]
    counts["one"] = min(counts["one"], len(side))
    counts["two"] += num_captions - sum(counts.values())
    chosen = {canonical_caption(s): caption_of(s) for s in rng.sample(side, counts.pop("one"))}
    for kind, count in counts.items():
        until = len(chosen) + count
        while len(chosen) < until:
            scene = random_scene(rng, kind)
            if is_held_out(scene) == held_out:
                chosen.setdefault(canonical_caption(scene), caption_of(scene))
    captions = list(chosen.values())
    rng.shuffle(captions)
    return captions


def _single_scenes() -> Iterable[Scene]:
    """All scenes of one object."""
    for *words, background in itertools.product(*WORDS.values(), BACKGROUNDS):
        yield Scene((Item(*words),), None, background)


def write_prompts(path: Path, name: str, captions: Sequence[str], *, scored: bool) -> None:
    """Write a prompt table; one whose images are scored says of which category each prompt is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("prompt_id", "prompt", *(["category"] if scored else [])))
        for number, text in enumerate(captions, start=1):
            category = [category_of(scene_of(text))] if scored else []
            writer.writerow((f"{name}-{number:04d}", text, *category))


def main(argv: Sequence[str] | None = None) -> int:
    """Write the prompts of both demos: {demo}-train.csv, and {demo}-eval.csv of held-out scenes."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--prompts", type=Path, default=Path("config/prompts"))
    parser.add_argument("--num-train", type=int, default=1024)
    parser.add_argument("--num-eval", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    for demo, shares in (("demo", SHARES), ("demo-video", CLIP_SHARES)):
        for name, count in (("train", args.num_train), ("eval", args.num_eval)):
            held_out = name == "eval"
            captions = choose_captions(count, held_out=held_out, seed=args.seed, shares=shares)
            write_prompts(args.prompts / f"{demo}-{name}.csv", name, captions, scored=held_out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
