"""Report, card and gallery of a small run of clips: they play, and motion is watched."""

import base64
import html
import re

import numpy as np
import pandas as pd
import pytest
from huggingface_hub import ModelCard
from PIL import Image

from distillery.measures.lists import MEASURES
from distillery.measures.of_sets import OF_SETS
from distillery.report.card import GAP_PX, LABEL_PX
from distillery.report.compare import compare_runs
from distillery.report.gallery import CLIPS_PER_PAGE, make_gallery
from judging import FPS, PROMPTS, Run, draw_clip, make_samples
from quality import make_config
from reports import Page, make_results, write

NUM_FRAMES = 5
TEACHER = {"path": "resources/demo/teacher", "height": 48, "width": 48}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips")
    make_results(folder, NUM_FRAMES)
    card = "---\nlibrary_name: diffusers\n---\n\n# A student\n\n## The right call\n\nIt."
    (folder / "student/pipeline/README.md").write_text(card)
    return folder


@pytest.fixture(scope="module")
def written(folder):
    """(page, metrics)"""
    config = make_config(teacher=TEACHER | {"num_frames": NUM_FRAMES, "fps": FPS})
    make_gallery(
        sorted(folder.glob("samples/*/manifest.parquet")),
        folder / "evaluation/scores.parquet",
        folder / "gallery",
    )
    return write(config, folder)


def test_motion_is_in_every_summary(written, folder):
    """The student's clips move half as fast as the teacher's."""
    page, metrics = written
    first, *others = metrics["claims"]["watched"]
    assert first["name"] == "motion over the teacher's"
    assert first["is_flagged"]
    assert others
    ratio = metrics["quality"]["models"]["student"]["against"]["teacher"]["motion_ratio"]
    said = f"{first['name']} {first['finding']}, the clips move less"
    assert first["finding"].startswith(f"{ratio['mean']:.2f} (")
    card = (folder / "card/README.md").read_text()
    assert said in metrics["claims"]["summary"]
    assert said in card
    words = "".join(Page(page).words)
    assert said in words
    assert "⚑ flagged\nMotion over the teacher's: the clips move less" in words
    assert re.search(
        r"\| .*\| Motion \| ÷ the reference's \| Flicker \| PSNR, first frame \|", card
    )


def said_on(page):
    """The words between the tags, without code, charts and what is folded."""
    hidden = r"<(script|style|svg|code|details)\b.*?</\1>|<[^>]+>"
    return " ".join(re.sub(hidden, " ", page, flags=re.DOTALL).split())


def test_the_page_speaks_of_clips(written):
    words = html.unescape(said_on(written[0]))
    for column in (*MEASURES, *OF_SETS):
        words = words.replace(column.hint, "")  # said of both
    assert f"each a clip of 5 frames, {FPS} per second" in words
    assert "Seconds per clip" in words
    assert "Network calls per clip" in words
    assert re.findall(r".{20}\bimages?\b.{20}", words) == []


def test_charts_and_provenance_speak_of_clips(written):
    assert "network calls per clip (log)" in written[0]
    assert "network calls per image" not in written[0]
    assert f"48 px, 5 frames, {FPS} per second, " in written[0]


def test_every_clip_plays_and_has_a_still(written, folder):
    images = [it for it in Page(written[0]).all("img") if it["src"].startswith("data:")]
    stills = Page(written[0]).all("source")
    assert len(images) == len(stills) > 24
    path = folder / "samples/student/eval-00/0.png"
    uri = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    assert uri in [it["src"] for it in images], "small files play as they are"
    assert {it["media"] for it in stills} == {"(prefers-reduced-motion: reduce), print"}
    assert all(it["srcset"].startswith("data:image/webp;base64,") for it in stills)


def test_the_strip_shows_frames_in_time(written, folder):
    """Two prompts, of each the first, the middle and the last frame."""
    card = (folder / "card/README.md").read_text()
    assert "Columns: 2 held-out prompts with one noise each, frames 1, 3 and 5 of 5." in card
    assert ModelCard(card).data.eval_results[0].task_type == "text-to-video"
    with Image.open(folder / "card/strip.png") as strip:
        pixels = np.asarray(strip)
    edge, across, down = 2 * 48, 2 * 48 + GAP_PX, LABEL_PX + 2 * 48 + GAP_PX
    assert pixels.shape == (3 * down - GAP_PX, 6 * across - GAP_PX, 3)

    def cell(row, column):
        """An image at its own size."""
        top, left = row * down + LABEL_PX, column * across
        return pixels[top : top + edge : 2, left : left + edge : 2]

    for column, frame in enumerate((0, 2, 4)):
        expected = draw_clip(PROMPTS[0], 0, NUM_FRAMES, 2)[frame]
        np.testing.assert_array_equal(cell(0, column), expected)
    student = draw_clip(PROMPTS[6], 1, NUM_FRAMES, 1)[4]
    np.testing.assert_array_equal(cell(1, 5), student)


def test_the_gallery_plays_the_files_and_sorts_by_motion(written, folder):
    page = (folder / "gallery/index.html").read_text()
    sources = [it["src"] for it in Page(page).all("img") if it.get("src")]
    assert "../samples/student/eval-00/0.png" in sources
    assert f"Each is a clip of 5 frames, {FPS} per second, which opens larger." in page
    assert '<option value="motion">motion</option>' in page
    assert 'class="beside"' in page
    assert "difference" not in page.split("<dialog")[1].split("<script")[0], "of other frames"
    assert "all images" not in page


def test_two_runs_are_compared_by_their_motion(folder, tmp_path):
    """In the second one the student's clips move three times as fast."""
    run = Run(tmp_path / "two", str(folder / "judge"), NUM_FRAMES)
    student = (run.folder / "samples/student", "student", 4, 1.0, 1)
    make_samples(*student, num_frames=NUM_FRAMES, speed=3)
    run.evaluate()
    compare_runs(folder, run.folder, tmp_path / "compare/index.html")
    page = (tmp_path / "compare/index.html").read_text()
    table = pd.read_parquet(tmp_path / "compare/metrics.parquet").set_index(["model", "metric"])
    found = table.loc[("student", "motion")].set_index("of")
    assert found.loc["difference", "low"] > 0
    assert found.loc["difference", "mean"] == pytest.approx(
        found.loc["two", "mean"] - found.loc[folder.name, "mean"], rel=1e-4
    )
    assert "motion, mean square change from frame to frame" in page
    assert "all 24 clips are the same in both" in page
    assert f"one noise, each a clip of 5 frames, {FPS} per second." in page
    assert len(Page(page).all("source")) == len(Page(page).all("img")) > 6


def test_pages_of_clips_are_short(folder, tmp_path):
    manifests = []
    for path in sorted(folder.glob("samples/*/manifest.parquet")):
        table = pd.read_parquet(path)
        copies = [table.assign(prompt_id=table["prompt_id"] + str(it)) for it in range(4)]
        other = tmp_path / "results/long/samples" / path.parent.name / "manifest.parquet"
        other.parent.mkdir(parents=True)
        pd.concat(copies).to_parquet(other, index=False)
        manifests.append(other)
    make_gallery(manifests, None, tmp_path / "results/long/gallery")
    first = tmp_path / "results/long/gallery/index.html"
    others = list(first.parent.glob("page-*.html"))
    assert len(others) == (4 * 24 - 1) // CLIPS_PER_PAGE
    assert first.read_text().count("<article>") == CLIPS_PER_PAGE
    rows = (tmp_path / "results/long/gallery/rows.js").read_text()
    assert f'"perPage":{CLIPS_PER_PAGE}' in rows
