"""Images of the demo's captions: coloured shapes on a plain background.

Everything here is a pure function of (caption, seed): the same image on every machine. The seed
moves, scales and turns the objects; the caption fixes everything that can be read off an image.
"""

import hashlib
import math
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw
from resources.demo.scenes import OVERLAPPING, Item, Scene, scene_of

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
DIRECTIONS = {"left of": (0, True), "right of": (0, False), "above": (1, True), "below": (1, False)}

MARGIN_PX = 2.0
GAP_PX = 5.0
# Sideways play of two related objects: small against their distance of 25 px or more, so that
# "left of" never looks like "above".
SIDEWAYS_PX = 7.0
MAX_TURN_RAD = math.radians(15.0)
# Of two overlapping objects the one behind has its centre near the rim of the one in front: at
# this part of its radius, and up to that part of their own further out.
NEAR_RIM, BEYOND_RIM = 0.75, 0.3
# Stripes and dots are the object's colour, darkened.
DARKENED = 0.45
STRIPES_PX, DOTS_PX, DOT_RADIUS_PX = 8.0, 7.5, 2.2
RING_HOLE = 0.55
# A circle fills its radius, a square does not: this keeps their sizes alike.
ROUND = 0.92

Point = tuple[float, float]
Colour = tuple[int, int, int]


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


def _circle(radius: float = ROUND, num_points: int = 64) -> tuple[Point, ...]:
    """Return a circle as a polygon that nobody can tell from one at this size."""
    return tuple((radius * x, radius * y) for x, y in _regular(num_points))


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


# Outlines in the unit circle, y downwards; a ring has its hole besides.
OUTLINES: dict[str, tuple[Point, ...]] = {
    "circle": _circle(),
    "ring": _circle(),
    "square": tuple(
        (math.sqrt(0.5) * x, math.sqrt(0.5) * y) for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))
    ),
    "triangle": _regular(3),
    "hexagon": _regular(6),
    "star": _regular(5, inner=0.42),
    "cross": _cross(),
    "heart": _heart(),
}


def draw(caption: str, seed: int) -> Image.Image:
    """Draw a caption as an RGB image of 96 by 96 pixels, the same for the same seed.

    Raises:
        ValueError: the caption is none of ours.
    """
    scene = scene_of(caption)
    image = Image.new("RGB", (SUPERSAMPLING * IMAGE_PX,) * 2, BACKGROUNDS[scene.background])
    placed = list(zip(scene.items, place_items(scene, random_for(caption, seed)), strict=True))
    for item, place in placed[::-1] if scene.relation == "in front of" else placed:
        stamp_of(item, place, SUPERSAMPLING).put(image, place.centre)
    return image.reduce(SUPERSAMPLING)


def random_for(caption: str, seed: int) -> random.Random:
    """Return the random numbers of one picture of a caption."""
    digest = hashlib.sha256(f"{seed}:{caption}".encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))  # noqa: S311 - no secrets


def place_items(scene: Scene, rng: random.Random) -> tuple[Placement, ...]:
    """Choose where the items of a scene stand, inside the image; only OVERLAPPING ones touch."""
    radii = [rng.uniform(*RADII_PX[item.size]) for item in scene.items]
    turns = [rng.uniform(-MAX_TURN_RAD, MAX_TURN_RAD) for _ in scene.items]
    if scene.relation is None:
        centres = [(_free(radii[0], rng), _free(radii[0], rng))]
    elif scene.relation in OVERLAPPING:
        centres = _overlapping(radii, scene.relation == "in front of", rng)
    elif len(radii) == 3:
        centres = _triangle(radii, scene.relation, rng)
    else:
        axis, first_leads = DIRECTIONS[scene.relation]
        along = _in_line(radii, first_leads, rng)
        across = [IMAGE_PX / 2 + rng.uniform(-SIDEWAYS_PX, SIDEWAYS_PX) for _ in range(2)]
        pairs = zip(along, across, strict=True)
        centres = [(a, c) if axis == 0 else (c, a) for a, c in pairs]
    return tuple(Placement(*p) for p in zip(centres, radii, turns, strict=True))


def _free(radius: float, rng: random.Random) -> float:
    """A coordinate anywhere in the image."""
    low = MARGIN_PX + radius
    return rng.uniform(low, IMAGE_PX - low)


