"""Report and gallery of a small run whose prompts have images: each lies beside what it became."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image, PngImagePlugin

from distillery.files import hash_file, read_sealed
from distillery.pipeline import STAGES
from distillery.report import page
from distillery.report.card import GAP_PX, LABEL_PX
from distillery.report.compare import compare_runs
from distillery.report.gallery import make_gallery
from distillery.run_folder import RunFolder
from judging import PROMPTS
from quality import make_config
from reports import Page, write_trained

NUM_IMAGES = 3
"""Prompts share them."""
MODELS = 4


def add_inputs(folder, photos):
    """Give a finished run's tables what they have where prompts have images."""
    photos.mkdir()
    for number in range(NUM_IMAGES):
        Image.new("RGB", (48, 48), (80 * number, 0, 90)).save(photos / f"{number}.png")
    for path in folder.glob("samples/*/manifest.parquet"):
        table = pd.read_parquet(path)
        names = [photos / f"{int(it[-2:]) % NUM_IMAGES}.png" for it in table["prompt_id"]]
        table["image"] = [str(it) for it in names]
        table["image_sha256"] = [hash_file(it) for it in names]
        table.to_parquet(path, index=False)
    (folder / "prompts").mkdir()
    columns = ["prompt_id", "prompt", "image", "image_sha256"]
    table[columns].drop_duplicates().to_parquet(folder / "prompts/eval.parquet", index=False)


def add_previews(folder, prompt_ids):
    recipe = read_sealed(folder / "student/trained/distillery.json")["recipe_hash"]
    for number, name in enumerate(prompt_ids):
        text = PngImagePlugin.PngInfo()
        text.add_text("training", recipe)
        text.add_text("prompt", PROMPTS[number])
        path = folder / f"student/previews/samples-000000000008/{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((48, 48, 3), np.uint8)).save(path, pnginfo=text)


def write_pages(folder):
    """(report, gallery, its rows)"""
    manifests = [folder / f"samples/{it}/manifest.parquet" for it in ("teacher", "few", "student")]
    make_gallery(manifests, None, folder / "gallery")
    report, metrics = folder / "report/index.html", folder / "report/metrics.json"
    page.write_report(make_config(), RunFolder(folder), report, metrics, STAGES)
    script = (folder / "gallery/rows.js").read_text()
    rows = json.loads(script.removeprefix("const GALLERY = ").removesuffix(";\n"))["rows"]
    return report.read_text(), (folder / "gallery/index.html").read_text(), rows


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """(folder of the run, folder of the images)"""
    own = tmp_path_factory.mktemp("inputs")
    shutil.copytree(folder, own / "tiny", ignore=shutil.ignore_patterns("gallery", "report"))
    add_inputs(own / "tiny", own / "photos")
    write_trained(own / "tiny", make_config(), timesteps=(999, 500.5))
    add_previews(own / "tiny", ["eval-00", "eval-01"])
    card = own / "tiny/student/pipeline/README.md"
    card.parent.mkdir(parents=True, exist_ok=True)
    card.write_text("---\nlicense: other\n---\n# tiny\n\n## The right call\n")
    return own / "tiny", own / "photos"


@pytest.fixture(scope="module")
def pages(run):
    return write_pages(run[0])


def inputs_on(page):
    return [it for it in Page(page).all("img") if it.get("alt", "").startswith("input: ")]


def test_each_strip_of_the_report_begins_with_it(pages):
    report = pages[0]
    cards = re.findall(r'<article class="card">.*?</article>', report, re.DOTALL)
    assert len(cards) == 24
    for card in cards:
        first, *models = Page(card).all("img")
        assert first["alt"] == "input: " + re.search("<h4>(.*?)<", card)[1]
        assert first["src"].startswith("data:image/webp;base64,")
        assert len(models) == MODELS
        assert {it["width"] for it in models} == {"96"}, "twice its size, as CSS makes the input"
        assert first["class"] == "small"
    assert f"--columns: {MODELS + 1}; --image: 96px; --card: {5 * 96 + 4 * 10 + 28}px" in report


def test_the_first_screen_has_a_row_of_them(pages):
    lead = re.search(r'<figure class="lead".*?</figure>', pages[0], re.DOTALL)[0]
    names = re.findall(r"<p>.*?<b>(.*?)</b>", lead)
    assert names == ["input", "teacher", "student", "untrained"]
    images = [it["alt"] for it in Page(lead).all("img")]
    assert images[:6] == [f"input: {PROMPTS[number]}" for number in range(0, 12, 2)]
    assert lead.count('<div class="more">') == 3, "on a phone there are three columns"


