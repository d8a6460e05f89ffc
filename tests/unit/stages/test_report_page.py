"""The report's page: whole, readable, escaped, and with its charts."""

import html as html_module
import json
import re
import shutil

import pandas as pd
import pytest
from huggingface_hub import ModelCard
from PIL import Image

from distillery.files import read_sealed, write_sealed
from distillery.report.html import TEMPLATES
from distillery.store.marks import MARK
from quality import make_config
from reports import Page, write, write_loss

# The tiny judge's vocabulary, and so whether a ratio has an interval, differs by process.
QUALITY_OVER_CALLS = re.compile(
    r"CLIP score( as a share of the teacher&#39;s)?, over network calls"
)


def quality_of(charts):
    """The chart of quality over network calls, by whichever name."""
    return next(it for name, it in charts.items() if QUALITY_OVER_CALLS.fullmatch(name))


def test_page_is_self_contained_and_well_nested(written):
    page = Page(written[0])
    assert page.open == []
    assert [it["href"].split(",")[0] for it in page.all("link")] == ["data:image/svg+xml"]
    types = {script.get("type") for script in page.all("script")}
    assert types == {"application/json", "module", None}
    assert not any("src" in script for script in page.all("script"))
    assert all(image["src"].startswith("data:image/") for image in page.all("img"))
    assert "url(" not in without_scripts(written[0])
    outside = [link["href"] for link in page.all("a") if "//" in link["href"]]
    assert outside == ["https://arxiv.org/abs/2104.08718"]


def without_scripts(html):
    return re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)


def charts_of(html):
    """The specs on a page by the titles of their figures."""
    figures = re.findall(r'<figure class="chart.*?</figure>', html, re.DOTALL)
    return {
        re.search("<figcaption>(.*?)</figcaption>", figure)[1]: json.loads(
            re.search(r'<script type="application/json">(.*?)</script>', figure, re.DOTALL)[1]
        )
        for figure in figures
    }


def test_every_chart_is_on_the_page_twice(written):
    """As a spec for Vega, and drawn for readers without scripts."""
    specs = charts_of(written[0])
    assert QUALITY_OVER_CALLS.fullmatch(next(iter(specs)))
    assert list(specs)[1:] == [
        "Loss",
        "Gradient norm",
        "Learning rate",
        "Timeline of 2 workers over 1 min 57 s",
    ]
    assert all(spec["width"] == "container" for spec in specs.values())
    assert written[0].count('<div class="still" aria-hidden="true"><svg') == len(specs)
    assert written[0].count("IntersectionObserver(") == 1, "what draws the specs"


def test_the_runtime_is_one_script_that_may_stand_in_a_page(written):
    """Whole: it would end at a </script> of its own."""
    (script,) = re.findall(r'<script type="module">(.*?)</script>', written[0], re.DOTALL)
    assert "BSD 3-Clause" in script[:300]
    assert 850_000 < len(script.encode()) < 950_000
    assert "figure.chart" in script, "ours is in it"


def test_the_page_is_small_without_its_images(written):
    html = re.sub(r'src="data:[^"]*"', "", written[0])
    assert 0.9e6 < len(html.encode()) < 1.2e6


def test_a_page_without_charts_has_no_runtime(tmp_path):
    html, _ = write(make_config(), tmp_path)
    assert "<script" not in html
    assert len(html) < 50_000