def _in_line(radii: list[float], first_leads: bool, rng: random.Random) -> tuple[float, float]:
    """Coordinates of two items one after the other on an axis, clear of each other."""
    lead = radii[0 if first_leads else 1]
    slack = IMAGE_PX - 2 * MARGIN_PX - GAP_PX - 2 * sum(radii)
    before, until = sorted((rng.uniform(0.0, slack), rng.uniform(0.0, slack)))
    near = MARGIN_PX + lead + before
    far = near + sum(radii) + GAP_PX + (until - before)
    return (near, far) if first_leads else (far, near)


def _triangle(radii: list[float], relation: str, rng: random.Random) -> list[Point]:
    """The first item above or below the two others, which stand from left to right."""
    row = max(radii[1:])
    y_first, y_row = _in_line([radii[0], row], relation == "above", rng)
    x_first = IMAGE_PX / 2 + rng.uniform(-SIDEWAYS_PX, SIDEWAYS_PX)
    return [(x_first, y_first), *((x, y_row) for x in _in_line(radii[1:], True, rng))]


def _overlapping(radii: list[float], first_in_front: bool, rng: random.Random) -> list[Point]:
    """Two items in any direction of each other, the one behind near the rim of the other."""
    front, back = radii if first_in_front else radii[::-1]
    distance = NEAR_RIM * front + rng.uniform(0.0, BEYOND_RIM) * back
    angle = rng.uniform(0.0, 2 * math.pi)
    centres: list[list[float]] = [[], []]
    for offset in (distance * math.cos(angle), distance * math.sin(angle)):
        low = MARGIN_PX + max(radii[0], radii[1] - offset)
        high = IMAGE_PX - MARGIN_PX - max(radii[0], radii[1] + offset)
        first = rng.uniform(low, high)
        centres[0].append(first)
        centres[1].append(first + offset)
    return [(x, y) for x, y in centres]


@dataclass(frozen=True)
class Stamp:
    """One item drawn once, to be put on enlarged images."""

    tile: Image.Image
    outline: Image.Image
    scale: float
    """Pixels of the enlarged image for one of the item's placement."""

    def put(self, image: Image.Image, centre: Point) -> None:
        """Put the item on an enlarged image, about a centre in pixels of its placement."""
        half = self.tile.width // 2
        x, y = (round(self.scale * value) - half for value in centre)
        image.paste(self.tile, (x, y), self.outline)


def stamp_of(item: Item, place: Placement, scale: float) -> Stamp:
    """Draw one item in its size and turn: its colour and pattern through its outline."""
    radius = scale * place.radius_px
    half = math.ceil(radius)
    cos, sin = math.cos(place.turn_rad), math.sin(place.turn_rad)

    def turned(points: tuple[Point, ...], unit: float) -> list[Point]:
        """Points about the item's centre, as points of its tile."""
        return [
            (half + unit * (cos * u - sin * v), half + unit * (sin * u + cos * v))
            for u, v in points
        ]

    mask = Image.new("L", (2 * half + 1,) * 2, 0)
    outline = ImageDraw.Draw(mask)
    outline.polygon(turned(OUTLINES[item.shape], radius), fill=255)
    if item.shape == "ring":
        outline.polygon(turned(_circle(RING_HOLE * ROUND), radius), fill=0)
    tile = Image.new("RGB", mask.size, COLOURS[item.colour])
    canvas = ImageDraw.Draw(tile)
    dark = tuple(round(DARKENED * value) for value in COLOURS[item.colour])
    for polygon in _pattern(item.pattern, place.radius_px):
        canvas.polygon(turned(polygon, scale), fill=dark)
    return Stamp(tile, mask, scale)


def _pattern(pattern: str, radius_px: float) -> list[tuple[Point, ...]]:
    """What is darkened of an item, in pixels about its centre: stripes, dots or nothing."""
    if pattern == "striped":
        number, half = math.ceil(radius_px / STRIPES_PX), STRIPES_PX / 4
        middles = [STRIPES_PX * n for n in range(-number, number + 1)]
        r = 1.5 * radius_px
        return [((-r, y - half), (r, y - half), (r, y + half), (-r, y + half)) for y in middles]
    if pattern == "dotted":
        number = math.ceil(radius_px / DOTS_PX)
        steps = range(-number, number + 1)
        dot = _circle(DOT_RADIUS_PX, 16)
        return [
            tuple((u + DOTS_PX * (column + row % 2 / 2), v + DOTS_PX * row) for u, v in dot)
            for row in steps
            for column in steps
        ]
    return []
