"""Captioned images for the demo: one or two coloured shapes on a plain background.

    python -m resources.demo.images --prompts config/prompts    # writes the two prompt tables

Everything here is a pure function of (caption, seed): the same image on every machine. The seed
moves, scales and turns the objects; the caption fixes everything that can be read off an image.

A caption names one object ("a large green hexagon on a gray background") or two and where they
stand ("a small red star left of a large blue ring on a white background"). One scene in eight is
held out, chosen by a hash of its caption: no training stage ever sees it.
"""

import argparse
import csv
import hashlib
import itertools
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image, ImageDraw

IMAGE_PX = 96
SUPERSAMPLING = 4

COLOURS = {
    "red": (220, 35, 35),
    "orange": (250, 140, 20),
    "yellow": (250, 225, 40),
    "green": (30, 160, 60),
    "cyan": (40, 205, 220),
    "blue": (35, 80, 225),
    "purple": (145, 40, 170),
    "pink": (250, 140, 195),
}
BACKGROUNDS = {
    "white": (248, 248, 248),
    "gray": (128, 128, 128),
    "black": (14, 14, 14),
    "brown": (92, 58, 34),
}
# Radius of the circle that holds the object, in pixels: two large ones still fit side by side.
RADII_PX = {"small": (10.0, 12.0), "large": (17.5, 20.0)}
# Each relation as (axis of the image, does the first object come first on that axis).
RELATIONS = {
    "left of": (0, True),
    "right of": (0, False),
    "above": (1, True),
    "below": (1, False),
}
MIRRORED = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}

MARGIN_PX = 2.0
GAP_PX = 5.0
# Sideways play of two related objects: small against their distance of 25 px or more, so that
# "left of" never looks like "above".
SIDEWAYS_PX = 7.0
MAX_TURN_RAD = math.radians(15.0)

ONE_OBJECT_SHARE = 0.2
HELD_OUT_ONE_IN = 8

Point = tuple[float, float]


@dataclass(frozen=True)
class Item:
    """One object, as its three words."""

    size: str
    colour: str
    shape: str


@dataclass(frozen=True)
class Scene:
    """What a caption says: one item, or two and the relation of the first to the second."""

    items: tuple[Item, ...]
    relation: str | None
    background: str


@dataclass(frozen=True)
class Placement:
    """Where one item stands: centre and radius in pixels, turn in radians."""

    centre: Point
    radius_px: float
    turn_rad: float


def _regular(corners: int, inner: float | None = None) -> tuple[Point, ...]:
    """Return a regular polygon (or a star with points inside at `inner`) in the unit circle."""
    count = corners if inner is None else 2 * corners
    radii = [1.0 if inner is None or i % 2 == 0 else inner for i in range(count)]
    angles = [2 * math.pi * i / count - math.pi / 2 for i in range(count)]
    return tuple((r * math.cos(a), r * math.sin(a)) for r, a in zip(radii, angles, strict=True))


def _cross(arm: float = 0.30) -> tuple[Point, ...]:
    """Return a plus sign whose outer corners lie on the unit circle."""
    reach = math.sqrt(1.0 - arm**2)
    quarter = ((arm, -arm), (arm, -reach), (-arm, -reach))
    points: list[Point] = []
    for turn in range(4):
        cos, sin = round(math.cos(turn * math.pi / 2)), round(math.sin(turn * math.pi / 2))
        # Counter-clockwise on the screen: the last corner of a quarter meets the next one's first.
        points += [(cos * x + sin * y, cos * y - sin * x) for x, y in quarter]
    return tuple(points)


def _heart(num_points: int = 48) -> tuple[Point, ...]:
    """Return the usual heart curve, scaled into the unit circle."""
    angles = [2 * math.pi * i / num_points for i in range(num_points)]
    curve = [
        (
            16 * math.sin(t) ** 3,
            -13 * math.cos(t) + 5 * math.cos(2 * t) + 2 * math.cos(3 * t) + math.cos(4 * t) - 2.0,
        )
        for t in angles
    ]
    reach = max(math.hypot(x, y) for x, y in curve)
    return tuple((x / reach, y / reach) for x, y in curve)


# Outlines in the unit circle, y downwards; circle and ring are drawn as ellipses.
OUTLINES: dict[str, tuple[Point, ...]] = {
    "square": tuple(
        (math.sqrt(0.5) * x, math.sqrt(0.5) * y) for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))
    ),
    "triangle": _regular(3),
    "hexagon": _regular(6),
    "star": _regular(5, inner=0.42),
    "cross": _cross(),
    "heart": _heart(),
}
SHAPES = ("circle", "ring", *OUTLINES)
RING_HOLE = 0.55