def test_held_out_loss_is_drawn_and_told_where_it_was_measured(folder, tmp_path):
    (tmp_path / "student").mkdir()
    table = pd.read_parquet(folder / "student/loss.parquet")
    measured = table.index % 8 == 7
    table["held_out_loss"] = table["loss"].where(measured) * 2
    for knot in (1, 2):
        table[f"held_out_error_knot_{knot}"] = table["loss"].where(measured) * knot
    table.to_parquet(tmp_path / "student/loss.parquet", index=False)
    html, metrics = write(make_config(), tmp_path)
    rows = charts_of(html)["Loss"]["data"]["values"]
    assert [row["x"] for row in rows if "y3" in row] == [256, 512, 768, 1024]
    assert rows[-1]["y3"] == pytest.approx(2 / 32)
    errors = charts_of(html)["Distance from the teacher, step by step"]["data"]["values"]
    assert [row["x"] for row in errors] == [256, 512, 768, 1024]
    assert errors[-1]["y1"] == pytest.approx(2 * errors[-1]["y0"])
    assert "after step 1" in html
    assert "at the clean end" in html
    assert metrics["training"]["held_out_loss"] == {"samples_seen": 1024, "loss": 2 / 32}
    words = " ".join(html.split())
    assert "the loss was lowest, 0.0625, after 1,024 samples: it was still falling" in words
    marked = [it["data"]["values"] for it in charts_of(html)["Loss"]["layer"] if "data" in it]
    assert marked[0] == [{"x": 1024, "name": "lowest held out"}]


def test_segments_are_named_by_the_trained_student_s_timesteps(edited):
    assert "segment 0, t 999 to 500.5" in edited[0]
    assert "segment 1, t 500.5 to clean" in edited[0]


def test_quality_over_steps_is_drawn(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "tiny")
    path = tmp_path / "tiny/evaluation/quality.json"
    quality = read_sealed(path)
    models = make_config().samples.model_dump(mode="json")["models"]
    config = make_config(samples={"models": models, "steps": [1, 2]})
    added = [name for name in config.samples.models if name not in quality["models"]]
    assert len(added) == 4
    for name in added:
        steps, guided = int(name.split("-")[1]), not name.endswith("unguided")
        quality["models"][name] = quality["models"]["few"] | {
            "steps": steps, "network_calls": steps * (1 + guided),
            "guidance_scale": 4.0 if guided else 1.0,
            "clip_score": {"mean": 0.3 + steps / 100, "low": 0.29, "high": 0.41},
        }  # fmt: skip
        for other in ("student", "untrained"):
            against = quality["models"][other]["against"]
            against[name] = against["few"]
    write_sealed(path, quality)
    html, _ = write(config, tmp_path / "tiny")
    rows = quality_of(charts_of(html))["data"]["values"]
    found = {(row["model"], row["network_calls"]) for row in rows}
    assert {("teacher-1-steps", 2), ("teacher-2-steps", 4)} < found
    assert {("teacher-1-steps-unguided", 1), ("teacher-2-steps-unguided", 2)} < found
    parts = {row["model"]: row["part"] for row in rows}
    assert {name: parts[name] for name in ("student", "untrained", "few")} == {
        "student": "student", "untrained": "untrained", "few": "teacher, guided"
    }  # fmt: skip
    drawn = re.findall(r">([^<]*)</text>", html.split('<figure class="chart')[1])
    assert {"1 step, guided", "2 steps, no guidance", "student", "untrained"} < set(drawn)


def test_the_card_to_publish_has_images_and_scores(folder, written, edited):
    assert not (folder / "report/card").exists(), "there is no card to begin from"
    _, metrics, copy = edited
    text = (copy / "card/README.md").read_text()
    score = metrics["quality"]["models"]["student"]["clip_score"]["mean"]
    (found,) = [it for it in ModelCard(text).data.eval_results if it.metric_type == "clip_score"]
    assert found.metric_value == pytest.approx(score, abs=1e-4)
    assert ModelCard(text).data.model_name == "A student"
    assert text.index("Words.") < text.index("(strip.png)") < text.index("## The right call")
    assert f"| student | {score:.4f} (" in text
    assert MARK.sub("", text).endswith("It.\n")
    with Image.open(copy / "card/strip.png") as strip:
        rows, columns = 3, 6
        assert strip.size == (columns * (2 * 48 + 6) - 6, rows * (24 + 2 * 48 + 6) - 6)
        label, image = strip.crop((0, 0, 90, 24)), strip.crop((0, 24, 96, 120))
        assert label.getextrema()[0] == (0, 255), "black on white"
        with Image.open(next((copy / "samples/teacher/eval-00").glob("0.png"))) as own:
            assert image.resize((48, 48), Image.Resampling.NEAREST).tobytes() == own.tobytes()
    assert "| asked | answer |\n|---|---|\n| CLIP score above " in text
    assert "![teacher, student, untrained](strip.png)" in text


