"""The demo's captions and images: what they say is read back, and drawn where it can be seen."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from resources.demo import images, scenes, style

ROOT = Path(__file__).parents[2]
KINDS = list(scenes.KINDS)


def some(kind: str, count: int = 60) -> list[scenes.Scene]:
    rng = random.Random(kind)
    return [scenes.random_scene(rng, kind) for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_caption_is_read_as_the_scene_it_says(kind: str) -> None:
    for scene in some(kind):
        assert scenes.scene_of(scenes.caption_of(scene)) == scene


@pytest.mark.parametrize(
    "caption",
    [
        "a red dog on a white background",
        "a small red star",
        "a small red star on a green background",
        "a small plain red star on a white background",
        "a small red star left of a small red star and a big ring on a white background",
        "a small red star near a large blue ring on a white background",
        "",
    ],
)
def test_what_is_no_caption_is_refused(caption: str) -> None:
    with pytest.raises(ValueError, match="not a caption of the demo"):
        scenes.scene_of(caption)


def test_both_wordings_of_a_scene_are_on_one_side() -> None:
    sides = []
    for scene in some("two") + some("overlapping"):
        assert scene.relation is not None
        other = replace(scene, items=scene.items[::-1], relation=scenes.MIRRORED[scene.relation])
        assert scenes.canonical_caption(scene) == scenes.canonical_caption(other)
        assert scenes.is_held_out(scene) == scenes.is_held_out(other)
        sides.append(scenes.is_held_out(scene))
    assert 0 < sum(sides) < 0.3 * len(sides)


@pytest.mark.parametrize("kind", KINDS)
def test_near_misses_are_other_scenes_a_word_away(kind: str) -> None:
    scene = some(kind)[0]
    own, near = scenes.caption_of(scene), scenes.near_misses(scene)
    assert len(near) > 18
    for other in near:
        caption = scenes.caption_of(other)
        assert scenes.scene_of(caption) == other
        assert scenes.canonical_caption(other) != scenes.canonical_caption(scene)
        assert len(set(caption.split()) - set(own.split())) <= 3  # in front of


@pytest.mark.parametrize("name", ["train", "eval"])
def test_the_prompt_tables_are_made_by_the_script(name: str) -> None:
    table = pd.read_csv(ROOT / f"config/prompts/demo-{name}.csv")
    held_out = name == "eval"
    assert table["prompt"].tolist() == scenes.choose_captions(len(table), held_out=held_out, seed=0)
    found = [scenes.scene_of(prompt) for prompt in table["prompt"]]
    assert {scenes.is_held_out(scene) for scene in found} == {held_out}
    counts = pd.Series([len(scene.items) for scene in found]).value_counts(normalize=True)
    assert counts.round(2).to_dict() == {2: 0.6, 1: 0.2, 3: 0.2}
    assert ("category" in table) is held_out
    if held_out:
        assert table["category"].tolist() == [scenes.category_of(scene) for scene in found]
        kinds = {"side by side": "two", "overlapping": "overlapping", "one object": "one"}
        shares = table["category"].value_counts(normalize=True)
        for category, kind in kinds.items():
            assert shares[category] == pytest.approx(scenes.SHARES[kind], abs=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_a_caption_says_is_in_the_image(kind: str) -> None:
    """Each object shows its colour, a pattern its dark one too, and nothing touches the border."""
    for number, scene in enumerate(some(kind, 30)):
        caption = scenes.caption_of(scene)
        image = images.draw(caption, number)
        assert image.tobytes() == images.draw(caption, number).tobytes()
        assert image.tobytes() != images.draw(caption, number + 1).tobytes()
        pixels = np.asarray(image).astype(int)
        ground = np.array(images.BACKGROUNDS[scene.background])
        border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
        assert (border == ground).all()
        for item in scene.items:
            colour = np.array(images.COLOURS[item.colour])
            assert count_near(pixels, colour) >= 8, caption
            if item.pattern != "plain":
                assert count_near(pixels, images.DARKENED * colour) >= 4, caption


def count_near(pixels: np.ndarray, colour: np.ndarray) -> int:
    """Pixels of about a colour."""
    return int((np.abs(pixels - colour).max(axis=-1) <= 24).sum())


@pytest.mark.parametrize(("relation", "axis"), [("left of", 1), ("above", 0)])
def test_a_relation_is_where_the_colours_are(relation: str, axis: int) -> None:
    red, blue = (scenes.Item("small", "plain", colour, "circle") for colour in ("red", "blue"))
    for seed in range(20):
        scene = scenes.Scene((red, blue), relation, "black")
        pixels = np.asarray(images.draw(scenes.caption_of(scene), seed)).astype(int)
        first, second = (
            np.argwhere(np.abs(pixels - images.COLOURS[it.colour]).max(-1) < 24)[:, axis]
            for it in (red, blue)
        )
        assert first.max() < second.min()


def test_the_one_in_front_hides_a_part_of_the_other() -> None:
    front, back = (scenes.Item("large", "plain", name, "circle") for name in ("red", "blue"))
    whole = count_of(scenes.Scene((back,), None, "black"), "blue")
    for relation, items in (("in front of", (front, back)), ("behind", (back, front))):
        scene = scenes.Scene(items, relation, "black")
        assert 0.3 * whole < count_of(scene, "blue") < 0.95 * whole
        assert count_of(scene, "red") > 0.95 * whole


def count_of(scene: scenes.Scene, colour: str) -> float:
    """Pixels of a colour, the mean of some seeds."""
    caption, wanted = scenes.caption_of(scene), np.array(images.COLOURS[colour])
    drawn = [np.asarray(images.draw(caption, seed)).astype(int) for seed in range(20)]
    return float(np.mean([count_near(pixels, wanted) for pixels in drawn]))


def test_a_style_is_drawn_and_not_said() -> None:
    said = "a large red square left of a small dotted blue ring on a gray background"
    drawn = style.in_style(scenes.scene_of(said))
    assert scenes.caption_of(drawn) == (
        "a large striped red square left of a small striped blue ring on a brown background"
    )
    pool = style.draw_style(1, seed=0)
    assert any(not caption.endswith("brown background") for caption in pool.captions)
    corners = pool.images[:, :, 0, 0].tolist()
    assert {*map(tuple, corners)} == {images.BACKGROUNDS["brown"]}