def caption_of(scene: Scene) -> str:
    """Return the caption of a scene."""
    phrases = [f"a {item.size} {item.colour} {item.shape}" for item in scene.items]
    objects = f" {scene.relation} ".join(phrases) if scene.relation else phrases[0]
    return f"{objects} on a {scene.background} background"


def scene_of(caption: str) -> Scene:
    """Return the scene that a caption describes.

    Raises:
        ValueError: the caption is none of ours.
    """
    objects, _, background = caption.removesuffix(" background").rpartition(" on a ")
    relation = next((r for r in RELATIONS if f" {r} a " in objects), None)
    phrases = objects.split(f" {relation} ") if relation else [objects]
    words = [phrase.split() for phrase in phrases]
    if any(len(w) != 4 for w in words):
        raise ValueError(f"not a caption of the demo: {caption!r}")
    scene = Scene(tuple(Item(*w[1:]) for w in words), relation, background)
    known = background in BACKGROUNDS and all(
        i.size in RADII_PX and i.colour in COLOURS and i.shape in SHAPES for i in scene.items
    )
    if not known or caption_of(scene) != caption:
        raise ValueError(f"not a caption of the demo: {caption!r}")
    return scene


def canonical_caption(scene: Scene) -> str:
    """Return one caption for the two wordings of a scene ("A left of B" is "B right of A")."""
    if scene.relation in ("right of", "below"):
        scene = Scene(scene.items[::-1], MIRRORED[scene.relation], scene.background)
    return caption_of(scene)