def check_claim(page, card, claimed, whose):
    """Both say it, and the card's table names whose score it is a share of."""
    (head,) = re.findall("<h1>(.*?)</h1>", html_module.unescape(page), re.DOTALL)
    assert head.startswith(claimed)
    assert claimed in card
    names = {it.metric_type: it.metric_name for it in ModelCard(card).data.eval_results}
    assert names["clip_score_ratio"] == f"CLIP score, of {whose}"


def test_card_and_page_say_whose_score_is_kept(folder, tmp_path, edited):
    """Not the teacher's, where the student is compared with another model."""
    page, _, copy = edited
    kept = "The student keeps 96.0\xa0% of the teacher's CLIP score with 12 times"
    check_claim(page, (copy / "card/README.md").read_text(), kept, "the teacher's")
    shutil.copytree(folder, tmp_path / "tiny")
    path = tmp_path / "tiny/evaluation/quality.json"
    quality = read_sealed(path)
    ratio = {"clip_score_ratio": {"mean": 3.0, "low": 2.9, "high": 3.1}}
    quality["models"]["student"]["against"]["few"] |= ratio
    write_sealed(path, quality)
    (tmp_path / "tiny/student/pipeline/README.md").write_text("---\n---\n\n# A student\n")
    config = make_config(evaluation={"judge": "judge", "reference": "few"})
    page, _ = write(config, tmp_path / "tiny")
    claimed = "The student scores 3.00 times few's CLIP score (2.90 to 3.10)"
    check_claim(page, (tmp_path / "tiny/card/README.md").read_text(), claimed, "few's")
    assert "the teacher&#39;s CLIP score" not in without_scripts(page)


def test_links_lead_somewhere(written, folder):
    page = Page(written[0])
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    for link in page.all("a"):
        target = link["href"]
        if target.startswith("#"):
            assert target[1:] in ids
        elif "//" not in target:
            assert (folder / "report" / target.split("#")[0]).exists(), target


def test_every_image_has_words(written):
    page = Page(written[0])
    images = page.all("img")
    models = {image["alt"].split(": ")[0] for image in images}
    on_first_screen = 3 * 6
    assert len(images) == on_first_screen + 24 * 4
    assert models == {"teacher", "few", "student", "untrained"}
    charts = [it for it in page.all("div") if it.get("role") == "img"]
    assert len(charts) == len(page.all("svg")) == 5
    assert all(chart["aria-label"].startswith("Chart: ") for chart in charts)


def test_sets_of_images_are_shown_with_what_was_left_out(written):
    page = Page(written[0])
    words = " ".join(" ".join(page.words).split())
    assert "Sets of images at other noises, in 16 features of judge" in words
    assert (
        "Left out for want of images: Fréchet distance: at least 34 images of each model, 2 of "
        "each prompt." in words
    )
    assert "Coverage" in words
    assert "÷ its floor" not in words
    assert "High frequencies" in words


def test_prompts_are_escaped(edited):
    html = without_scripts(edited[0])
    assert "<script>" not in html
    assert "&lt;script&gt;alert(&#39;x&#39;)" in html


