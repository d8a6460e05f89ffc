"""The images of a report: which are chosen, how large they are, and the previews."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image, PngImagePlugin

from distillery.files import hash_file
from distillery.measures.manifests import ModelSamples
from distillery.report import html, image_grid
from distillery.report.image_grid import gather_previews
from distillery.run_folder import RunFolder


def test_grid_shows_the_worst_and_nothing_twice():
    rows = [(f"eval-{number:03d}", 0) for number in range(100)]
    table = pd.DataFrame(rows, columns=["prompt_id", "index"])
    scores = table.assign(model="student", clip_score=0.5, rank=1, psnr_db=30.0)
    scores.loc[41, "psnr_db"] = 9.0
    scores.loc[77, "rank"] = 60
    chosen = image_grid.choose_rows(table, scores, "student")
    spread, farthest, unlike = chosen.values()
    assert farthest[0] == 41
    assert unlike[0] == 77
    everything = spread + farthest + unlike
    assert len(everything) == len(set(everything)) == image_grid.MAX_SHOWN
    assert spread[0] <= 10
    assert spread[-1] >= 90


@pytest.mark.parametrize("width", [64, 96, 320])
@pytest.mark.parametrize("num_models", [1, 2, 4])
def test_a_card_of_small_images_shows_every_model(width, num_models):
    """Columns as report.css has them: 6rem at least, 10 px apart, in a frame of 28 px."""
    image = image_grid.Cell("a", "data:", "a.png", width, width, True, False, None, None, None)
    row = image_grid.Row("a", 0, "a", (image,) * num_models)
    grid = image_grid.Grid((image_grid.Group("all", (row,)),), 1, 1)
    needed = num_models * max(width, 96) + (num_models - 1) * 10 + 28
    assert needed <= grid.card_px < needed + 10


def test_large_images_are_scaled_down(tmp_path):
    from PIL import Image

    noise = Image.effect_noise((1024, 512), 80).convert("RGB")
    noise.save(tmp_path / "large.png")
    uri, width, height = html.inline(tmp_path / "large.png", noise)
    assert (width, height) == (400, 200)
    assert uri.startswith("data:image/webp;base64,")
    assert len(uri) < 120_000


def test_the_first_screen_has_the_models_that_matter(tmp_path):
    from PIL import Image

    def model(name, calls):
        folder = tmp_path / name
        folder.mkdir()
        digests = []
        for number in range(10):
            Image.new("RGB", (640, 320), (number, 0, calls)).save(folder / f"{number}.png")
            digests.append(hash_file(folder / f"{number}.png"))
        table = pd.DataFrame({"file": [f"{number}.png" for number in range(10)], "sha256": digests})
        columns = {"prompt": "a cat", "prompt_id": table["file"], "index": 0, "is_black": False}
        return ModelSamples(name, folder, table.assign(**columns, network_calls=calls))

    samples = {name: model(name, calls) for name, calls in (("teacher", 48), ("student", 2))}
    lead = image_grid.make_lead(samples, ["teacher", "student", None, "teacher"], tmp_path)
    assert [(row.model, row.network_calls) for row in lead.rows] == [
        ("teacher", 48),
        ("student", 2),
    ]
    assert len(lead.prompts) == image_grid.NUM_LEADING
    for row in lead.rows:
        assert [image.link for image in row.images][:2] == [f"{row.model}/{n}.png" for n in (0, 1)]
        assert {image.width for image in row.images} == {200}, "scaled down: it is on each page"
    assert image_grid.make_lead(samples, ["student", None], tmp_path) is None, "nothing beside it"


def write_preview(path, training, prompt=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = PngImagePlugin.PngInfo()
    text.add_text("training", training)
    text.add_text("prompt", prompt)
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(path, pnginfo=text)


def test_images_of_an_earlier_text_are_not_shown_under_the_new_one(tmp_path):
    (tmp_path / "prompts").mkdir()
    table = pd.DataFrame({"prompt_id": ["a", "b"], "prompt": ["one", "a very large two"]})
    table.to_parquet(tmp_path / "prompts/eval.parquet")
    for name, prompt in (("a", "one"), ("b", "two")):
        path = tmp_path / f"student/previews/samples-000000000000/{name}.png"
        write_preview(path, "ours", prompt)
    sheet = gather_previews(RunFolder(tmp_path), ["ours"], None, tmp_path / "report")
    assert [prompt for prompt, *_ in sheet.rows] == ["one"]


def test_whole_moments_of_this_training_are_shown_with_the_teachers_image(tmp_path):
    (tmp_path / "prompts").mkdir()
    table = pd.DataFrame({"prompt_id": ["a", "b", "c"], "prompt": ["one", "two", "three"]})
    table.to_parquet(tmp_path / "prompts/eval.parquet")
    previews = tmp_path / "student/previews"
    for seen, ids, training in ((0, "ab", "ours"), (8, "a", "ours"), (16, "ab", "theirs")):
        for name in ids:
            prompt = {"a": "one", "b": "two"}[name]
            write_preview(previews / f"samples-{seen:012d}/{name}.png", training, prompt)
    write_preview(tmp_path / "samples/teacher/a/0.png", "")
    sheet = gather_previews(RunFolder(tmp_path), ["ours"], "teacher", tmp_path / "report")
    assert sheet.moments == [0]
    assert [prompt for prompt, *_ in sheet.rows] == ["one", "two"]
    assert [last is not None for *_, last in sheet.rows] == [True, False]
    assert sheet.rows[0][1][0].link == "../student/previews/samples-000000000000/a.png"
    both = gather_previews(RunFolder(tmp_path), ["ours", "theirs"], None, tmp_path / "report")
    assert both.moments == [0, 16]
    assert (
        gather_previews(RunFolder(tmp_path), ["nobody's"], "teacher", tmp_path / "report") is None
    )