def test_previews_have_a_column_of_them(pages):
    table = re.search(r'<table class="moments">.*?</table>', pages[0], re.DOTALL)[0]
    titles = re.findall(r'<th scope="col">(\w+)', table)
    assert titles == ["Prompt", "input", "8", "teacher"]
    alts = [it["alt"] for it in Page(table).all("img")]
    assert alts[::3] == [f"input: {prompt}" for prompt in PROMPTS[:2]]


def test_the_gallery_has_each_once_beside_its_pages(pages, run):
    """So that it has them where the results are moved."""
    _, gallery, rows = pages
    shown = inputs_on(gallery)
    files = sorted((run[0] / "gallery/inputs").iterdir())
    assert [it.stem for it in files] == sorted(hash_file(it) for it in run[1].iterdir())
    assert len(shown) == len(rows) == 24
    assert [it["src"] for it in shown] == [row[5][0] for row in rows]
    assert {it["src"] for it in shown} == {f"inputs/{it.name}" for it in files}
    assert [row[4:] for row in rows[:1]] == [["", [shown[0]["src"], ""]]]
    assert "--columns: 4" in gallery
    for article in re.findall("<article>.*?</article>", gallery, re.DOTALL):
        assert re.findall("<b>(.*?)</b>", article) == ["input", "teacher", "few", "student"]


def test_the_gallerys_viewer_opens_it_in_the_size_of_the_samples(pages, run):
    gallery = pages[1]
    for place in ("left", "right"):
        select = re.search(f'<select id="{place}">(.*?)</select>', gallery)[1]
        assert select.startswith('<option value="0">teacher'), "what is chosen at first"
        assert select.endswith('<option value="-1">input</option>')
    links = re.findall(r'<a href="(inputs/.*?)"><img', gallery)
    assert len(links) == 24
    with Image.open(run[0] / "gallery" / links[0]) as opened:
        assert opened.size == (48, 48)


def test_the_cards_strip_has_a_row_of_them(pages, run):
    given = Image.open(run[1] / "0.png").getpixel((5, 5))
    with Image.open(run[0] / "report/card/strip.png") as strip:
        assert strip.height == 4 * (LABEL_PX + 2 * 48 + GAP_PX) - GAP_PX, "above three models"
        assert strip.getpixel((5, LABEL_PX + 5)) == given
    card = (run[0] / "report/card/README.md").read_text()
    assert "![input, teacher" in card


def test_two_runs_are_compared_beside_it(run, tmp_path):
    other = shutil.copytree(run[0], tmp_path / "other")
    shutil.rmtree(other / "evaluation")
    path = other / "samples/student/manifest.parquet"
    shutil.copytree(other / "samples/untrained", path.parent, dirs_exist_ok=True)
    pd.read_parquet(path).assign(model="student").to_parquet(path, index=False)
    compare_runs(run[0], other, tmp_path / "compare/index.html")
    page = (tmp_path / "compare/index.html").read_text()
    assert inputs_on(page)
    assert page.count("<b>input</b>") == page.count('<figure class="lead"') > 0


def test_a_file_that_is_gone_or_has_changed_leaves_a_named_hole(pages, run, tmp_path):
    folder = shutil.copytree(run[0], tmp_path / "tiny")
    shutil.rmtree(folder / "gallery")
    photos = shutil.copytree(run[1], tmp_path / "photos")
    for path in (*folder.glob("samples/*/manifest.parquet"), folder / "prompts/eval.parquet"):
        table = pd.read_parquet(path)
        table["image"] = table["image"].str.replace(str(run[1]), str(photos), regex=False)
        table.to_parquet(path, index=False)
    (photos / "0.png").unlink()
    Image.new("RGB", (48, 48)).save(photos / "1.png")
    report, gallery, rows = write_pages(folder)
    gone = f'<span class="lost">{photos}/0.png cannot be read</span>'
    changed = f'<span class="lost">{photos}/1.png has changed since</span>'
    for before, after in ((pages[0], report), (pages[1], gallery)):
        assert gone in after
        assert changed in after
        assert 'class="lost"' not in before
        lost = after.count('class="lost"')
        assert len(inputs_on(after)) == len(inputs_on(before)) - lost > 0
    assert rows[0][5] == ["", f"{photos}/0.png cannot be read"]
    assert len(list((folder / "gallery/inputs").iterdir())) == 1


def test_pages_of_a_run_without_have_no_word_of_them(written, folder):
    gallery = (folder / "gallery/index.html").read_text()
    assert not (folder / "gallery/inputs").exists()
    for text in (written[0], gallery):
        assert not inputs_on(text)
        assert "<b>input</b>" not in text
    assert "-1" not in re.search('<select id="left">(.*?)</select>', gallery)[1]
    assert "--columns: 4" in written[0]
    assert "--columns: 4" in gallery