def test_nothing_but_a_configuration_still_makes_an_honest_page(tmp_path):
    html, metrics = write(make_config(), tmp_path)
    assert "No student was compared" in html
    assert metrics["quality"] is metrics["training"] is metrics["speed"] is None
    assert metrics["timings"]["total_s"] is None, "not 0 seconds"
    assert "Not known: the run's telemetry is not there." in html
    for heading in (
        "Is the student good",
        ">Training<",
        ">Images<",
        "Load the student",
        "Seconds per image",
    ):
        assert heading not in html
    assert Page(html).open == []


def test_run_without_training_leaves_it_out(folder, tmp_path):
    (tmp_path / "evaluation").symlink_to(folder / "evaluation")
    (tmp_path / "samples").symlink_to(folder / "samples")
    html, metrics = write(make_config(), tmp_path)
    assert 'id="training"' not in html
    assert "Not known: the run's telemetry is not there." in html
    assert 'id="images"' in html
    assert metrics["training"] is None
    assert metrics["speed"]["seconds_ratio"] is None


def test_black_images_are_told_beside_the_scores(written, edited):
    """Two black images are equal: 100 dB that say nothing."""
    assert "Black images" not in written[0]
    told = "12 of 24 images of teacher, 12 of 24 images of student: every pixel is 0."
    assert edited[0].count(told) == 2, "by the metrics, and by the images"
    assert edited[0].count('<span class="off">black</span>') > 2


def test_one_is_singular(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "tiny")
    path = tmp_path / "tiny/evaluation/quality.json"
    facts = json.loads(path.read_text()) | {"num_prompts": 1, "num_distinct_prompts": 1}
    for model in facts["models"].values():
        model |= {"num_images": 1, "steps": 1, "network_calls": 1}
    write_sealed(path, facts)
    page = "\n".join(Page(write(make_config(), tmp_path / "tiny")[0]).words)
    plurals = re.findall(r"\b1 (?:prompt|image|step|network call|chunk)s\b", page)
    assert plurals == []
    assert "1 step, no guidance, 1 network call" in page


def test_a_page_of_few_prompts_says_why_it_has_no_intervals(folder, tmp_path, written, edited):
    """Of 12, 7 and 3 prompts."""
    shutil.copytree(folder, tmp_path / "tiny")
    path = tmp_path / "tiny/evaluation/quality.json"
    quality = read_sealed(path) | {"num_prompts": 3}
    kept = {"mean": 0.96, "low": None, "high": None}
    quality["models"]["student"]["against"]["teacher"]["clip_score_ratio"] = kept
    write_sealed(path, quality)
    three = write(make_config(), tmp_path / "tiny")[0]
    twelve, seven, three = (" ".join(page.split()) for page in (written[0], edited[0], three))
    assert "small figures are 95 % intervals, bootstrap-t over prompts" in twelve
    assert "fewer than 8 prompts give none but of R@1 and of the median" in seven
    assert "Fewer than 8 prompts give no interval, but for R@1 and medians." in three
    assert "small figures" in seven
    assert "small figures" not in three
    assert "96.0 %" in three
    assert "interval 9" not in three


def test_a_count_says_what_it_counts(written):
    words = " ".join(" ".join(Page(written[0]).words).split())
    assert "64 samples in 1 chunk" in words
    assert "64 distinct texts, the negative prompt among them, in 1 chunk" in words
    assert "Items done repeats included" in words


def test_diverged_training_is_drawn_and_told(folder, tmp_path):
    (tmp_path / "student").mkdir()
    write_loss(tmp_path / "student/loss.parquet")
    table = pd.read_parquet(tmp_path / "student/loss.parquet")
    table.loc[20:, "loss"] = float("nan")
    table.to_parquet(tmp_path / "student/loss.parquet", index=False)
    html, metrics = write(make_config(), tmp_path)
    assert "The loss is not finite" in html
    assert metrics["training"]["final_loss"] is None
    assert "nan" not in html.split('<h2 id="training"')[1].split("</section>")[0]


def test_templates_lie_where_the_report_looks():
    assert (TEMPLATES / "report.html.j2").is_file()
