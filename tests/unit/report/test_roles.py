"""Which model plays which part, and which are one model under several names."""

from pathlib import Path

import pandas as pd
from PIL import Image, PngImagePlugin

from distillery.files import hash_file
from distillery.measures.manifests import ModelSamples
from distillery.report.roles import Roles, find_roles, find_same, order_models
from quality import MODELS, make_config, quality_with


def test_the_rival_is_the_best_of_the_teachers_models_that_cost_no_more():
    """Not `few`, which costs twice as much, nor `fewer`, which is worse; guided or not."""
    config = make_config(samples={"models": MODELS})
    roles = find_roles(config, quality_with(1, 1, -1, 1))
    assert roles == Roles("student", "teacher", "unguided", "untrained")
    without_scores = Roles("student", "teacher", None, "untrained")
    assert find_roles(config, None) == without_scores


def test_a_guided_student_plays_no_part():
    """It was not trained for guidance, and takes two calls per step."""
    others = {name: {"source": name, "guidance_scale": 2.0} for name in ("student", "untrained")}
    config = make_config(samples={"models": MODELS | others})
    roles = find_roles(config, quality_with(1, 1, -1, 1))
    assert roles == Roles(None, "teacher", None, None)


def test_models_are_ordered_by_the_calls_that_were_made():
    """A network that is told its guidance makes one call per step, whatever the scale."""
    calls = {"few": 4, "teacher": 24, "more": 6, "also few": 4}
    samples = {
        name: ModelSamples(name, Path(name), pd.DataFrame({"network_calls": [number]}))
        for name, number in calls.items()
    }
    assert order_models(samples, "teacher") == ["teacher", "more", "also few", "few"]
    assert order_models(samples, "few")[:2] == ["few", "teacher"]


def drawn(folder, model, shade, calls=2, number=3, last=None):
    """Samples of a model; a file names its model, as those of a run do."""
    folder = folder / model
    folder.mkdir(parents=True)
    for at in range(number):
        colour = (at, (shade if last is None or at < number - 1 else last), 0)
        about = PngImagePlugin.PngInfo()
        about.add_text("recipe", model)
        Image.new("RGB", (4, 4), colour).save(folder / f"{at}.png", pnginfo=about)
    files = [f"{at}.png" for at in range(number)]
    table = pd.DataFrame(
        {"file": files, "sha256": [hash_file(folder / it) for it in files], "steps": calls,
         "guidance_scale": 1.0, "network_calls": calls}
    )  # fmt: skip
    return ModelSamples(model, folder, table)


def test_models_whose_pixels_are_equal_are_one(tmp_path: Path) -> None:
    """Whatever else their files hold; one pixel of the last image is enough to be another."""
    rows = [
        drawn(tmp_path, "teacher", 1, calls=48),
        drawn(tmp_path, "teacher-2-steps-unguided", 2),
        drawn(tmp_path, "nearly", 2, last=3),
        drawn(tmp_path, "untrained", 2),
        drawn(tmp_path, "mine", 2),
        drawn(tmp_path, "student", 4),
    ]
    same = find_same({it.model: it for it in rows}, ("teacher", "student", "untrained", None))
    assert same.kept == {"teacher-2-steps-unguided": "untrained", "mine": "untrained"}
    assert same.label("untrained") == "untrained = teacher, 2 steps, no guidance = mine"
    assert same.shown([it.model for it in rows]) == ["teacher", "nearly", "untrained", "student"]
    assert same.are_same("mine", "teacher-2-steps-unguided")
    assert not same.are_same("mine", "student")
    assert not same.are_same(None, None)


def test_images_that_are_gone_are_not_called_equal(tmp_path: Path) -> None:
    one, other = drawn(tmp_path, "untrained", 2), drawn(tmp_path, "teacher-2-steps", 2)
    other.image(1).path.unlink()
    assert find_same({it.model: it for it in (one, other)}).kept == {}
