"""The images of a report: which are chosen, how large they are, and the previews."""

import base64
import io

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageSequence, PngImagePlugin

from distillery.files import hash_file
from distillery.images import as_png, write_png
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
    found = html.inline((tmp_path / "large.png").read_bytes(), fps=1)
    assert (found.width, found.height) == (400, 200)
    assert found.uri.startswith("data:image/webp;base64,")
    assert len(found.uri) < 120_000
    assert found.still is None


def decoded(uri):
    return Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))


def frames_in(uri):
    """Frames of what plays, as arrays, and how long all of it lasts in ms."""
    with decoded(uri) as opened:
        shown = [
            (np.asarray(frame.convert("RGB"), dtype=float), frame.info["duration"])
            for frame in ImageSequence.Iterator(opened)
        ]
    return [frame for frame, _ in shown], sum(duration for _, duration in shown)


def test_a_small_clip_plays_as_it_is():
    clip = np.stack([np.full((24, 32, 3), level, np.uint8) for level in (0, 90, 180, 250)])
    found = html.inline(as_png(clip, {}, fps=8), fps=8)
    assert base64.b64decode(found.uri.split(",")[1]) == as_png(clip, {}, fps=8)
    assert (found.width, found.height) == (32, 24)
    still = np.asarray(decoded(found.still).convert("RGB"), dtype=float)
    assert still.mean() == pytest.approx(180, abs=3), "the middle frame"


@pytest.mark.parametrize(("num_frames", "fps"), [(81, 16), (9, 8), (17, 24)])
def test_a_large_clip_plays_smaller_and_as_long(num_frames, fps):
    """Noise, which no codec makes small, brighter from frame to frame."""
    noise = np.random.default_rng(0).integers(0, 128, (180, 320, 3), dtype=np.uint8)
    levels = np.linspace(0, 127, num_frames).astype(np.uint8)
    clip = noise + levels[:, None, None, None]
    found = html.inline(as_png(clip, {}, fps), fps, most=200)
    assert (found.width, found.height) == (200, 112)
    assert len(base64.b64decode(found.uri.split(",")[1])) <= html.MAX_INLINE_BYTES
    frames, lasts_ms = frames_in(found.uri)
    assert len(frames) == min(num_frames, html.MAX_FRAMES)
    assert lasts_ms == pytest.approx(1000 * num_frames / fps, rel=0.01)
    height, width, _ = frames[0].shape
    assert width / height == pytest.approx(320 / 180, rel=0.05)
    brightness = [frame.mean() - 64 for frame in frames]
    expected = np.linspace(0, 127, len(frames))
    assert brightness == pytest.approx(expected, abs=9), "first to last, at equal distances"


def test_a_clip_that_nothing_makes_small_is_not_scaled_down_for_ever(monkeypatch):
    monkeypatch.setattr(html, "MAX_INLINE_BYTES", 100)
    clip = np.random.default_rng(0).integers(0, 256, (4, 64, 128, 3), dtype=np.uint8)
    frames, _ = frames_in(html.inline(as_png(clip, {}, fps=8), fps=8).uri)
    assert frames[0].shape == (html.LEAST_PX // 2, html.LEAST_PX, 3)


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


def teacher_of_one(run):
    """Samples of the prompt a alone, as the manifest would list them."""
    sha256 = hash_file(run / "samples/teacher/a/0.png")
    table = pd.DataFrame({"prompt_id": ["a"], "index": 0, "file": "a/0.png", "sha256": sha256})
    return ModelSamples("teacher", run / "samples/teacher", table)


def test_images_of_an_earlier_text_are_not_shown_under_the_new_one(tmp_path):
    (tmp_path / "prompts").mkdir()
    table = pd.DataFrame({"prompt_id": ["a", "b"], "prompt": ["one", "a very large two"]})
    table.to_parquet(tmp_path / "prompts/eval.parquet")
    for name, prompt in (("a", "one"), ("b", "two")):
        path = tmp_path / f"student/previews/samples-000000000000/{name}.png"
        write_preview(path, "ours", prompt)
    sheet = gather_previews(RunFolder(tmp_path), ["ours"], None, tmp_path / "report", fps=1)
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
    teacher = teacher_of_one(tmp_path)
    sheet = gather_previews(RunFolder(tmp_path), ["ours"], teacher, tmp_path / "report", fps=1)
    assert sheet.moments == [0]
    assert [prompt for prompt, *_ in sheet.rows] == ["one", "two"]
    assert [last is not None for *_, last in sheet.rows] == [True, False]
    assert sheet.rows[0][1][0].link == "../student/previews/samples-000000000000/a.png"
    both = gather_previews(
        RunFolder(tmp_path), ["ours", "theirs"], None, tmp_path / "report", fps=1
    )
    assert both.moments == [0, 16]
    assert (
        gather_previews(RunFolder(tmp_path), ["nobody's"], teacher, tmp_path / "report", fps=1)
        is None
    )


def test_previews_of_clips_play(tmp_path):
    (tmp_path / "prompts").mkdir()
    table = pd.DataFrame({"prompt_id": ["a"], "prompt": ["one"]})
    table.to_parquet(tmp_path / "prompts/eval.parquet")
    noise = np.random.default_rng(0).integers(0, 256, (40, 64, 80, 3), dtype=np.uint8)
    texts = {"training": "ours", "prompt": "one"}
    moment = tmp_path / "student/previews/samples-000000000008"
    for path in (moment / "a.png", tmp_path / "samples/teacher/a/0.png"):
        write_png(path, noise, texts, fps=20)
    teacher = teacher_of_one(tmp_path)
    sheet = gather_previews(RunFolder(tmp_path), ["ours"], teacher, tmp_path / "report", fps=20)
    (_, (preview,), teacher) = sheet.rows[0]
    for shown in (preview, teacher):
        frames, lasts_ms = frames_in(shown.uri)
        assert (len(frames), lasts_ms) == (html.MAX_FRAMES, pytest.approx(2000, rel=0.01))
        assert (shown.width, shown.height) == (80, 64)
        assert decoded(shown.still).size == (80, 64)