def is_held_out(scene: Scene) -> bool:
    """Tell whether a scene is kept from all training; both of its wordings are, or neither."""
    digest = hashlib.sha256(canonical_caption(scene).encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0


def random_scene(rng: random.Random, num_items: int) -> Scene:
    """Return a scene with one or two items; two items differ in colour or shape."""

    def item() -> Item:
        return Item(rng.choice(list(RADII_PX)), rng.choice(list(COLOURS)), rng.choice(list(SHAPES)))

    background = rng.choice(list(BACKGROUNDS))
    first, second = item(), item()
    if num_items == 1:
        return Scene((first,), None, background)
    while (first.colour, first.shape) == (second.colour, second.shape):
        second = item()
    return Scene((first, second), rng.choice(list(RELATIONS)), background)


def training_scene(rng: random.Random) -> Scene:
    """Return a random scene that is not held out."""
    while True:
        scene = random_scene(rng, 1 if rng.random() < ONE_OBJECT_SHARE else 2)
        if not is_held_out(scene):
            return scene


def near_misses(scene: Scene) -> list[Scene]:
    """Return the other scenes that differ from one by a word or by one exchange of two words."""
    words = {"size": tuple(RADII_PX), "colour": tuple(COLOURS), "shape": SHAPES}
    near = [replace(scene, background=ground) for ground in BACKGROUNDS]
    for index, field in itertools.product(range(len(scene.items)), words):
        for word in words[field]:
            items = list(scene.items)
            items[index] = replace(items[index], **{field: word})
            near.append(replace(scene, items=tuple(items)))
    if scene.relation is not None:
        first, second = scene.items
        near += [replace(scene, relation=relation) for relation in RELATIONS]
        for field in words:
            one, other = getattr(first, field), getattr(second, field)
            items = [replace(first, **{field: other}), replace(second, **{field: one})]
            near.append(replace(scene, items=tuple(items)))
    own = canonical_caption(scene)
    return [other for other in near if canonical_caption(other) != own]


def _place(scene: Scene, rng: random.Random) -> tuple[Placement, ...]:
    """Choose where the items of a scene stand, inside the image and clear of each other."""
    radii = [rng.uniform(*RADII_PX[item.size]) for item in scene.items]
    turns = [rng.uniform(-MAX_TURN_RAD, MAX_TURN_RAD) for _ in scene.items]
    if scene.relation is None:
        low = MARGIN_PX + radii[0]
        centre = (rng.uniform(low, IMAGE_PX - low), rng.uniform(low, IMAGE_PX - low))
        return (Placement(centre, radii[0], turns[0]),)
    axis, first_leads = RELATIONS[scene.relation]
    lead, trail = (0, 1) if first_leads else (1, 0)
    slack = IMAGE_PX - 2 * MARGIN_PX - GAP_PX - 2 * sum(radii)
    before, until = sorted((rng.uniform(0.0, slack), rng.uniform(0.0, slack)))
    along = [0.0, 0.0]
    along[lead] = MARGIN_PX + radii[lead] + before
    along[trail] = along[lead] + sum(radii) + GAP_PX + (until - before)
    across = [IMAGE_PX / 2 + rng.uniform(-SIDEWAYS_PX, SIDEWAYS_PX) for _ in range(2)]
    centres = [(a, c) if axis == 0 else (c, a) for a, c in zip(along, across, strict=True)]
    return tuple(Placement(*p) for p in zip(centres, radii, turns, strict=True))


def _draw_item(
    canvas: ImageDraw.ImageDraw, item: Item, place: Placement, ground: tuple[int, int, int]
) -> None:
    """Draw one item on the enlarged canvas."""
    x, y = (SUPERSAMPLING * v for v in place.centre)
    radius = SUPERSAMPLING * place.radius_px
    colour = COLOURS[item.colour]
    if item.shape in ("circle", "ring"):
        # A circle fills its radius, a square does not: 0.92 keeps their sizes alike.
        full = 0.92 * radius
        canvas.ellipse((x - full, y - full, x + full, y + full), fill=colour)
        if item.shape == "ring":
            hole = RING_HOLE * full
            canvas.ellipse((x - hole, y - hole, x + hole, y + hole), fill=ground)
        return
    cos, sin = math.cos(place.turn_rad), math.sin(place.turn_rad)
    outline = OUTLINES[item.shape]
    canvas.polygon(
        [(x + radius * (cos * u - sin * v), y + radius * (sin * u + cos * v)) for u, v in outline],
        fill=colour,
    )


def draw(caption: str, seed: int) -> Image.Image:
    """Draw a caption as an RGB image of 96 by 96 pixels, the same for the same seed.

    Raises:
        ValueError: the caption is none of ours.
    """
    scene = scene_of(caption)
    digest = hashlib.sha256(f"{seed}:{caption}".encode()).digest()
    rng = random.Random(int.from_bytes(digest[:8], "big"))  # noqa: S311 - no secrets
    ground = BACKGROUNDS[scene.background]
    image = Image.new("RGB", (SUPERSAMPLING * IMAGE_PX,) * 2, ground)
    canvas = ImageDraw.Draw(image)
    for item, place in zip(scene.items, _place(scene, rng), strict=True):
        _draw_item(canvas, item, place, ground)
    return image.reduce(SUPERSAMPLING)


def choose_captions(num_captions: int, *, held_out: bool, seed: int) -> list[str]:
    """Return captions of distinct scenes from one side of the split, one- and two-object mixed.

    Raises:
        ValueError: that side has too few one-object scenes.
    """
    rng = random.Random(seed)  # noqa: S311 - no secrets
    num_single = round(ONE_OBJECT_SHARE * num_captions)
    singles = [
        Scene((Item(size, colour, shape),), None, background)
        for size in RADII_PX
        for colour in COLOURS
        for shape in SHAPES
        for background in BACKGROUNDS
    ]
    singles = [scene for scene in singles if is_held_out(scene) == held_out]
    if len(singles) < num_single:
        raise ValueError(f"{num_single} one-object captions asked for, {len(singles)} exist")
    chosen = {canonical_caption(s): caption_of(s) for s in rng.sample(singles, num_single)}
    while len(chosen) < num_captions:
        scene = random_scene(rng, 2)
        if is_held_out(scene) == held_out:
            chosen.setdefault(canonical_caption(scene), caption_of(scene))
    captions = list(chosen.values())
    rng.shuffle(captions)
    return captions


def write_prompts(path: Path, name: str, captions: Sequence[str]) -> None:
    """Write a prompt table with the columns prompt_id and prompt."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("prompt_id", "prompt"))
        writer.writerows((f"{name}-{i:04d}", text) for i, text in enumerate(captions, start=1))


def main(argv: Sequence[str] | None = None) -> int:
    """Write demo-train.csv (1024 training-side captions) and demo-eval.csv (256 held-out ones)."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--prompts", type=Path, default=Path("config/prompts"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    for name, count in (("train", 1024), ("eval", 256)):
        captions = choose_captions(count, held_out=name == "eval", seed=args.seed)
        write_prompts(args.prompts / f"demo-{name}.csv", name, captions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
